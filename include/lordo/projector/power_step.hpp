// power_step: one step of block power iteration from the old basis.
#pragma once

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "lordo/concepts.hpp"
#include "lordo/projector/scaled_signal.hpp"
#include "lordo/subspace.hpp"

namespace lordo::inline MFSDP_ABI {

// B_new = orthonormalised B_old (S S^T + epsilon I) for a signal S of norm 1, left side; on the
// right S^T S. As close to the leading singular vectors of the signal as the spectrum lets one step
// be, and it comes closer with every call on similar signals. Rows keep their order and sign.
// The epsilon, 256 units of rounding, turns no direction. It keeps those of the old basis that the
// signal has nothing to say about, but for a part of about 1/256: a signal of lower rank is
// completed from the old basis. A signal of zeros, or too small to be scaled, keeps it.
// Cost: 4 p q r + 4 min(p, q) r^2 operations, one projected matrix of workspace.
// Source: PowerSGD, arXiv 1905.13727; LDAdam, arXiv 2410.16103, of which this is the projection.
struct power_step {
  static constexpr std::string_view name = "power_step";
  static constexpr bool needs_signal = true;

  [[nodiscard]] std::string options() const { return "power_step"; }
  [[nodiscard]] constexpr index_t flops(matrix_shape shape, index_t rank) const {
    return 4 * rank * shape.elements() + 4 * rank * basis_shape(shape, rank).elements();
  }
  [[nodiscard]] constexpr index_t workspace_size(matrix_shape shape, index_t rank) const {
    return mfsdp::detail::workspace_part(projected_shape(shape, rank).elements());
  }

  template <mfsdp::DecomposingBackend B, class T>
  void basis(B& backend, std::type_identity_t<matrix_view<const T>> signal, basis_draw,
             std::type_identity_t<matrix_view<const T>> old_basis, matrix_view<T> new_basis,
             std::span<T> workspace) const {
    backend.copy(old_basis.flat(), new_basis.flat());
    const T scale = detail::inverse_norm<T>(backend, signal);
    if (scale == T(0)) return;
    mfsdp::detail::workspace_cutter<T> cutter(workspace);
    const matrix_view<T> y = cutter.take(projected_shape(signal.shape(), old_basis.rows()));
    project<B, T>(backend, scale, old_basis, signal, T(0), y);
    detail::power_product<B, T>(backend, scale, y, signal, 256 * std::numeric_limits<T>::epsilon(),
                                new_basis);
    backend.orthonormalize_rows(new_basis);
  }
};

static_assert(Projector<power_step>);

}  // namespace lordo::inline MFSDP_ABI
