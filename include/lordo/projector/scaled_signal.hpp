// scaled_signal: what projectors share that read a signal.
#pragma once

#include <cmath>
#include <type_traits>

#include "lordo/subspace.hpp"
#include "mfsdp/concepts.hpp"

namespace lordo::inline MFSDP_ABI::detail {

// 1 / |signal|_F, or 0 if that is no number of T.
template <class T, class B>
[[nodiscard]] T inverse_norm(B& backend, matrix_view<const T> signal) {
  const T inverse = static_cast<T>(1 / std::sqrt(backend.sum_of_squares(signal.flat())));
  return std::isfinite(inverse) ? inverse : T(0);
}

// b = alpha y S^T + beta b on the left side, alpha y^T S + beta b on the right, where y is a
// projection of S: with a factor of S each, b times its Gram matrix.
template <class B, class T>
void power_product(B& backend, std::type_identity_t<T> alpha,
                   std::type_identity_t<matrix_view<const T>> y,
                   std::type_identity_t<matrix_view<const T>> signal, std::type_identity_t<T> beta,
                   matrix_view<T> b) {
  if (side_of(signal.shape()) == projection_side::left) {
    backend.multiply(alpha, y, transpose::no, signal, transpose::yes, beta, b, b);
  } else {
    backend.multiply(alpha, y, transpose::yes, signal, transpose::no, beta, b, b);
  }
}

}  // namespace lordo::inline MFSDP_ABI::detail
