// clipping: a gradient before a rule sees it.
#pragma once

#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"

namespace lordo::inline MFSDP_ABI {

enum class clip_rule {
  none,
  element,  // each entry to [-threshold, threshold]
  norm,     // the Frobenius norm of the matrix to threshold
};

// What one matrix of a site's own gradient is clipped to; needs no communication.
struct clipping {
  clip_rule rule = clip_rule::none;
  double threshold = 1;  // positive

  // Errors: spec_error in the name of the rule.
  void check(std::string_view name) const {
    if (!(threshold > 0)) {
      throw mfsdp::spec_error(fmt::format(
          "{}: clip.threshold is {}; give a positive one, or clip_rule::none", name, threshold));
    }
  }
  [[nodiscard]] std::string options() const {
    return fmt::format("{} {}", static_cast<int>(rule), threshold);
  }
};

namespace detail {

// x in [-bound, bound]; x is a scalar or an array with the interface of Eigen's.
template <class X, class T>
[[nodiscard]] MFSDP_HOST_DEVICE auto clamped(const X& x, T bound) {
  if constexpr (std::is_arithmetic_v<X>) {
    return x < -bound ? -bound : bound < x ? bound : x;
  } else {
    return ((x.max)(-bound).min)(bound);
  }
}

template <class T>
struct clip_elements {
  T bound;
  MFSDP_HOST_DEVICE void operator()(auto& x, const auto& g) const { x = clamped(g, bound); }
};

// Of the sum of squares of all g.
template <class T>
struct clip_norm {
  double threshold;
  MFSDP_HOST_DEVICE void operator()(const double& sum, auto& x, const auto& g) const {
    using std::sqrt;
    const double norm = sqrt(sum);
    const T factor = static_cast<T>(norm > threshold ? threshold / norm : 1);
    x = factor * g;
  }
};

// `to` = clip(gradient).
template <mfsdp::Backend B, class T>
void clip(B& backend, const clipping& how, std::type_identity_t<std::span<const T>> gradient,
          std::span<T> to) {
  if (how.rule == clip_rule::none) {
    backend.copy(gradient, to);
  } else if (how.rule == clip_rule::element) {
    backend.transform(clip_elements<T>{static_cast<T>(how.threshold)}, to, gradient);
  } else {
    backend.transform_by_sum(clip_norm<T>{how.threshold}, gradient, to, gradient);
  }
}

}  // namespace detail

}  // namespace lordo::inline MFSDP_ABI
