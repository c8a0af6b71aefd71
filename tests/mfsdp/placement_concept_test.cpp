#include <doctest/doctest.h>

#include <span>
#include <string_view>
#include <vector>

#include "mfsdp/concepts.hpp"
#include "mfsdp/placement/owner.hpp"
#include "mfsdp/placement/replicated.hpp"
#include "mfsdp/placement/rows.hpp"

namespace placement_concept_test {

namespace placement_kinds {

using items = std::span<const mfsdp::placement_item>;
using answer = std::vector<std::vector<mfsdp::segment>>;

// Only what the concept asks for.
struct archetype {
  static constexpr std::string_view name = "archetype";
  static constexpr bool whole_matrices = true;
  static constexpr bool replicated = false;
  answer place(items, int) const;
};

// The same with one change each.
struct without_name {
  static constexpr bool whole_matrices = true;
  static constexpr bool replicated = false;
  answer place(items, int) const;
};
struct without_whole_matrices {
  static constexpr std::string_view name = "mutant";
  static constexpr bool replicated = false;
  answer place(items, int) const;
};
struct without_replicated {
  static constexpr std::string_view name = "mutant";
  static constexpr bool whole_matrices = true;
  answer place(items, int) const;
};
struct without_place {
  static constexpr std::string_view name = "mutant";
  static constexpr bool whole_matrices = true;
  static constexpr bool replicated = false;
};
struct place_changes_itself : without_place {
  answer place(items, int);
};
struct place_answers_flat : without_place {
  std::vector<mfsdp::segment> place(items, int) const;
};
struct place_wants_to_write : without_place {
  answer place(std::span<mfsdp::placement_item>, int) const;
};
struct name_is_a_number : archetype {
  static constexpr int name = 3;
};
struct not_copyable : archetype {
  not_copyable(const not_copyable&) = delete;
};

static_assert(mfsdp::Placement<archetype>);
static_assert(!mfsdp::Placement<without_name>);
static_assert(!mfsdp::Placement<without_whole_matrices>);
static_assert(!mfsdp::Placement<without_replicated>);
static_assert(!mfsdp::Placement<without_place>);
static_assert(!mfsdp::Placement<place_changes_itself>);
static_assert(!mfsdp::Placement<place_answers_flat>);
static_assert(!mfsdp::Placement<place_wants_to_write>);
static_assert(!mfsdp::Placement<name_is_a_number>);
static_assert(!mfsdp::Placement<not_copyable>);

}  // namespace placement_kinds

TEST_CASE("the placements of the library model Placement") {
  static_assert(mfsdp::Placement<mfsdp::owner_placement>);
  static_assert(mfsdp::Placement<mfsdp::row_placement>);
  static_assert(mfsdp::Placement<mfsdp::replicated_placement>);
  CHECK(mfsdp::owner_placement::whole_matrices);
  CHECK(!mfsdp::row_placement::whole_matrices);
  CHECK(mfsdp::replicated_placement::replicated);
}

}  // namespace placement_concept_test
