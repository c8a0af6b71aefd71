// row_placement: classic ZeRO-3, the baseline. Every tensor is cut evenly, matrices too.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "mfsdp/layout.hpp"

namespace mfsdp::inline MFSDP_ABI {

// Rows of every item, evenly over the ranks in order; the first `rows % ranks` ranks hold one more.
// An item of one row is cut by elements in the same way. With more ranks than rows the last ranks
// hold nothing of it. Cost: O(items * ranks).
struct row_placement {
  static constexpr std::string_view name = "rows";
  static constexpr bool whole_matrices = false;
  static constexpr bool replicated = false;

  [[nodiscard]] std::vector<std::vector<segment>> place(std::span<const placement_item> items,
                                                        int ranks) const {
    std::vector<std::vector<segment>> segments(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      const auto [item_rows, item_cols] = items[i].shape;
      if (items[i].elements() == 0) continue;
      const index_t rows = item_rows == 1 ? item_cols : item_rows;
      const index_t cols = item_rows == 1 ? 1 : item_cols;
      const auto start = [&](int rank) {
        return rank * (rows / ranks) + std::min<index_t>(rank, rows % ranks);
      };
      for (int rank = 0; rank < std::min<index_t>(rows, ranks); ++rank) {
        segments[i].push_back({rank, start(rank) * cols, (start(rank + 1) - start(rank)) * cols});
      }
    }
    return segments;
  }
};

}  // namespace mfsdp::inline MFSDP_ABI
