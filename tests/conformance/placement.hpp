// What every Placement must do. Call check_placement from a doctest test case, also on your own.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "mfsdp/planner.hpp"

namespace mfsdp_test {

// States costs only, and takes every tensor in pieces.
struct any_pieces {
  static constexpr std::string_view name = "any_pieces";
  static constexpr bool whole_matrix = false;
  [[nodiscard]] mfsdp::index_t flops(mfsdp::matrix_shape s) const { return 10 * s.elements(); }
  [[nodiscard]] std::array<mfsdp::state_spec, 1> states(mfsdp::matrix_shape s) const {
    return {{{"state", s.elements()}}};
  }
  [[nodiscard]] mfsdp::index_t workspace_size(mfsdp::matrix_shape) const { return 0; }
};

// A few units of random tensors: empty ones, single rows and columns, fused and frozen matrices,
// elementwise tensors below and above a block.
inline mfsdp::model_spec random_spec(std::mt19937& random) {
  const auto pick = [&](mfsdp::index_t low, mfsdp::index_t high) {
    return low + static_cast<mfsdp::index_t>(random()) % (high - low + 1);
  };
  mfsdp::model_spec spec;
  const mfsdp::index_t units = pick(1, 5);
  for (mfsdp::index_t u = 0; u < units; ++u) {
    const std::string name = fmt::format("unit{}", u);
    auto unit = spec.unit(name);
    const mfsdp::index_t tensors = pick(1, 6);
    for (mfsdp::index_t t = 0; t < tensors; ++t) {
      const std::string tensor = fmt::format("tensor{}", t);
      const mfsdp::tensor_options options{.frozen = pick(0, 7) == 0, .row_groups = 1};
      const mfsdp::index_t rows = pick(1, 120);  // named: arguments are evaluated in any order
      const mfsdp::index_t cols = pick(1, 120);
      switch (pick(0, 5)) {
        case 0:
          unit.matrix(tensor, rows % 4, cols % 90, options);
          break;
        case 1:
          unit.matrix(tensor, 3 * rows, cols, {.frozen = options.frozen, .row_groups = 3});
          break;
        case 2:
          unit.vector(tensor, pick(0, 100), options);
          break;
        case 3:
          unit.elementwise(tensor, {2 * rows, cols}, options);
          break;
        case 4:
          if (u > 0) {
            unit.tied(tensor, fmt::format("unit{}.tensor0", u - 1));
            break;
          }
          [[fallthrough]];
        default:
          unit.matrix(tensor, rows, cols, options);
      }
    }
  }
  return spec;
}

// The answer of one plan: complete, disjoint, aligned, in order, and the same when asked again.
// make_plan has already refused what a placement may not do.
template <class P>
void check_plan(const mfsdp::model_spec& spec, int ranks, const P& placement) {
  const mfsdp::plan plan = mfsdp::make_plan(spec, ranks, placement, any_pieces{});
  CAPTURE(ranks);

  // Each element of each item is on one rank, or on every rank if replicated.
  std::vector<mfsdp::index_t> held(plan.items.size());
  for (const mfsdp::local_segment& s : plan.local_segments) {
    REQUIRE(s.count > 0);
    held[s.item] += s.count;
  }
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    CHECK(held[i] == plan.items[i].elements() * (P::replicated ? ranks : 1));
  }

  // Shards hold the local segments without overlap, each at its alignment.
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    const mfsdp::transfer_group& group = plan.groups[g];
    std::vector<mfsdp::index_t> end(static_cast<std::size_t>(ranks));
    for (const mfsdp::local_segment& s : plan.local_segments) {
      const mfsdp::tensor_slot& slot = plan.tensors[plan.items[s.item].tensor];
      if (slot.group != g) continue;
      const auto rank = static_cast<std::size_t>(s.rank);
      CHECK(s.local >= end[rank]);
      if (group.resident) {
        CHECK(s.local == slot.offset + plan.items[s.item].offset + s.offset);
      } else {
        CHECK(s.local % 16 == 0);
      }
      end[rank] = s.local + s.count;
      CHECK(end[rank] <= group.parameters.shard_elements[rank]);
    }
    mfsdp::index_t moved = 0;
    mfsdp::index_t last = -1;
    for (const mfsdp::piece& p : group.parameters.pieces) {
      CHECK(p.full > last);
      CHECK(p.full + p.count <= group.parameters.full_elements);
      moved += p.count;
      last = p.full;
    }
    mfsdp::index_t elements = 0;
    for (const std::size_t t : group.tensors) elements += spec.tensors()[t].elements();
    CHECK(moved == (group.resident ? 0 : elements));
  }

  const mfsdp::plan again = mfsdp::make_plan(spec, ranks, placement, any_pieces{});
  CHECK(again.segments == plan.segments);
}

// The suite: many random models at 1 to 9 ranks, and the edges of both.
template <class P>
void check_placement(const P& placement) {
  static_assert(mfsdp::Placement<P>);
  std::mt19937 random(20240607);
  for (int trial = 0; trial < 60; ++trial) {
    const mfsdp::model_spec spec = random_spec(random);
    for (int ranks = 1; ranks <= 9; ++ranks) check_plan(spec, ranks, placement);
  }

  mfsdp::model_spec empty;
  empty.unit("empty").matrix("none", 0, 8).vector("nothing", 0).elementwise("zero", {3, 0, 2});
  check_plan(empty, 3, placement);

  mfsdp::model_spec small;
  small.unit("small").matrix("one", 1, 1).vector("two", 2);
  check_plan(small, 64, placement);
}

}  // namespace mfsdp_test
