#include "mfsdp/runtime/bits_hash.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <set>
#include <span>
#include <stdexcept>
#include <vector>

namespace bits_hash_test {

namespace {

using mfsdp::index_t;
using mfsdp::detail::bits_hash_of;

std::uint64_t hash_of_words(std::span<const std::uint32_t> words, index_t first) {
  return bits_hash_of<std::uint32_t>(std::as_bytes(words), first);
}

constexpr std::array places{index_t{0},       (index_t{1} << 32) - 200, index_t{1} << 32,
                            index_t{1} << 33, index_t{1} << 40,         (index_t{1} << 57) + 5};

}  // namespace

TEST_CASE("a hash is the sum of those of the parts, at any place") {
  std::vector<std::uint32_t> words;
  for (std::uint32_t i = 0; i < 37; ++i) words.push_back(i * 0x9E37'79B9);
  const std::span<const std::uint32_t> all(words);
  for (const index_t place : places) {
    CAPTURE(place);
    for (std::size_t cut = 0; cut <= all.size(); ++cut) {
      CHECK(hash_of_words(all, place) ==
            hash_of_words(all.first(cut), place) +
                hash_of_words(all.subspan(cut), place + static_cast<index_t>(cut)));
    }
  }
}

TEST_CASE("every place and every element has a hash of its own, also from 2^32 on") {
  std::set<std::uint64_t> hashes;
  std::size_t count = 0;
  for (const index_t place : places) {
    for (index_t next = 0; next < 50; ++next) {
      for (const std::uint32_t bits : {0u, 1u, 2u, 0x3F80'0000u, 0x8000'0000u, 0xFFFF'FFFFu}) {
        const std::array one{bits};
        hashes.insert(hash_of_words(one, place + 64 + next));
        ++count;
      }
    }
  }
  CHECK(hashes.size() == count);
  // Elements that change places change the sum.
  const std::array words{1u, 2u};
  const std::array swapped{2u, 1u};
  for (const index_t place : places) {
    CHECK(hash_of_words(words, place) != hash_of_words(swapped, place));
  }
}

TEST_CASE("elements of a width that no type has are refused") {
  const std::array words{1u, 2u};
  CHECK(bits_hash_of(std::as_bytes(std::span(words)), 3, 4) == hash_of_words(words, 3));
  CHECK_THROWS_AS((void)bits_hash_of(std::as_bytes(std::span(words)), 0, 8), std::logic_error);
}

}  // namespace bits_hash_test
