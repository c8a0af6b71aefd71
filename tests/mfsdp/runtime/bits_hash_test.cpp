#include "mfsdp/runtime/bits_hash.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace bits_hash_test {

namespace {

using mfsdp::index_t;
using mfsdp::detail::bits_hash_of;

template <class Word>
std::uint64_t hash_of(const std::vector<Word>& words, index_t first = 0) {
  return bits_hash_of<Word>(std::as_bytes(std::span(words)), first);
}

std::uint64_t hash_of_words(std::span<const std::uint32_t> words, index_t first) {
  return bits_hash_of<std::uint32_t>(std::as_bytes(words), first);
}

// Some blocks of keys, and a part of one, of values as they are in a model: small, of both signs.
template <class Word>
std::vector<Word> sample_elements() {
  std::vector<Word> words;
  for (int i = 0; i < 5000; ++i) {
    const float value = 0.02f * std::sin(0.37f * static_cast<float>(i));
    words.push_back(
        static_cast<Word>(std::bit_cast<std::uint32_t>(value) >> (32 - 8 * sizeof(Word))));
  }
  return words;
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

TEST_CASE_TEMPLATE("what happens to files changes the hash", Word, std::uint16_t, std::uint32_t) {
  const std::vector<Word> words = sample_elements<Word>();
  const std::uint64_t sum = hash_of(words);
  const auto after = [&](auto change) {
    std::vector<Word> changed = words;
    change(changed);
    return hash_of(changed);
  };
  SUBCASE("a bit of any element") {
    int missed = 0;
    for (std::size_t i = 0; i < words.size(); ++i) {
      for (std::size_t bit = 0; bit < 8 * sizeof(Word); ++bit) {
        std::vector<Word> one{static_cast<Word>(words[i] ^ Word(Word{1} << bit))};
        missed += hash_of(one, index_t(i)) == hash_of<Word>({words[i]}, index_t(i));
      }
    }
    CHECK(missed == 0);
  }
  SUBCASE("two elements, or two pages, change places") {
    for (const std::size_t by : {1u, 2u, 512u, 1024u, 2048u, 4001u}) {
      CAPTURE(by);
      int missed = 0;
      for (std::size_t i = 0; i + by < words.size(); ++i) {
        if (words[i] == words[i + by]) continue;
        missed += after([&](auto& changed) { std::swap(changed[i], changed[i + by]); }) == sum;
        if (i > 100) i += 97;
      }
      CHECK(missed == 0);
    }
    for (const std::ptrdiff_t page : {512, 1024, 2048}) {
      CHECK(sum != after([&](auto& changed) {
              std::swap_ranges(changed.begin(), changed.begin() + page, changed.begin() + page);
            }));
    }
  }
  SUBCASE("a page of zeros, or of another place") {
    for (const std::size_t page : {512u, 1024u, 2048u}) {
      for (std::size_t at = 0; at + 2 * page <= words.size(); at += page) {
        const auto begin = [&](auto& list) { return list.begin() + std::ptrdiff_t(at); };
        CHECK(sum != after([&](auto& changed) { std::fill_n(begin(changed), page, Word{0}); }));
        CHECK(sum != after([&](auto& changed) {
                std::copy_n(begin(words) + std::ptrdiff_t(page), page, begin(changed));
              }));
      }
    }
  }
  SUBCASE("all is moved by some places") {
    std::set<std::uint64_t> sums;
    for (std::ptrdiff_t by = 0; by < 3000; by += by < 20 ? 1 : 331) {
      sums.insert(after([&](auto& changed) {
        std::rotate(changed.begin(), changed.begin() + by, changed.end());
      }));
      sums.insert(hash_of(words, by + 1));
    }
    CHECK(sums.size() == 2 * 30);
  }
  SUBCASE("zeros at other places, or more of them") {
    std::set<std::uint64_t> sums;
    for (std::size_t count = 1; count < 3000; ++count) {
      sums.insert(hash_of(std::vector<Word>(count, Word{0})));
    }
    CHECK(sums.size() == 2999);
  }
}

// A bit that is stuck in some elements: differences of both signs. With multiples of one number as
// factors of the places those of four elements would cancel in one case of thirty.
TEST_CASE_TEMPLATE("the same change in several places changes the hash", Word, std::uint16_t,
                   std::uint32_t) {
  const std::vector<Word> words = sample_elements<Word>();
  for (const std::size_t apart : {1u, 2u, 16u, 512u, 1024u}) {
    CAPTURE(apart);
    int missed = 0;
    for (std::size_t count = 2; count <= 4; ++count) {
      for (std::size_t first = 0; first + count * apart < words.size(); ++first) {
        for (const std::size_t bit : {std::size_t{0}, 8 * sizeof(Word) - 1}) {
          std::uint64_t before = 0;
          std::uint64_t after = 0;
          for (std::size_t k = 0; k < count; ++k) {
            const std::size_t place = first + k * apart;
            before += hash_of<Word>({words[place]}, index_t(place));
            after += hash_of<Word>({static_cast<Word>(words[place] ^ Word(Word{1} << bit))},
                                   index_t(place));
          }
          missed += before == after;
        }
      }
    }
    CHECK(missed == 0);
  }
}

TEST_CASE("no two places of a block count alike") {
  const auto& factors = mfsdp::detail::hash_keys.multiplied;
  CHECK(std::set<std::uint32_t>(factors.begin(), factors.end()).size() == factors.size());
  CHECK(std::ranges::all_of(factors, [](std::uint32_t factor) { return factor % 2 == 1; }));
  std::set<std::uint64_t> of_blocks;
  for (std::uint64_t block = 0; block < 10000; ++block) {
    of_blocks.insert(mfsdp::detail::bits_hash_keys::of_block(block));
  }
  CHECK(of_blocks.size() == 10000);
}

TEST_CASE("elements of a width that no type has are refused") {
  const std::array words{1u, 2u};
  CHECK(bits_hash_of(std::as_bytes(std::span(words)), 3, 4) == hash_of_words(words, 3));
  CHECK_THROWS_AS((void)bits_hash_of(std::as_bytes(std::span(words)), 0, 8), std::logic_error);
}

}  // namespace bits_hash_test
