// expect: mfsdp: Placement lacks 'std::vector<std::vector<segment>> place(
#include "support/archetypes.hpp"

using namespace archetype;

struct broken : composed<with_name, with_whole_matrices, with_replicated> {
#ifndef MFSDP_COMPILE_FAIL
  std::vector<std::vector<mfsdp::segment>> place(std::span<const mfsdp::placement_item>, int) const;
#endif
};

void program() {
  train(collective{}, broken{}, optimizer{});
}
