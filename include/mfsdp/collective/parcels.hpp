// parcels: how the pieces of a collective are cut into what travels at once, and what an operation
// does to their elements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include "mfsdp/concepts.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// What an operation does to elements, without their types.
struct message_arithmetic {
  index_t term_size = 0;  // bytes of what a rank holds
  index_t sum_size = 0;   // bytes of a sum, and of the output
  bool same = true;       // one type
  void (*begin)(const std::byte* term, std::byte* sum, index_t count) = nullptr;
  void (*add)(const std::byte* term, std::byte* sum, index_t count) = nullptr;
  void (*put)(const std::byte* sum, std::byte* output, index_t count, reduce_into) = nullptr;
};

template <class From, class To>
[[nodiscard]] constexpr message_arithmetic arithmetic_of() {
  static_assert(std::is_trivially_copyable_v<From> && std::is_trivially_copyable_v<To>);
  // Buffers hold elements at multiples of their size.
  return {sizeof(From),
          sizeof(To),
          std::is_same_v<From, To>,
          [](const std::byte* term, std::byte* sum, index_t count) {
            const From* in = reinterpret_cast<const From*>(term);
            To* out = reinterpret_cast<To*>(sum);
            for (index_t i = 0; i < count; ++i) out[i] = static_cast<To>(in[i]);
          },
          [](const std::byte* term, std::byte* sum, index_t count) {
            const From* in = reinterpret_cast<const From*>(term);
            To* out = reinterpret_cast<To*>(sum);
            for (index_t i = 0; i < count; ++i) out[i] = out[i] + static_cast<To>(in[i]);
          },
          [](const std::byte* sum, std::byte* output, index_t count, reduce_into into) {
            const To* in = reinterpret_cast<const To*>(sum);
            To* out = reinterpret_cast<To*>(output);
            if (into == reduce_into::write) {
              std::copy_n(in, count, out);
            } else {
              for (index_t i = 0; i < count; ++i) out[i] = out[i] + in[i];
            }
          }};
}

// What travels at once: parts of one owner's pieces.
struct parcel {
  struct stretch {
    index_t in = 0;   // in the input
    index_t out = 0;  // in the output
    index_t count = 0;
  };
  std::vector<stretch> stretches{};
  index_t count = 0;
};

// Large pieces are cut evenly, small ones share a parcel.
[[nodiscard]] inline std::vector<parcel> parcels_of(std::span<const piece> pieces, int owner,
                                                    bool gathers, index_t largest) {
  std::vector<parcel> parcels;
  bool open = false;
  for (const piece& p : pieces) {
    if (p.rank != owner || p.count == 0) continue;
    const index_t in = gathers ? p.local : p.full;
    const index_t out = gathers ? p.full : p.local;
    const bool shared = p.count <= largest / 16;
    if (shared && open && parcels.back().count + p.count <= largest) {
      parcels.back().stretches.push_back({in, out, p.count});
      parcels.back().count += p.count;
      continue;
    }
    const index_t parts = (p.count + largest - 1) / largest;
    for (index_t i = 0; i < parts; ++i) {
      const index_t begin = p.count * i / parts;
      const index_t count = p.count * (i + 1) / parts - begin;
      parcels.push_back({{{in + begin, out + begin, count}}, count});
    }
    open = shared;
  }
  return parcels;
}

// Cuts the pieces of an all-reduce evenly over the ranks, whoever holds them.
[[nodiscard]] inline std::vector<piece> spread(std::span<const piece> pieces, int ranks) {
  index_t total = 0;
  for (const piece& p : pieces) total += p.count;
  const index_t share = std::max<index_t>(1, (total + ranks - 1) / ranks);
  std::vector<piece> cut;
  index_t done = 0;
  for (piece p : pieces) {
    while (p.count > 0) {
      const index_t count = std::min(p.count, share - done % share);
      cut.push_back({static_cast<int>(done / share), p.full, p.local, count});
      p.full += count;
      p.local += count;
      p.count -= count;
      done += count;
    }
  }
  return cut;
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
