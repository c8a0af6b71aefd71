// Schedules: the factor on every learning rate, step by step, for sharded_model::step.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "mfsdp/error.hpp"

namespace mfsdp::inline MFSDP_ABI {

// A schedule is a value: schedule(step) is the factor for a step, of which the first is 1 as in
// step_result. Step s of the warm-up has s / warmup, its last the full rate. A decay begins with
// the full rate and would reach the floor in the first step beyond the end, where it stays: no step
// of the run is spent at a floor of zero.
struct schedule_options {
  std::int64_t steps = 0;   // of the run, warm-up included; it may end within the warm-up
  std::int64_t warmup = 0;  // steps with a rising rate
  double floor = 0;         // of the factor, from 0 to 1
};

namespace detail {

// Errors: spec_error if a length is negative or the floor is not between 0 and 1.
inline schedule_options checked_schedule(schedule_options options) {
  if (options.steps < 0 || options.warmup < 0) {
    throw spec_error(
        fmt::format("a schedule has {} steps and {} of warm-up; neither can be negative",
                    options.steps, options.warmup));
  }
  if (!(options.floor >= 0 && options.floor <= 1)) {
    throw spec_error(
        fmt::format("the floor of a schedule is a factor from 0 to 1, not {}", options.floor));
  }
  return options;
}

[[nodiscard]] inline double warmup_factor(std::int64_t step, std::int64_t warmup) {
  return step < warmup ? static_cast<double>(step) / static_cast<double>(warmup) : 1.0;
}

// How much of a decay has passed that begins after step `from` and ends with step `to`.
[[nodiscard]] inline double decay_progress(std::int64_t step, std::int64_t from, std::int64_t to) {
  if (step <= from) return 0;
  if (step > to) return 1;
  return static_cast<double>(step - 1 - from) / static_cast<double>(to - from);
}

}  // namespace detail

// The full rate after the warm-up, without an end. Errors: spec_error if the warm-up is negative.
class constant_schedule {
 public:
  explicit constant_schedule(std::int64_t warmup = 0)
      : warmup_(detail::checked_schedule({.warmup = warmup}).warmup) {}

  [[nodiscard]] double operator()(std::int64_t step) const {
    return detail::warmup_factor(step, warmup_);
  }

 private:
  std::int64_t warmup_;
};

// A straight line to the floor. Errors: spec_error if a length is negative or the floor is not
// between 0 and 1; so for the next two.
class linear_schedule {
 public:
  explicit linear_schedule(schedule_options options)
      : options_(detail::checked_schedule(options)) {}

  [[nodiscard]] double operator()(std::int64_t step) const {
    const double done = detail::decay_progress(step, options_.warmup, options_.steps);
    return detail::warmup_factor(step, options_.warmup) *
           (options_.floor + (1 - options_.floor) * (1 - done));
  }

 private:
  schedule_options options_;
};

// Half a period of a cosine to the floor. Source: Loshchilov & Hutter, arXiv 1608.03983, without
// restarts.
class cosine_schedule {
 public:
  explicit cosine_schedule(schedule_options options)
      : options_(detail::checked_schedule(options)) {}

  [[nodiscard]] double operator()(std::int64_t step) const {
    const double done = detail::decay_progress(step, options_.warmup, options_.steps);
    return detail::warmup_factor(step, options_.warmup) *
           (options_.floor + (1 - options_.floor) / 2 * (1 + std::cos(std::numbers::pi * done)));
  }

 private:
  schedule_options options_;
};

// Warm-up, full rate, and a cool-down of 1 - sqrt over the last steps: a run can be prolonged from
// any step before the cool-down. Errors: also spec_error if warm-up and cool-down overlap.
// Source: Hu et al., arXiv 2404.06395; the form of the cool-down is the one that Haegele et al.,
// arXiv 2405.18392, found best.
class stable_decay_schedule {
 public:
  stable_decay_schedule(schedule_options options, std::int64_t cooldown)
      : options_(detail::checked_schedule(options)), cooldown_(cooldown) {
    if (cooldown < 0 || cooldown > options.steps - options.warmup) {
      throw spec_error(fmt::format(
          "a cool-down of {} steps does not fit behind {} steps of warm-up into a run of {}",
          cooldown, options.warmup, options.steps));
    }
  }

  [[nodiscard]] double operator()(std::int64_t step) const {
    const double done = detail::decay_progress(step, options_.steps - cooldown_, options_.steps);
    return detail::warmup_factor(step, options_.warmup) *
           (options_.floor + (1 - options_.floor) * (1 - std::sqrt(done)));
  }

 private:
  schedule_options options_;
  std::int64_t cooldown_;
};

}  // namespace mfsdp::inline MFSDP_ABI
