// expect WITHOUT_NAME: mfsdp: Placement lacks 'static constexpr std::string_view name'
// expect WITHOUT_PLACE: mfsdp: Placement lacks 'std::vector<std::vector<segment>> place(
// expect FLAT_LIST: mfsdp: Placement lacks 'std::vector<std::vector<segment>> place(
#include "support/archetypes.hpp"

using namespace archetype;

struct where : composed<with_whole_matrices, with_replicated> {
#ifndef WITHOUT_NAME
  static constexpr std::string_view name = "where";
#endif
#ifdef FLAT_LIST
  using segments = std::vector<mfsdp::segment>;
#else
  using segments = std::vector<std::vector<mfsdp::segment> >;
#endif
#ifndef WITHOUT_PLACE
  segments place(std::span<const mfsdp::placement_item>, int) const;
#endif
};

void program() {
  train(collective{}, where{}, optimizer{});
}
