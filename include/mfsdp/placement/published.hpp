// MatrixFSDP's published owner rules (arXiv:2607.05895), for comparison. Loads count elements.
#pragma once

#include <algorithm>
#include <numeric>
#include <span>
#include <tuple>
#include <vector>

#include "mfsdp/layout.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// What MatrixFSDP places: one matrix, or everything else of a unit together (the tail).
struct owner_role {
  std::size_t unit = 0;
  bool tail = false;
  std::vector<std::size_t> items;
  index_t elements = 0;
  int owner = 0;
};

// By unit; inside a unit the matrices in order, then the tail.
[[nodiscard]] inline std::vector<owner_role> collect_roles(std::span<const placement_item> items) {
  std::vector<std::size_t> order(items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::tuple(items[a].unit, items[a].divisible, a) <
           std::tuple(items[b].unit, items[b].divisible, b);
  });
  std::vector<owner_role> roles;
  for (const std::size_t i : order) {
    const bool tail = items[i].divisible;
    if (!tail || roles.empty() || !roles.back().tail || roles.back().unit != items[i].unit) {
      roles.push_back({items[i].unit, tail, {}, 0, 0});
    }
    roles.back().items.push_back(i);
    roles.back().elements += items[i].elements();
  }
  return roles;
}

// Largest first (ties: unit, then place in it), each to the rank with the fewest elements so far,
// ties to the lowest rank.
inline void assign_by_elements(std::span<owner_role> roles, std::span<index_t> loads) {
  std::sort(roles.begin(), roles.end(), [](const owner_role& a, const owner_role& b) {
    return std::tuple(b.elements, a.unit, a.tail, a.items.front()) <
           std::tuple(a.elements, b.unit, b.tail, b.items.front());
  });
  for (owner_role& role : roles) {
    const auto least = std::min_element(loads.begin(), loads.end());
    role.owner = static_cast<int>(least - loads.begin());
    *least += role.elements;
  }
}

// Calls f on the roles of each unit.
template <class F>
void for_each_unit(std::span<owner_role> roles, F f) {
  for (auto first = roles.begin(); first != roles.end();) {
    const auto last = std::find_if(
        first, roles.end(), [&](const owner_role& role) { return role.unit != first->unit; });
    f(std::span(first, last));
    first = last;
  }
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
