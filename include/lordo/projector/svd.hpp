// svd: the leading singular vectors of the signal.
#pragma once

#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "lordo/concepts.hpp"
#include "lordo/projector/scaled_signal.hpp"
#include "lordo/subspace.hpp"

namespace lordo::inline MFSDP_ABI {

namespace detail {

template <class T>
struct scaled_copy {
  T factor;
  MFSDP_HOST_DEVICE void operator()(auto& to, const auto& from) const { to = factor * from; }
};

}  // namespace detail

// The r leading left singular vectors of the signal S (right ones on the right side), largest
// first, each with its entry of largest magnitude positive. They come from the eigenvectors of the
// smaller Gram matrix, followed by one power step, which takes the error of the span from
// eps (s_1 / s_r)^2 to eps s_1 / s_r. Singular values below sqrt(8 eps) |S|_F (0.001 |S|_F in
// float) cannot be told from rounding errors: there, and where a signal of lower rank has none, the
// directions are those of the old basis. A signal of zeros, or too small to be scaled, keeps the
// old basis, as does a failed decomposition.
// Cost: p q min(p, q) + 9 min(p, q)^3 + 4 p q r operations, the cube at the speed of memory;
// workspace of the signal, a square of the smaller side and one projected matrix.
struct svd {
  static constexpr std::string_view name = "svd";
  static constexpr bool needs_signal = true;

  [[nodiscard]] std::string options() const { return "svd"; }
  [[nodiscard]] constexpr index_t flops(matrix_shape shape, index_t rank) const {
    const index_t n = basis_shape(shape, rank).cols;
    return n * shape.elements() + 9 * n * n * n + 4 * rank * (shape.elements() + rank * n);
  }
  [[nodiscard]] constexpr index_t workspace_size(matrix_shape shape, index_t rank) const {
    const auto part = [](index_t elements) { return mfsdp::detail::workspace_part(elements); };
    const index_t n = basis_shape(shape, rank).cols;
    return part(shape.elements()) + part(n * n) + part(n) + part(rank * rank) +
           part(projected_shape(shape, rank).elements());
  }

  template <mfsdp::DecomposingBackend B, class T>
  void basis(B& backend, std::type_identity_t<matrix_view<const T>> signal, basis_draw,
             std::type_identity_t<matrix_view<const T>> old_basis, matrix_view<T> new_basis,
             std::span<T> workspace) const {
    const index_t rank = old_basis.rows();
    const index_t n = old_basis.cols();
    const bool left = side_of(signal.shape()) == projection_side::left;
    mfsdp::detail::workspace_cutter<T> cutter(workspace);
    const matrix_view<T> scaled = cutter.take(signal.shape());
    const matrix_view<T> gram = cutter.take(matrix_shape{n, n});
    const std::span<T> values = cutter.take(n);
    const matrix_view<T> overlap = cutter.take(matrix_shape{rank, rank});
    const matrix_view<T> y = cutter.take(projected_shape(signal.shape(), rank));

    backend.copy(old_basis.flat(), new_basis.flat());
    const T scale = detail::inverse_norm<T>(backend, signal);
    if (scale == T(0)) return;
    backend.transform(detail::scaled_copy<T>{scale}, scaled.flat(), signal.flat());

    // Of S S^T + 8 eps B_old^T B_old: among directions of no meaning, the old ones come first.
    const T eps = std::numeric_limits<T>::epsilon();
    backend.multiply_symmetric(T(1), scaled, left ? transpose::no : transpose::yes, scaled,
                               left ? transpose::yes : transpose::no, T(0), gram, gram);
    backend.multiply_symmetric(8 * eps, old_basis, transpose::yes, old_basis, transpose::no, T(1),
                               gram, gram);
    if (!backend.symmetric_eigen(gram, values)) return;
    for (index_t i = 0; i < rank; ++i) {  // eigenvalues ascend
      backend.copy(mfsdp::slice(gram.flat(), (n - 1 - i) * n, n),
                   mfsdp::slice(new_basis.flat(), i * n, n));
    }

    // A direction of no meaning has a product of size eps with S S^T, right to eps^2 once those
    // before it are taken out of it; eps^(3/2) of the old basis lies between.
    rotation<B, T>(backend, new_basis, old_basis, overlap);
    project<B, T>(backend, T(1), new_basis, scaled, T(0), y);
    backend.multiply(eps * std::sqrt(eps), overlap, transpose::no, old_basis, transpose::no, T(0),
                     new_basis, new_basis);
    detail::power_product<B, T>(backend, T(1), y, scaled, T(1), new_basis);
    backend.orthonormalize_rows(new_basis);
  }
};

static_assert(Projector<svd>);

}  // namespace lordo::inline MFSDP_ABI
