// owner_placement: every matrix whole on one rank; elementwise tensors level what is left.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "mfsdp/layout.hpp"
#include "mfsdp/placement/balance.hpp"
#include "mfsdp/placement/published.hpp"

namespace mfsdp::inline MFSDP_ABI {

enum class owner_strategy {
  balanced,      // by optimizer time, then resident bytes, elementwise tensors as filler
  ordered,       // MatrixFSDP: the matrices of a unit on ranks 0, 1, 2, ...
  role_greedy,   // MatrixFSDP: unit by unit, largest first, loads carried over
  scope_greedy,  // MatrixFSDP: all units at once, largest first
};

// Whole matrices on single owners, so that a matrix optimizer needs no communication.
//
// balanced: matrices (and row groups) by update_flops, largest first, then exchanges that lower the
// slowest rank; after that elementwise tensors, cut at multiples of block_elements, level the
// resident bytes. More ranks than matrices leave some ranks with elementwise parts only.
// The other strategies reproduce MatrixFSDP's planner (arXiv:2607.05895), which counts elements and
// keeps all tensors of a unit that are not matrices together, for comparison.
// Cost: O(items * (ranks + items)).
struct owner_placement {
  static constexpr std::string_view name = "owner";
  static constexpr bool whole_matrices = true;
  static constexpr bool replicated = false;

  owner_strategy strategy = owner_strategy::balanced;

  [[nodiscard]] std::vector<std::vector<segment>> place(std::span<const placement_item> items,
                                                        int ranks) const {
    return strategy == owner_strategy::balanced ? place_balanced(items, ranks)
                                                : place_roles(items, ranks);
  }

 private:
  static std::vector<std::vector<segment>> place_balanced(std::span<const placement_item> items,
                                                          int ranks) {
    detail::ownership result = detail::assign_by_flops(items, ranks);
    detail::improve_by_exchange(items, result);
    std::vector<std::vector<segment>> segments(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (result.owners[i] != detail::no_owner && items[i].elements() > 0) {
        segments[i].push_back({result.owners[i], 0, items[i].elements()});
      }
    }
    detail::level_with_divisible(items, result.loads, segments);
    return segments;
  }

  std::vector<std::vector<segment>> place_roles(std::span<const placement_item> items,
                                                int ranks) const {
    std::vector<detail::owner_role> roles = detail::collect_roles(items);
    std::vector<index_t> loads(static_cast<std::size_t>(ranks));
    if (strategy == owner_strategy::scope_greedy) {
      detail::assign_by_elements(roles, loads);
    } else {
      detail::for_each_unit(roles, [&](std::span<detail::owner_role> unit) {
        if (strategy == owner_strategy::role_greedy) return detail::assign_by_elements(unit, loads);
        int matrix = 0;
        for (detail::owner_role& role : unit) {
          role.owner = role.tail ? std::min(matrix, ranks - 1) : matrix++ % ranks;
        }
      });
    }
    std::vector<std::vector<segment>> segments(items.size());
    for (const detail::owner_role& role : roles) {
      for (const std::size_t i : role.items) {
        if (items[i].elements() > 0) segments[i].push_back({role.owner, 0, items[i].elements()});
      }
    }
    return segments;
  }
};

}  // namespace mfsdp::inline MFSDP_ABI
