// expect: an Optimizer has flops(matrix_shape) -> index
#include "mfsdp/concepts.hpp"

struct almost_an_optimizer {
  static constexpr const char* name = "almost";
  static constexpr bool whole_matrix = false;
};

#ifdef MFSDP_COMPILE_FAIL
static_assert(mfsdp::contract::optimizer_flops<almost_an_optimizer>,
              "an Optimizer has flops(matrix_shape) -> index_t");
#endif
