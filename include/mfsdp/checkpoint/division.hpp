// Who writes what of a model: every element once, the work spread over all ranks of a site.
#pragma once

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "mfsdp/checkpoint/types.hpp"
#include "mfsdp/plan.hpp"
#include "mfsdp/runtime/arrays.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// Elements first ... first + count - 1 of an array, and the rank of the site that writes them.
struct written_part {
  std::size_t array = 0;
  index_t first = 0;
  index_t count = 0;
  int rank = 0;
};

// Parts that one rank of each shard group holds, or all do. Those of one rank that touch are one.
[[nodiscard]] inline std::vector<written_part> parts_of_ranks(const plan& p,
                                                              std::span<const model_array> arrays) {
  std::vector<written_part> parts;
  const auto add = [&](std::size_t array, index_t first, index_t count, int rank) {
    if (count == 0) return;
    if (!parts.empty()) {
      written_part& last = parts.back();
      if (last.array == array && last.rank == rank && last.first + last.count == first) {
        last.count += count;
        return;
      }
    }
    parts.push_back({array, first, count, rank});
  };
  std::vector<std::vector<std::size_t>> items(p.tensors.size());
  for (std::size_t i = 0; i < p.items.size(); ++i) items[p.items[i].tensor].push_back(i);
  for (std::size_t a = 0; a < arrays.size(); ++a) {
    const model_array& array = arrays[a];
    if (array.everywhere) {
      add(a, 0, array.elements, 0);
    } else if (!array.is_state()) {
      for (const std::size_t i : items[array.tensor]) {
        for (const segment& s : p.segments[i])
          add(a, p.items[i].offset + s.offset, s.count, s.rank);
      }
    } else if (p.segments[array.item].size() == 1) {
      add(a, 0, array.elements, p.segments[array.item][0].rank);
    } else {
      for (const segment& s : p.segments[array.item]) add(a, s.offset, s.count, s.rank);
    }
  }
  return parts;
}

// The part, of some ordered by array and first element, that has this element; null if none has.
[[nodiscard]] inline const written_part* find_part(std::span<const written_part> parts,
                                                   std::size_t array, index_t element) {
  const auto after = std::upper_bound(parts.begin(), parts.end(), std::pair(array, element),
                                      [](const auto& key, const written_part& part) {
                                        return key < std::pair(part.array, part.first);
                                      });
  if (after == parts.begin()) return nullptr;
  const written_part& part = *(after - 1);
  return part.array == array && element < part.first + part.count ? &part : nullptr;
}

// By array, then by first element. What several ranks hold alike is written by the one that has the
// least to write. A pure function, equal on all ranks.
[[nodiscard]] inline std::vector<written_part> divide_writing(const plan& p,
                                                              std::span<const model_array> arrays,
                                                              int replicas) {
  std::vector<written_part> parts = parts_of_ranks(p, arrays);
  std::vector<index_t> load(static_cast<std::size_t>(p.ranks * replicas), 0);
  // What more ranks share comes later, so that it can level what has gone before; large parts
  // first.
  std::vector<written_part*> order;
  for (written_part& part : parts) order.push_back(&part);
  const auto bytes = [&](const written_part& part) {
    return part.count * bytes_of_type(arrays[part.array].type);
  };
  std::ranges::sort(order, [&](const written_part* a, const written_part* b) {
    return std::tuple(arrays[a->array].everywhere, bytes(*b), a) <
           std::tuple(arrays[b->array].everywhere, bytes(*a), b);
  });
  for (written_part* part : order) {
    const int step = arrays[part->array].everywhere ? 1 : p.ranks;
    int least = part->rank;
    for (int rank = part->rank; rank < p.ranks * replicas; rank += step) {
      if (load[static_cast<std::size_t>(rank)] < load[static_cast<std::size_t>(least)])
        least = rank;
    }
    part->rank = least;
    load[static_cast<std::size_t>(least)] += bytes(*part);
  }
  return parts;
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
