// expect: mfsdp: Optimizer lacks 'index_t workspace_size(matrix_shape) const'
#include "support/archetypes.hpp"

using namespace archetype;

struct broken : composed<with_name, with_whole_matrix, with_flops, with_states, with_update> {
#ifndef MFSDP_COMPILE_FAIL
  index_t workspace_size(matrix_shape) const;
#endif
};

void program() {
  train(collective{}, mfsdp::owner_placement{}, broken{});
}
