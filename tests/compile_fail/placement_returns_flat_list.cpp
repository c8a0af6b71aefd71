// expect: mfsdp: Placement lacks 'std::vector<std::vector<segment>> place(
#include "support/archetypes.hpp"

using namespace archetype;

struct broken : composed<with_name, with_whole_matrices, with_replicated> {
#ifdef MFSDP_COMPILE_FAIL
  using answer = std::vector<mfsdp::segment>;
#else
  using answer = std::vector<std::vector<mfsdp::segment> >;
#endif
  answer place(std::span<const mfsdp::placement_item>, int) const;
};

void program() {
  train(collective{}, broken{}, optimizer{});
}
