// A checksum that does not depend on how an array is cut.
#pragma once

#include <algorithm>
#include <array>
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

// The element x at place 1024 b + r counts as m(b) (a(r) xor x) h(r) modulo 2^64, where a, h and m
// are pseudo-random and h and m odd: no change of one element leaves the sum as it was. h has no
// order that places have, so that equal changes in several places do not cancel, as they would with
// multiples of one number. The sum over r is one vector multiplication for every few elements.
struct bits_hash_keys {
  static constexpr std::size_t period = 1024;

  std::array<std::uint32_t, period> added{};       // a
  std::array<std::uint32_t, period> multiplied{};  // h

  constexpr bits_hash_keys() {
    for (std::size_t r = 0; r < period; ++r) {
      const std::uint64_t key = mix((r + 1) * golden_gamma);
      added[r] = static_cast<std::uint32_t>(key);
      multiplied[r] = static_cast<std::uint32_t>(key >> 32) | 1;
    }
  }

  [[nodiscard]] static constexpr std::uint64_t of_block(std::uint64_t block) {  // m
    return mix(~block * golden_gamma) | 1;
  }
};
inline constexpr bits_hash_keys hash_keys;

// Of elements first, first + 1, ... of an array, in host memory: the hash of a whole is the sum of
// those of its parts, wherever it is cut. Depends on bits and places, on all 64 bits of these; a
// Word is as wide as an element, 16 or 32 bits.
template <class Word>
[[nodiscard]] std::uint64_t bits_hash_of(std::span<const std::byte> elements, index_t first) {
  constexpr std::size_t period = bits_hash_keys::period;
  std::uint64_t sum = 0;
  const std::size_t count = elements.size() / sizeof(Word);
  for (std::size_t i = 0; i < count;) {
    const std::uint64_t place = static_cast<std::uint64_t>(first) + i;
    const std::size_t r = place % period;
    const std::size_t here = std::min(count - i, period - r);
    const std::byte* const from = elements.data() + i * sizeof(Word);
    const std::uint32_t* const added = hash_keys.added.data() + r;
    const std::uint32_t* const multiplied = hash_keys.multiplied.data() + r;
    std::uint64_t of_block = 0;
    for (std::size_t j = 0; j < here; ++j) {
      Word bits;
      std::memcpy(&bits, from + j * sizeof(Word), sizeof(Word));
      of_block += std::uint64_t{added[j] ^ bits} * multiplied[j];
    }
    sum += of_block * bits_hash_keys::of_block(place / period);
    i += here;
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
