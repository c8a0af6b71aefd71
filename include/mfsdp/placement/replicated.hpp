// replicated_placement: every rank holds and updates everything, plain data parallelism.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "mfsdp/layout.hpp"

namespace mfsdp::inline MFSDP_ABI {

// Nothing to decide: the planner reads `replicated` and gives every item to every rank.
struct replicated_placement {
  static constexpr std::string_view name = "replicated";
  static constexpr bool whole_matrices = true;
  static constexpr bool replicated = true;

  // Present for the concept; nobody calls it.
  [[nodiscard]] std::vector<std::vector<segment>> place(std::span<const placement_item> items,
                                                        int) const {
    return std::vector<std::vector<segment>>(items.size());
  }
};

}  // namespace mfsdp::inline MFSDP_ABI
