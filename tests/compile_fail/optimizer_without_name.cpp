// expect: mfsdp: Optimizer lacks 'static constexpr std::string_view name'
#include "support/archetypes.hpp"

using namespace archetype;

struct broken
    : composed<with_whole_matrix, with_flops, with_states, with_workspace_size, with_update> {
#ifndef MFSDP_COMPILE_FAIL
  static constexpr std::string_view name = "own";
#endif
};

void program() {
  train(collective{}, mfsdp::owner_placement{}, broken{});
}
