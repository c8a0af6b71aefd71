// expect: mfsdp: Optimizer lacks 'std::array<state_spec, N> states(matrix_shape) const'
#include "support/archetypes.hpp"

using namespace archetype;

struct broken
    : composed<with_name, with_whole_matrix, with_flops, with_workspace_size, with_update> {
#ifndef MFSDP_COMPILE_FAIL
  std::array<mfsdp::state_spec, 1> states(matrix_shape) const;
#endif
};

void program() {
  train(collective{}, mfsdp::owner_placement{}, broken{});
}
