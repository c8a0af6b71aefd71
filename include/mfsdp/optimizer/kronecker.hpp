// Kronecker factors: second moments of a matrix gradient along its rows and its columns. What
// Shampoo and SOAP share.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "mfsdp/concepts.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// x <- beta x + new_weight(beta) y averages the y; a beta of one sums them.
[[nodiscard]] inline double new_weight(double beta) {
  return beta == 1 ? 1 : 1 - beta;
}

// What such an average is divided by, after t values, to be unbiased.
[[nodiscard]] inline double bias_correction(double beta, std::int64_t t) {
  return beta == 1 ? 1 : 1 - std::pow(beta, static_cast<double>(t));
}

// What decompositions of n x n cost a planner: the operations of products that take as long,
// measured with eigen_backend for n from 256 to 1024. Their own are 9 n^3 and 8/3 n^3.
[[nodiscard]] constexpr index_t symmetric_eigen_flops(index_t n) {
  return 25 * n * n * n;
}
[[nodiscard]] constexpr index_t orthonormalize_flops(index_t n) {
  return 4 * n * n * n;
}

// left <- beta left + w G G^T (m x m) and right <- beta right + w G^T G (n x n) of a gradient G
// (m x n). A side of no elements is left out. Cost: 2 m n (m + n).
template <Backend B, class T>
void add_to_factors(B& backend, double beta, std::type_identity_t<matrix_view<const T>> gradient,
                    matrix_view<T> left, matrix_view<T> right) {
  const T keep = static_cast<T>(beta);
  const T take = static_cast<T>(new_weight(beta));
  if (left.size() > 0) {
    backend.multiply_symmetric(take, gradient, transpose::no, gradient, transpose::yes, keep, left,
                               left);
  }
  if (right.size() > 0) {
    backend.multiply_symmetric(take, gradient, transpose::yes, gradient, transpose::no, keep, right,
                               right);
  }
}

// x <- op(left) x op(right). A side of no elements is left out. Cost: 2 m n (m + n).
template <Backend B, class T>
void multiply_sides(B& backend, std::type_identity_t<matrix_view<const T>> left, transpose op_left,
                    matrix_view<T> x, std::type_identity_t<matrix_view<const T>> right,
                    transpose op_right, std::type_identity_t<matrix_view<T>> scratch) {
  matrix_view<T> now = x;
  matrix_view<T> next = scratch;
  if (left.size() > 0) {
    backend.multiply(T(1), left, op_left, now, transpose::no, T(0), next, next);
    std::swap(now, next);
  }
  if (right.size() > 0) {
    backend.multiply(T(1), now, transpose::no, right, op_right, T(0), next, next);
    std::swap(now, next);
  }
  if (now.data() != x.data()) backend.copy(now.flat(), x.flat());
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
