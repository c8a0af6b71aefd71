// periods: at which steps sites meet.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "mfsdp/error.hpp"

namespace lordo::inline MFSDP_ABI {

namespace detail {

// What operations once in a period come to in a step. Planners may ask before the period is
// checked.
[[nodiscard]] constexpr std::int64_t in_a_step(std::int64_t operations, std::int64_t period) {
  return operations / std::max(period, std::int64_t{1});
}

}  // namespace detail

// In steps of the model. An item is due with period K at the steps t with
// (t + stagger * item) mod K = 0: all items together, or, with stagger s, s steps apart.
struct sync_periods {
  std::int64_t parameters = 32;                // positive
  std::optional<std::int64_t> first_moment{};  // if not given, as parameters; 0: never
  std::optional<std::int64_t> second_moment{};
  std::int64_t stagger = 0;

  [[nodiscard]] constexpr bool due(std::int64_t period, std::int64_t step, std::size_t item) const {
    if (period <= 0) return false;
    // By doubling, since stagger * item need not fit.
    const auto modulus = static_cast<std::uint64_t>(period);
    std::uint64_t sum = static_cast<std::uint64_t>(step) % modulus;
    std::uint64_t shift = static_cast<std::uint64_t>(stagger) % modulus;
    for (std::size_t times = item; times > 0; times /= 2) {
      if (times % 2 == 1) sum = (sum + shift) % modulus;
      shift = (shift + shift) % modulus;
    }
    return sum == 0;
  }
  [[nodiscard]] constexpr bool parameters_due(std::int64_t step, std::size_t item) const {
    return due(parameters, step, item);
  }
  [[nodiscard]] constexpr bool first_moment_due(std::int64_t step, std::size_t item) const {
    return due(first_moment.value_or(parameters), step, item);
  }
  [[nodiscard]] constexpr bool second_moment_due(std::int64_t step, std::size_t item) const {
    return due(second_moment.value_or(parameters), step, item);
  }

  // Errors: spec_error in the name of the rule.
  void check(std::string_view rule) const {
    if (parameters < 1) {
      throw mfsdp::spec_error(fmt::format(
          "{}: periods.parameters is {}; parameters must meet after a positive number of steps",
          rule, parameters));
    }
    for (const auto& moment : {first_moment, second_moment}) {
      if (moment.value_or(0) < 0) {
        throw mfsdp::spec_error(fmt::format(
            "{}: the period of a moment is {}; give the number of steps, or 0 for never", rule,
            *moment));
      }
    }
    if (stagger < 0) {
      throw mfsdp::spec_error(fmt::format(
          "{}: periods.stagger is {}; give the steps between two items, or 0", rule, stagger));
    }
  }
  [[nodiscard]] std::string options() const {
    return fmt::format("{} {} {} {}", parameters, first_moment.value_or(parameters),
                       second_moment.value_or(parameters), stagger);
  }
};

}  // namespace lordo::inline MFSDP_ABI
