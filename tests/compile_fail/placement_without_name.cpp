// expect: mfsdp: Placement lacks 'static constexpr std::string_view name'
#include "support/archetypes.hpp"

using namespace archetype;

struct broken : composed<with_whole_matrices, with_replicated, with_place> {
#ifndef MFSDP_COMPILE_FAIL
  static constexpr std::string_view name = "own";
#endif
};

void program() {
  train(collective{}, broken{}, optimizer{});
}
