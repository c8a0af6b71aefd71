// The contract of lordo that mixes at compile time: Projector.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lordo/subspace.hpp"
#include "mfsdp/concepts.hpp"

namespace lordo::inline MFSDP_ABI {

// Which basis is drawn: equal on all sites, different for each parameter and step.
struct basis_draw {
  std::size_t item = 0;   // of the parameter, as in mfsdp::update_context
  std::int64_t step = 0;  // of the model
};

namespace contract {

template <class P>
concept projector_name = requires {
  { P::name } -> std::convertible_to<std::string_view>;
};
template <class P>
concept projector_needs_signal = requires {
  { P::needs_signal } -> std::convertible_to<bool>;
};
template <class P>
concept projector_options = requires(const P& p) {
  { p.options() } -> std::convertible_to<std::string>;
};
template <class P>
concept projector_flops = requires(const P& p, matrix_shape s, index_t rank) {
  { p.flops(s, rank) } -> std::same_as<index_t>;
};
template <class P>
concept projector_workspace_size = requires(const P& p, matrix_shape s, index_t rank) {
  { p.workspace_size(s, rank) } -> std::same_as<index_t>;
};
template <class P, class B>
concept projector_basis = requires(const P& p, B& backend, matrix_view<const float> signal,
                                   basis_draw draw, matrix_view<const float> old_basis,
                                   matrix_view<float> new_basis, std::span<float> workspace) {
  { p.basis(backend, signal, draw, old_basis, new_basis, workspace) } -> std::same_as<void>;
};

}  // namespace contract

// A rule that finds the directions in which a matrix is worth following.
//   name               for plans and reports
//   needs_signal       false if basis() does not read the signal, which is then empty: nothing has
//                      to be kept or sent for it
//   options()          all that changes results, as text without line breaks
//   flops(shape, rank), workspace_size(shape, rank)   of one basis for a matrix of this shape
//   check()            optional: throws mfsdp::spec_error if the options make no sense
//   basis(backend, signal, draw, old_basis, new_basis, workspace)   writes new_basis
//                      (basis_shape(shape, rank), orthonormal rows) for the signal (p x q). The old
//                      basis is orthonormal, too, apart from the new one, and gives the directions
//                      that a signal of lower rank lacks. Equal calls give equal bits: every site
//                      computes its basis for itself
// The signal is finite and aligned to mfsdp::storage_alignment, as are the bases and the workspace;
// the rank is positive and below min(p, q).
template <class P>
concept Projector = std::copyable<P> && contract::projector_name<P> &&
                    contract::projector_needs_signal<P> && contract::projector_options<P> &&
                    contract::projector_flops<P> && contract::projector_workspace_size<P>;

template <class P, class B>
concept ProjectsOn = Projector<P> && contract::projector_basis<P, B>;

namespace contract {

// The door: complete if it holds, with one message for each member that is missing.
template <class P>
struct check_projector {
  static_assert(std::copyable<P>, "lordo: Projector cannot be copied");
  static_assert(projector_name<P>,
                "lordo: Projector lacks 'static constexpr std::string_view name'");
  static_assert(projector_needs_signal<P>,
                "lordo: Projector lacks 'static constexpr bool needs_signal'");
  static_assert(projector_options<P>, "lordo: Projector lacks 'std::string options() const'");
  static_assert(projector_flops<P>,
                "lordo: Projector lacks 'index_t flops(matrix_shape, index_t rank) const'");
  static_assert(
      projector_workspace_size<P>,
      "lordo: Projector lacks 'index_t workspace_size(matrix_shape, index_t rank) const'");
};

template <class P, class B>
struct check_basis {};
template <Projector P, mfsdp::Backend B>
struct check_basis<P, B> {
  static_assert(projector_basis<P, B>,
                "lordo: Projector lacks 'void basis(backend, signal, draw, old_basis, new_basis, "
                "workspace) const' for this Backend");
};

}  // namespace contract

}  // namespace lordo::inline MFSDP_ABI
