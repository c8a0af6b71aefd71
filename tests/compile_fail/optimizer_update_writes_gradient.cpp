// expect: mfsdp: Optimizer lacks 'void update(backend, states, parameter, gradient, context)
#include "support/archetypes.hpp"

using namespace archetype;

struct broken
    : composed<with_name, with_whole_matrix, with_flops, with_states, with_workspace_size> {
  template <class B>
  void update(B&, const std::array<std::span<float>, 1>&, matrix_view<float>,
#ifdef MFSDP_COMPILE_FAIL
              matrix_view<float>,
#else
              matrix_view<const float>,
#endif
              const mfsdp::update_context<float>&) const;
};

void program() {
  train(collective{}, mfsdp::owner_placement{}, broken{});
}
