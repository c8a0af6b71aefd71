// expect: mfsdp: Optimizer lacks 'static constexpr bool whole_matrix'
#include "support/archetypes.hpp"

using namespace archetype;

struct broken : composed<with_name, with_flops, with_states, with_workspace_size, with_update> {
#ifndef MFSDP_COMPILE_FAIL
  static constexpr bool whole_matrix = false;
#endif
};

void program() {
  train(collective{}, mfsdp::owner_placement{}, broken{});
}
