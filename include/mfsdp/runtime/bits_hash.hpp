// Whether two ranks hold the same bits, by a hash that does not depend on how they are cut.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "mfsdp/precision.hpp"
#include "mfsdp/runtime/widen.hpp"
#include "mfsdp/view.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// Of elements first, first + 1, ...: the hash of a whole is the sum of those of its parts, wherever
// it is cut. Cost: reads all of them, in parts of widened_part on the host.
template <class B, class T>
[[nodiscard]] std::uint64_t bits_hash(B& backend, std::span<T> values, index_t first) {
  using word = std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>;
  static_assert(sizeof(word) == sizeof(T));
  std::vector<std::remove_const_t<T>> host(
      static_cast<std::size_t>(std::min(widened_part, std::ssize(values))));
  std::uint64_t sum = 0;
  for_each_part(std::ssize(values), widened_part, [&](index_t at, index_t count) {
    const auto part = slice(std::span(host), 0, count);
    backend.copy(std::span<const T>(slice(values, at, count)), part);
    for (index_t i = 0; i < count; ++i) {
      const auto bits = std::bit_cast<word>(part[static_cast<std::size_t>(i)]);
      sum += mix((static_cast<std::uint64_t>(first + at + i) << 32) + bits);
    }
  });
  return sum;
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
