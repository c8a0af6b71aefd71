// The balanced strategy of owner_placement: optimizer time first, then resident bytes.
#pragma once

#include <algorithm>
#include <span>
#include <tuple>
#include <vector>

#include "mfsdp/layout.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

inline constexpr int no_owner = -1;

struct rank_load {
  index_t flops = 0;
  index_t bytes = 0;
};

// Who owns each indivisible item, and what that costs every rank.
struct ownership {
  std::vector<int> owners;  // parallel to the items; no_owner if divisible
  std::vector<rank_load> loads;

  void give(std::size_t item, const placement_item& cost, int rank) {
    owners[item] = rank;
    loads[rank].flops += cost.update_flops;
    loads[rank].bytes += cost.resident_bytes;
  }
};

// Longest processing time first (Graham 1969): no rank gets more than 4/3 of the best possible. An
// item that takes no time (a frozen matrix) goes by bytes alone. Cost: O(items * ranks).
[[nodiscard]] inline ownership assign_by_flops(std::span<const placement_item> items, int ranks) {
  std::vector<std::size_t> order;
  std::size_t units = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!items[i].divisible) order.push_back(i);
    units = std::max(units, items[i].unit + 1);
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::tuple(items[b].update_flops, items[b].resident_bytes, a) <
           std::tuple(items[a].update_flops, items[a].resident_bytes, b);
  });

  const auto width = static_cast<std::size_t>(ranks);
  ownership result{std::vector<int>(items.size(), no_owner), std::vector<rank_load>(width)};
  std::vector<index_t> unit_elements(units * width);
  for (const std::size_t i : order) {
    const placement_item& item = items[i];
    index_t* const of_unit = unit_elements.data() + item.unit * width;
    const auto key = [&](int rank) {
      const rank_load& load = result.loads[rank];
      return std::tuple(item.update_flops == 0 ? 0 : load.flops, load.bytes, of_unit[rank]);
    };
    int best = 0;
    for (int rank = 1; rank < ranks; ++rank) {
      if (key(rank) < key(best)) best = rank;
    }
    result.give(i, item, best);
    of_unit[best] += item.elements();
  }
  return result;
}

// Local search: the slowest rank hands a matrix to another rank, or swaps it for a cheaper one, as
// long as both stay below the old maximum of time and at most at the old maximum of bytes. Ends at
// 1/1024 above the lower bound. Cost: at most 4 * ranks rounds of O(own items * items).
inline void improve_by_exchange(std::span<const placement_item> items, ownership& result) {
  const auto ranks = static_cast<index_t>(result.loads.size());
  index_t total = 0;
  index_t largest = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (result.owners[i] == no_owner) continue;
    total += items[i].update_flops;
    largest = std::max(largest, items[i].update_flops);
  }
  const index_t bound = std::max(largest, total / ranks + (total % ranks != 0));

  const placement_item nothing{};
  for (index_t round = 0; round < 4 * ranks; ++round) {
    const auto by_flops = [](const rank_load& a, const rank_load& b) { return a.flops < b.flops; };
    const auto by_bytes = [](const rank_load& a, const rank_load& b) { return a.bytes < b.bytes; };
    const auto slowest = std::max_element(result.loads.begin(), result.loads.end(), by_flops);
    const auto fullest = std::max_element(result.loads.begin(), result.loads.end(), by_bytes);
    const auto from = static_cast<int>(slowest - result.loads.begin());
    if (slowest->flops - bound <= bound / 1024) return;

    struct {
      index_t flops;
      std::size_t given, taken;
      int rank;
    } best{slowest->flops, items.size(), items.size(), no_owner};
    const auto consider = [&](std::size_t given, std::size_t taken, int rank) {
      const placement_item& out = items[given];
      const placement_item& in = taken < items.size() ? items[taken] : nothing;
      const rank_load& other = result.loads[rank];
      const index_t flops = std::max(slowest->flops - out.update_flops + in.update_flops,
                                     other.flops + out.update_flops - in.update_flops);
      const index_t bytes = std::max(slowest->bytes - out.resident_bytes + in.resident_bytes,
                                     other.bytes + out.resident_bytes - in.resident_bytes);
      if (flops < best.flops && bytes <= fullest->bytes) best = {flops, given, taken, rank};
    };
    for (std::size_t given = 0; given < items.size(); ++given) {
      if (result.owners[given] != from) continue;
      for (int rank = 0; rank < ranks; ++rank) {
        if (rank != from) consider(given, items.size(), rank);
      }
      for (std::size_t taken = 0; taken < items.size(); ++taken) {
        const int rank = result.owners[taken];
        if (rank != no_owner && rank != from) consider(given, taken, rank);
      }
    }
    if (best.rank == no_owner) return;

    const auto hand_over = [&](std::size_t item, int to) {
      rank_load& old = result.loads[result.owners[item]];
      old.flops -= items[item].update_flops;
      old.bytes -= items[item].resident_bytes;
      result.give(item, items[item], to);
    };
    hand_over(best.given, best.rank);
    if (best.taken < items.size()) hand_over(best.taken, from);
  }
}

// Water level: how many bytes each rank may still take so that `filler` more bytes raise the lowest
// ranks to one common level. The quotas sum to at least `filler`.
[[nodiscard]] inline std::vector<index_t> level_quotas(std::span<const rank_load> loads,
                                                       index_t filler) {
  std::vector<index_t> heights;
  for (const rank_load& load : loads) heights.push_back(load.bytes);
  std::sort(heights.begin(), heights.end());
  index_t level = 0;
  index_t below = filler;
  for (std::size_t i = 0; i < heights.size() && (i == 0 || level > heights[i]); ++i) {
    const auto ranks = static_cast<index_t>(i + 1);
    below += heights[i];
    level = below / ranks + (below % ranks != 0);
  }
  std::vector<index_t> quotas;
  for (const rank_load& load : loads) quotas.push_back(std::max<index_t>(0, level - load.bytes));
  return quotas;
}

// The allowed cut (a multiple of block_elements, or the end) nearest to a position.
[[nodiscard]] constexpr index_t nearest_cut(index_t position, index_t elements) {
  constexpr auto block = static_cast<index_t>(block_elements);
  position = std::clamp<index_t>(position, 0, elements);
  const index_t low = position / block * block;
  const index_t high = std::min(low + block, elements);
  return position - low < high - position ? low : high;
}

// Lays the divisible items end to end and cuts the line where the ranks' quotas end: at most
// items + ranks segments in all, and rounding to blocks never adds up.
inline void level_with_divisible(std::span<const placement_item> items,
                                 std::span<const rank_load> loads,
                                 std::vector<std::vector<segment>>& segments) {
  const auto fills = [](const placement_item& item) {
    return item.divisible && item.elements() > 0;
  };
  const auto bytes_each = [](const placement_item& item) {
    return std::max<index_t>(1, item.resident_bytes / item.elements());
  };
  index_t filler = 0;
  for (const placement_item& item : items) {
    if (fills(item)) filler += item.elements() * bytes_each(item);
  }
  const std::vector<index_t> quotas = level_quotas(loads, filler);

  int rank = 0;
  index_t quota_end = quotas[0];  // on the line, in bytes
  index_t item_start = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!fills(items[i])) continue;
    const index_t elements = items[i].elements();
    const index_t bytes = bytes_each(items[i]);
    for (index_t offset = 0; offset < elements;) {
      const index_t cut = nearest_cut((quota_end - item_start) / bytes, elements);
      if (cut > offset) {
        segments[i].push_back({rank, offset, cut - offset});
        offset = cut;
      }
      if (offset < elements) quota_end += quotas[++rank];
    }
    item_start += elements * bytes;
  }
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
