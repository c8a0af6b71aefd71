#include "mfsdp/precision.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace precision_test {

using namespace mfsdp;

namespace {

constexpr index_t draws = 100'000;

// The share of equal bits of two sequences; one half if they know nothing of each other.
double agreement(std::uint64_t a, std::uint64_t b, index_t lag = 0) {
  std::int64_t equal = 0;
  for (index_t i = 0; i < draws; ++i) {
    equal += std::popcount(~(rounding_bits(a, i) ^ rounding_bits(b, i + lag)));
  }
  return static_cast<double>(equal) / (32.0 * static_cast<double>(draws));
}

// Six standard deviations of that share.
const double chance = 6 * 0.5 / std::sqrt(32.0 * static_cast<double>(draws));

}  // namespace

TEST_CASE("the default is float throughout, a narrow Compute brings float masters") {
  static_assert(!precision<>::converts_updates && !precision<>::has_master);
  static_assert(precision<>::bytes == storage_bytes{});
  using mixed = precision<bfloat16>;
  static_assert(std::same_as<mixed::gradient, bfloat16> && std::same_as<mixed::reduce, float>);
  static_assert(mixed::has_master && !mixed::converts_updates);
  static_assert(mixed::bytes == storage_bytes{2, 2, 4, 4, 4});
  using pure = precision<bfloat16, bfloat16, float, bfloat16, float16>;
  static_assert(!pure::has_master && pure::converts_updates);
  static_assert(pure::bytes == storage_bytes{2, 2, 4, 0, 2});
  CHECK(pure::to_text() == "compute bf16 gradient bf16 reduce fp32 master bf16 state fp16");
}

TEST_CASE("storage of every kind starts at 64 bytes") {
  static_assert(precision<>::bytes.aligned_elements() == 16);
  static_assert(precision<bfloat16>::bytes.aligned_elements() == 32);
  static_assert(precision<float, float16>::bytes.aligned_elements() == 32);
}

TEST_CASE("random bits of other tensors, states, steps and seeds are independent") {
  const rounding_stream base{.seed = 0, .item = 3, .value = 1, .step = 100};
  const std::vector<rounding_stream> others = {{1, 3, 1, 100}, {0, 4, 1, 100}, {0, 3, 2, 100},
                                               {0, 3, 1, 101}, {0, 1, 3, 100}, {3, 0, 1, 100},
                                               {0, 2, 1, 101}, {0, 3, 0, 101}};
  for (const rounding_stream& other : others) {
    CAPTURE(other.item);
    CAPTURE(other.step);
    CHECK(std::abs(agreement(base.key(), other.key()) - 0.5) < chance);
  }
  for (const index_t lag : {1, 2, 1024, 65536}) {
    CAPTURE(lag);
    CHECK(std::abs(agreement(base.key(), base.key(), lag) - 0.5) < chance);
  }
  CHECK(agreement(base.key(), base.key()) == 1);
}

TEST_CASE("no two streams of a large model have a key in common") {
  std::set<std::uint64_t> keys;
  std::size_t streams = 0;
  for (std::size_t item = 0; item < 200; ++item) {
    for (std::size_t value = 0; value < 4; ++value) {
      for (std::int64_t step = 1; step <= 100; ++step) {
        keys.insert(rounding_stream{0, item, value, step}.key());
        ++streams;
      }
    }
  }
  CHECK(keys.size() == streams);
}

TEST_CASE("the mean over elements, and that over steps, is the value") {
  const float value = 1.0f + 0.3f * 0x1p-7f;
  const auto mean = [&](auto bits_of) {
    double sum = 0;
    for (index_t i = 0; i < draws; ++i) {
      sum += static_cast<double>(bfloat16::stochastic(value, bits_of(i)));
    }
    return sum / static_cast<double>(draws);
  };
  // Five standard deviations of a choice between 1 and 1 + 2^-7.
  const double tolerance = 5 * 0x1p-7 * std::sqrt(0.3 * 0.7 / static_cast<double>(draws));
  const std::uint64_t key = rounding_stream{7, 1, 0, 1}.key();
  CHECK(std::abs(mean([&](index_t i) { return rounding_bits(key, i); }) -
                 static_cast<double>(value)) < tolerance);
  CHECK(
      std::abs(mean([](index_t i) { return rounding_bits(rounding_stream{7, 1, 0, i}.key(), 5); }) -
               static_cast<double>(value)) < tolerance);
}

}  // namespace precision_test
