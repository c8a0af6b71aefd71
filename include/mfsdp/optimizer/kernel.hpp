// Functions for kernels of Backend::transform, which are written once for scalars and packets.
#pragma once

#include <type_traits>

#include "mfsdp/config.hpp"

namespace mfsdp::inline MFSDP_ABI {

// 1 where x >= 0, zeros of both signs included, and 0 elsewhere, NaN included: a condition as a
// factor. x is a scalar or an array with the interface of Eigen's; for an array it is an expression
// that refers to what x refers to.
template <class X>
[[nodiscard]] constexpr auto nonnegative(const X& x) {
  if constexpr (std::is_arithmetic_v<X>) {
    return static_cast<X>(x >= X(0));
  } else {
    using scalar = typename X::Scalar;
    return (x >= scalar(0)).template cast<scalar>();
  }
}

}  // namespace mfsdp::inline MFSDP_ABI
