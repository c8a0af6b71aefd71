// A checksum that does not depend on how an array is cut.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "mfsdp/precision.hpp"
#include "mfsdp/runtime/widen.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// Of elements first, first + 1, ... of an array, in host memory: the hash of a whole is the sum of
// those of its parts, wherever it is cut. Depends on bits and places, on all 64 bits of these; a
// Word is as wide as an element, 16 or 32 bits. Multiples of the golden ratio are far apart: places
// less than 2^30 from each other have no key in common, whatever their elements.
template <class Word>
[[nodiscard]] std::uint64_t bits_hash_of(std::span<const std::byte> elements, index_t first) {
  std::uint64_t sum = 0;
  const auto place = static_cast<std::uint64_t>(first);
  const std::size_t count = elements.size() / sizeof(Word);
  for (std::size_t i = 0; i < count; ++i) {
    Word bits;
    std::memcpy(&bits, elements.data() + i * sizeof(Word), sizeof(Word));
    sum += mix((place + i) * golden_gamma + bits);
  }
  return sum;
}

[[nodiscard]] inline std::uint64_t bits_hash_of(std::span<const std::byte> elements, index_t first,
                                                std::size_t width) {
  switch (width) {
    case 2:
      return bits_hash_of<std::uint16_t>(elements, first);
    case 4:
      return bits_hash_of<std::uint32_t>(elements, first);
    default:
      throw std::logic_error(fmt::format("bits_hash: elements of {} bytes", width));
  }
}

// The same of elements that a backend keeps. Cost: reads all of them, in parts of widened_part on
// the host.
template <class B, class T>
[[nodiscard]] std::uint64_t bits_hash(B& backend, std::span<T> values, index_t first) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4);
  using element = std::remove_const_t<T>;
  std::vector<element> host(part_of(std::ssize(values)));
  std::uint64_t sum = 0;
  for_each_part(std::ssize(values), widened_part, [&](index_t at, index_t count) {
    const std::span<element> part = slice(std::span(host), 0, count);
    backend.copy(std::span<const element>(slice(values, at, count)), part);
    sum += bits_hash_of(std::as_bytes(part), first + at, sizeof(T));
  });
  return sum;
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
