// Kernels of Backend::transform that several parts share, and functions for kernels. A kernel is a
// type with a name, since a device compiles it apart, and its operator serves scalars, on a device,
// as well as arrays with the interface of Eigen's.
#pragma once

#include <type_traits>

#include "mfsdp/config.hpp"

namespace mfsdp::inline MFSDP_ABI {

// 1 where x >= 0, zeros of both signs included, and 0 elsewhere, NaN included: a condition as a
// factor. x is a scalar or an array with the interface of Eigen's; for an array it is an expression
// that refers to what x refers to.
template <class X>
[[nodiscard]] MFSDP_HOST_DEVICE constexpr auto nonnegative(const X& x) {
  if constexpr (std::is_arithmetic_v<X>) {
    return static_cast<X>(x >= X(0));
  } else {
    using scalar = typename X::Scalar;
    return (x >= scalar(0)).template cast<scalar>();
  }
}

namespace detail {

struct add {
  MFSDP_HOST_DEVICE void operator()(auto& x, const auto& y) const { x = x + y; }
};

struct change_since {
  MFSDP_HOST_DEVICE void operator()(auto& before, const auto& after) const {
    before = after - before;
  }
};

struct divided_copy {
  float by;
  MFSDP_HOST_DEVICE void operator()(auto& mean, const auto& sum) const { mean = sum / by; }
};

template <class T>
struct scale_by {
  T factor;
  MFSDP_HOST_DEVICE void operator()(auto& x) const { x = factor * x; }
};

// A step against y, with the decay of w in `keep`.
template <class T>
struct descend {
  T keep;
  T by;
  MFSDP_HOST_DEVICE void operator()(auto& w, const auto& y) const { w = keep * w - by * y; }
};

template <class T>
struct average_square {
  T keep;
  T take;
  MFSDP_HOST_DEVICE void operator()(auto& v, const auto& g) const { v = keep * v + take * g * g; }
};

}  // namespace detail

}  // namespace mfsdp::inline MFSDP_ABI
