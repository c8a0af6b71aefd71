// expect: mfsdp: Optimizer lacks 'std::array<index_t, N> state_sizes(matrix_shape) const'
#include "support/archetypes.hpp"

using namespace archetype;

struct broken
    : composed<with_name, with_whole_matrix, with_flops, with_workspace_size, with_update> {
#ifndef MFSDP_COMPILE_FAIL
  std::array<index_t, 1> state_sizes(matrix_shape) const;
#endif
};

void program() {
  train(collective{}, mfsdp::owner_placement{}, broken{});
}
