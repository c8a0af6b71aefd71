// expect WITHOUT_NAME: mfsdp: Optimizer lacks 'static constexpr std::string_view name'
// expect WITHOUT_WHOLE_MATRIX: mfsdp: Optimizer lacks 'static constexpr bool whole_matrix'
// expect WITHOUT_FLOPS: mfsdp: Optimizer lacks 'index_t flops(matrix_shape) const'
// expect WITHOUT_STATES: mfsdp: Optimizer lacks 'std::array<state_spec, N> states(matrix_shape)
// expect WITHOUT_WORKSPACE_SIZE: mfsdp: Optimizer lacks 'index_t workspace_size(matrix_shape)
// expect WRITES_GRADIENT: mfsdp: Optimizer lacks 'void update(backend, states, parameter, gradient,
#include "support/archetypes.hpp"

using namespace archetype;

struct rule {
#ifndef WITHOUT_NAME
  static constexpr std::string_view name = "rule";
#endif
#ifndef WITHOUT_WHOLE_MATRIX
  static constexpr bool whole_matrix = false;
#endif
#ifndef WITHOUT_FLOPS
  index_t flops(matrix_shape) const;
#endif
#ifndef WITHOUT_STATES
  std::array<mfsdp::state_spec, 1> states(matrix_shape) const;
#endif
#ifndef WITHOUT_WORKSPACE_SIZE
  index_t workspace_size(matrix_shape) const;
#endif
#ifdef WRITES_GRADIENT
  using gradient = matrix_view<float>;
#else
  using gradient = matrix_view<const float>;
#endif
  template <class B>
  void update(B&, const std::array<std::span<float>, 1>&, matrix_view<float>, gradient,
              const mfsdp::update_context<float>&) const;
};

void program() {
  train(collective{}, mfsdp::owner_placement{}, rule{});
}
