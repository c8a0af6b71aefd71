// The sum that ranks of one process make out of each other's memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "mfsdp/concepts.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// Sums a piece over `sources`, which are unit buffers of From and at least one, in their order and
// in the type To; the piece's elements of the sum reach `output`.
template <class From, class To>
void add_in_rank_order(std::span<const void* const> sources, const piece& p, To* output,
                       reduce_into into) {
  std::array<To, block_elements> sum;  // stays in the first-level cache
  for (index_t done = 0; done < p.count;) {
    const index_t count = std::min<index_t>(p.count - done, static_cast<index_t>(block_elements));
    const auto input = [&](std::size_t rank) {
      return static_cast<const From*>(sources[rank]) + p.full + done;
    };
    const auto widen = [](From term) { return static_cast<To>(term); };
    std::transform(input(0), input(0) + count, sum.data(), widen);
    for (std::size_t rank = 1; rank < sources.size(); ++rank) {
      const From* term = input(rank);
      for (index_t i = 0; i < count; ++i) {
        To& total = sum[static_cast<std::size_t>(i)];
        total = total + widen(term[i]);
      }
    }
    To* out = output + done;
    if (into == reduce_into::add) {
      for (index_t i = 0; i < count; ++i) out[i] = out[i] + sum[static_cast<std::size_t>(i)];
    } else {
      std::copy_n(sum.data(), count, out);
    }
    done += count;
  }
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
