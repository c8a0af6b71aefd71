// adam_options: what the low-rank forms of Adam share, checks of options and the arithmetic.
#pragma once

#include <cmath>
#include <string_view>

#include "mfsdp/error.hpp"
#include "mfsdp/view.hpp"

namespace lordo::inline MFSDP_ABI::detail {

// Errors of all checks: spec_error in the name of the rule if the numbers make no sense.
inline void check_rank(std::string_view rule, mfsdp::index_t rank) {
  if (rank < 1) {
    throw mfsdp::spec_error(
        fmt::format("{}: rank is {}; give the number of directions to keep of a matrix, at least 1",
                    rule, rank));
  }
}

inline void check_not_negative(std::string_view rule, std::string_view option, double value) {
  if (!(value >= 0)) {
    throw mfsdp::spec_error(
        fmt::format("{}: {} is {}; it cannot be negative", rule, option, value));
  }
}

inline void check_adam(std::string_view rule, double beta1, double beta2, double epsilon) {
  if (!(beta1 >= 0 && beta1 < 1) || !(beta2 >= 0 && beta2 < 1)) {
    throw mfsdp::spec_error(
        fmt::format("{}: beta1 is {} and beta2 {}, not both from 0 up to 1", rule, beta1, beta2));
  }
  if (!(epsilon > 0)) {
    throw mfsdp::spec_error(fmt::format(
        "{}: epsilon is {}, which divides by zero where a gradient is zero", rule, epsilon));
  }
}

// The options that every rule with a Projector has.
template <class Rule>
void check_common_options(const Rule& rule) {
  check_rank(Rule::name, rule.rank);
  check_not_negative(Rule::name, "learning_rate", rule.learning_rate);
  check_not_negative(Rule::name, "weight_decay", rule.weight_decay);
  if constexpr (requires { rule.projector.check(); }) rule.projector.check();
}

// A kernel of Backend::transform: the moments u and v take g, which becomes the step
// (momentum u + gradient g) / d, with d = unbias sqrt(v) + epsilon.
template <class T>
struct adam_kernel {
  T keep1, take1, keep2, take2, floor;
  T momentum = 1;
  T gradient = 0;
  T unbias = 1;

  [[nodiscard]] static adam_kernel of(double beta1, double beta2, double epsilon) {
    return {static_cast<T>(beta1), static_cast<T>(1 - beta1), static_cast<T>(beta2),
            static_cast<T>(1 - beta2), static_cast<T>(epsilon)};
  }

  MFSDP_HOST_DEVICE void operator()(auto& u, auto& v, auto& g) const {
    using std::sqrt;
    take(u, v, g);
    g = (momentum * u + gradient * g) / (unbias * sqrt(v) + floor);
  }
  // Keeps d.
  MFSDP_HOST_DEVICE void operator()(auto& u, auto& v, auto& g, auto& d) const {
    using std::sqrt;
    take(u, v, g);
    d = unbias * sqrt(v) + floor;
    g = (momentum * u + gradient * g) / d;
  }

 private:
  MFSDP_HOST_DEVICE void take(auto& u, auto& v, const auto& g) const {
    u = keep1 * u + take1 * g;
    v = keep2 * v + take2 * g * g;
  }
};

}  // namespace lordo::inline MFSDP_ABI::detail
