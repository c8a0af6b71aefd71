#include "mfsdp/schedule.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

namespace schedule_test {

using namespace mfsdp;

namespace {

constexpr std::int64_t steps = 100;
constexpr std::int64_t warmup = 10;
constexpr std::int64_t cooldown = 25;
constexpr double floor_factor = 0.1;
constexpr schedule_options options{steps, warmup, floor_factor};

// What holds for every schedule: rises by equal amounts, never leaves [floor, 1] after that, never
// rises again, no step changes it by more than `largest_change`.
template <class Schedule>
void check_shape(const Schedule& schedule, double floor, double largest_change) {
  for (std::int64_t step = 1; step <= warmup; ++step) {
    CHECK(schedule(step) == doctest::Approx(static_cast<double>(step) / warmup));
  }
  CHECK(schedule(warmup) == 1.0);
  CHECK(schedule(warmup + 1) == 1.0);
  for (std::int64_t step = warmup + 1; step <= steps + 5; ++step) {
    CAPTURE(step);
    CHECK(schedule(step) >= floor);
    CHECK(schedule(step + 1) <= schedule(step));
    CHECK(schedule(step) - schedule(step + 1) <= largest_change);
  }
}

}  // namespace

TEST_CASE("the factor rises to one, stays within its bounds and makes no jump") {
  constexpr double decay = steps - warmup;
  check_shape(constant_schedule(warmup), 1, 0);
  check_shape(linear_schedule(options), floor_factor, 1.001 * 0.9 / decay);
  check_shape(cosine_schedule(options), floor_factor, 0.9 * std::numbers::pi / 2 / decay);
  check_shape(stable_decay_schedule(options, cooldown), floor_factor,
              1.001 * 0.9 / std::sqrt(static_cast<double>(cooldown)));
}

TEST_CASE("the floor is reached in the first step beyond the end and kept") {
  const auto check_end = [](const auto& schedule) {
    CHECK(schedule(steps) > floor_factor);
    CHECK(schedule(steps + 1) == doctest::Approx(floor_factor).epsilon(1e-15));
    CHECK(schedule(10 * steps) == schedule(steps + 1));
  };
  check_end(linear_schedule(options));
  check_end(cosine_schedule(options));
  check_end(stable_decay_schedule(options, cooldown));
  CHECK(linear_schedule({.steps = steps})(steps + 1) == 0.0);
  CHECK(linear_schedule({.steps = steps})(steps) == doctest::Approx(1.0 / steps));
  CHECK(constant_schedule(warmup)(std::numeric_limits<std::int64_t>::max()) == 1.0);
}

TEST_CASE("values half way") {
  constexpr std::int64_t middle = warmup + (steps - warmup) / 2 + 1;
  CHECK(linear_schedule(options)(middle) == doctest::Approx(0.55));
  CHECK(cosine_schedule(options)(middle) == doctest::Approx(0.55));
  CHECK(cosine_schedule(options)(warmup + 1 + 30) == doctest::Approx(0.1 + 0.9 * 0.75));
  const stable_decay_schedule stable(options, cooldown);
  CHECK(stable(steps - cooldown) == 1.0);
  CHECK(stable(steps - cooldown + 1) == 1.0);
  CHECK(stable(steps - cooldown + 2) == doctest::Approx(0.1 + 0.9 * (1 - 0.2)));
  CHECK(stable(steps) == doctest::Approx(0.1 + 0.9 * (1 - std::sqrt(24.0 / 25))));
}

TEST_CASE("no warm-up starts at the full rate, and a run may end in its warm-up") {
  CHECK(constant_schedule()(1) == 1.0);
  CHECK(linear_schedule({.steps = 4})(1) == 1.0);
  CHECK(cosine_schedule({.steps = 4})(1) == 1.0);
  CHECK(cosine_schedule({.steps = 4, .warmup = 20})(4) == 0.2);
  CHECK(cosine_schedule({.steps = 20, .warmup = 20})(20) == 1.0);
  const stable_decay_schedule no_cooldown({.steps = 4}, 0);
  CHECK(no_cooldown(4) == 1.0);
  CHECK(no_cooldown(5) == 0.0);
}

TEST_CASE("a floor of one is a constant rate") {
  for (const std::int64_t step : {1, 7, 8, 9, 100}) {
    CHECK(linear_schedule({.steps = 8, .floor = 1})(step) == 1.0);
    CHECK(cosine_schedule({.steps = 8, .floor = 1})(step) == 1.0);
    CHECK(stable_decay_schedule({.steps = 8, .floor = 1}, 3)(step) == 1.0);
  }
}

TEST_CASE("options without a meaning are refused") {
  CHECK_THROWS_WITH_AS(constant_schedule(-1),
                       "a schedule has 0 steps and -1 of warm-up; neither can be negative",
                       spec_error);
  CHECK_THROWS_AS(linear_schedule({.steps = -1}), spec_error);
  CHECK_THROWS_AS(cosine_schedule({.steps = 5, .warmup = -1}), spec_error);
  CHECK_THROWS_WITH_AS(cosine_schedule({.steps = 5, .floor = 1.5}),
                       "the floor of a schedule is a factor from 0 to 1, not 1.5", spec_error);
  CHECK_THROWS_AS(linear_schedule({.steps = 5, .floor = -0.1}), spec_error);
  CHECK_THROWS_AS(linear_schedule({.steps = 5, .floor = std::nan("")}), spec_error);
  CHECK_THROWS_AS(stable_decay_schedule({.steps = 5}, -1), spec_error);
  CHECK_THROWS_WITH_AS(
      stable_decay_schedule({.steps = 5, .warmup = 2}, 4),
      "a cool-down of 4 steps does not fit behind 2 steps of warm-up into a run of 5", spec_error);
  CHECK_NOTHROW(stable_decay_schedule({.steps = 5, .warmup = 2}, 3));
}

}  // namespace schedule_test
