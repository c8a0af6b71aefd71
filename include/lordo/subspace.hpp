// subspace: a matrix seen through an orthonormal basis of low rank, and what a change of basis does
// to the moments of an optimizer.
#pragma once

#include <algorithm>
#include <cassert>
#include <cmath>
#include <span>
#include <type_traits>

#include "mfsdp/concepts.hpp"
#include "mfsdp/workspace.hpp"

namespace lordo::inline MFSDP_ABI {

using mfsdp::index_t, mfsdp::matrix_shape, mfsdp::matrix_view, mfsdp::transpose;

// A basis B has r orthonormal rows and spans directions of the smaller side of a matrix A (p x q):
//
//   left,  p <= q:   B is r x p,   project(A) = B A    (r x q),   lift(Y) = B^T Y
//   right, p > q:    B is r x q,   project(A) = A B^T  (p x r),   lift(Y) = Y B
//
// Right on A is left on its transpose. Source: the side is LDAdam's (arXiv 2410.16103); GaLore
// takes the other one of a square matrix.
enum class projection_side : bool { left, right };

[[nodiscard]] constexpr projection_side side_of(matrix_shape shape) {
  return shape.rows <= shape.cols ? projection_side::left : projection_side::right;
}
[[nodiscard]] constexpr matrix_shape basis_shape(matrix_shape shape, index_t rank) {
  return {rank, std::min(shape.rows, shape.cols)};
}
[[nodiscard]] constexpr matrix_shape projected_shape(matrix_shape shape, index_t rank) {
  return side_of(shape) == projection_side::left ? matrix_shape{rank, shape.cols}
                                                 : matrix_shape{shape.rows, rank};
}

// y = alpha project(a) + beta y. 2 p q r operations.
template <mfsdp::Backend B, class T>
void project(B& backend, std::type_identity_t<T> alpha,
             std::type_identity_t<matrix_view<const T>> basis,
             std::type_identity_t<matrix_view<const T>> a, std::type_identity_t<T> beta,
             matrix_view<T> y) {
  if (side_of(a.shape()) == projection_side::left) {
    backend.multiply(alpha, basis, transpose::no, a, transpose::no, beta, y, y);
  } else {
    backend.multiply(alpha, a, transpose::no, basis, transpose::yes, beta, y, y);
  }
}

// a = alpha lift(y) + beta a. 2 p q r operations.
template <mfsdp::Backend B, class T>
void lift(B& backend, std::type_identity_t<T> alpha,
          std::type_identity_t<matrix_view<const T>> basis,
          std::type_identity_t<matrix_view<const T>> y, std::type_identity_t<T> beta,
          matrix_view<T> a) {
  if (side_of(a.shape()) == projection_side::left) {
    backend.multiply(alpha, basis, transpose::yes, y, transpose::no, beta, a, a);
  } else {
    backend.multiply(alpha, y, transpose::no, basis, transpose::no, beta, a, a);
  }
}

// r = new_basis old_basis^T (rank x rank): coordinates in the old basis become those in the new
// one.
template <mfsdp::Backend B, class T>
void rotation(B& backend, std::type_identity_t<matrix_view<const T>> new_basis,
              std::type_identity_t<matrix_view<const T>> old_basis, matrix_view<T> r) {
  backend.multiply(T(1), new_basis, transpose::no, old_basis, transpose::yes, T(0), r, r);
}

namespace detail {

// y = r x on the left side, x r^T on the right.
template <class B, class T>
void rotate(B& backend, projection_side side, std::type_identity_t<matrix_view<const T>> r,
            std::type_identity_t<matrix_view<const T>> x, matrix_view<T> y) {
  if (side == projection_side::left) {
    backend.multiply(T(1), r, transpose::no, x, transpose::no, T(0), y, y);
  } else {
    backend.multiply(T(1), x, transpose::no, r, transpose::yes, T(0), y, y);
  }
}

struct square_of {
  MFSDP_HOST_DEVICE void operator()(auto& to, const auto& from) const { to = from * from; }
};

template <class T>
struct variance_of_moments {
  T unbias1, unbias2;
  MFSDP_HOST_DEVICE void operator()(auto& variance, const auto& first, const auto& second) const {
    variance = unbias2 * second - (unbias1 * first) * (unbias1 * first);
  }
};

// `second` holds the rotated variance.
template <class T>
struct rotated_moments {
  T unbias1, bias2;
  MFSDP_HOST_DEVICE void operator()(auto& first, auto& second, const auto& rotated) const {
    using std::abs;
    second = second + (unbias1 * rotated) * (unbias1 * rotated);
    second = bias2 * abs(second);
    first = rotated;
  }
};

}  // namespace detail

// Scratch elements of a rotation of moments of this projected shape.
[[nodiscard]] constexpr index_t rotation_workspace(matrix_shape projected, index_t rank) {
  return mfsdp::detail::workspace_part(projected.elements()) +
         mfsdp::detail::workspace_part(rank * rank);
}

// u <- R u on the left side, u R^T on the right: a first moment (projected shape) in the new basis.
// What the new basis does not span is lost.
template <mfsdp::Backend B, class T>
void rotate_first_moment(B& backend, projection_side side,
                         std::type_identity_t<matrix_view<const T>> r, matrix_view<T> u,
                         std::type_identity_t<std::span<T>> workspace) {
  mfsdp::detail::workspace_cutter<T> cutter(workspace);
  const matrix_view<T> rotated = cutter.take(u.shape());
  detail::rotate<B, T>(backend, side, r, u, rotated);
  backend.copy(rotated.flat(), u.flat());
}

// Both moments in the new basis. With u' = u / c1, v' = v / c2 and o elementwise, left side:
//
//   v <- c2 |(R o R) (v' - u' o u') + (R u') o (R u')|,   u <- R u
//
// The variance of independent coordinates goes through R o R and their mean through R, so v is
// exact if the coordinates are uncorrelated; the second moment stays >= 0. c1 = 1 - beta1^t and
// c2 = 1 - beta2^t after t steps, or 1 without bias correction. 4 r^2 max(p, q) operations.
// Source: LDAdam, arXiv 2410.16103.
template <mfsdp::Backend B, class T>
void rotate_moments(B& backend, projection_side side, std::type_identity_t<matrix_view<const T>> r,
                    double c1, double c2, matrix_view<T> u, matrix_view<T> v,
                    std::type_identity_t<std::span<T>> workspace) {
  assert(std::ssize(workspace) >= rotation_workspace(u.shape(), r.rows()));
  mfsdp::detail::workspace_cutter<T> cutter(workspace);
  const matrix_view<T> part = cutter.take(u.shape());
  const matrix_view<T> squares = cutter.take(r.shape());
  const T unbias1 = static_cast<T>(1 / c1);
  backend.transform(detail::square_of{}, squares.flat(), r.flat());
  backend.transform(detail::variance_of_moments<T>{unbias1, static_cast<T>(1 / c2)}, part.flat(),
                    std::span<const T>(u.flat()), std::span<const T>(v.flat()));
  detail::rotate<B, T>(backend, side, squares, part, v);
  detail::rotate<B, T>(backend, side, r, u, part);
  backend.transform(detail::rotated_moments<T>{unbias1, static_cast<T>(c2)}, u.flat(), v.flat(),
                    std::span<const T>(part.flat()));
}

}  // namespace lordo::inline MFSDP_ABI
