#include "lordo/wall_clock.hpp"

#include <doctest/doctest.h>

namespace wall_clock_test {

TEST_CASE("a ring's all-reduce, and none alone") {
  constexpr lordo::site_link link{"", 1e9, 0.25};
  CHECK(lordo::all_reduce_seconds(1e9, 1, link) == 0);
  CHECK(lordo::all_reduce_seconds(1e9, 2, link) == doctest::Approx(8 + 0.25));
  CHECK(lordo::all_reduce_seconds(1e9, 4, link) == doctest::Approx(12 + 0.25));
}

TEST_CASE("a step computes, and has its share of a meeting: bytes and one latency a round") {
  constexpr lordo::site_link link{"", 1e9, 0.5};
  CHECK(lordo::step_seconds(2, 1e6, 1, 1, 1, link) == 2);
  const double transfer = 4e6 * 2 * 8 * 0.75 / 1e9;
  CHECK(lordo::step_seconds(2, 1e6, 1, 1, 4, link) == doctest::Approx(2 + transfer + 0.5));
  CHECK(lordo::step_seconds(2, 1e6, 10, 2, 4, link) == doctest::Approx(2 + transfer + 0.1));
}

TEST_CASE("6 N operations a token") {
  CHECK(lordo::compute_seconds(1e9, 1e6, 1e15, 0.5) == doctest::Approx(12));
}

}  // namespace wall_clock_test
