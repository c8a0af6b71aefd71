// expect: mfsdp: Optimizer lacks 'index_t flops(matrix_shape) const'
#include <mfsdp/mfsdp.hpp>

struct almost_an_optimizer : mfsdp::muon {
#ifdef MFSDP_COMPILE_FAIL
  mfsdp::index_t flops(mfsdp::matrix_shape) const = delete;
#endif
};

mfsdp::plan plan_of(const mfsdp::model_spec& spec) {
  return mfsdp::make_plan(spec, 2, mfsdp::owner_placement{},
                          mfsdp::parameter_groups{mfsdp::for_names("*.up", almost_an_optimizer{}),
                                                  mfsdp::for_rest(mfsdp::adamw{})});
}
