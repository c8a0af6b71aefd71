// find_basis: how a rule asks its Projector for a basis.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "lordo/concepts.hpp"
#include "lordo/subspace.hpp"
#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"

namespace lordo::inline MFSDP_ABI::detail {

// Errors: spec_error if the rows are not orthonormal to the root of the unit of rounding.
template <class P, class B, class T>
void require_orthonormal(B& backend, matrix_view<const T> basis,
                         const mfsdp::update_context<T>& context) {
  const index_t rank = basis.rows();
  auto memory = backend.template allocate<T>(rank * rank);
  const matrix_view<T> gram(memory.span().data(), rank, rank);
  rotation<B, T>(backend, basis, basis, gram);
  std::vector<T> host(static_cast<std::size_t>(gram.size()));
  backend.copy(std::span<const T>(gram.flat()), std::span<T>(host));
  const T most = std::sqrt(std::numeric_limits<T>::epsilon());
  for (index_t i = 0; i < gram.size(); ++i) {
    const T product = host[static_cast<std::size_t>(i)];
    if (std::abs(product - T(i % rank == i / rank ? 1 : 0)) <= most) continue;
    throw mfsdp::spec_error(
        fmt::format("tensor '{}': Projector '{}' has written a basis in step {} whose rows are not "
                    "orthonormal: the product of rows {} and {} is {}",
                    context.tensor, P::name, context.model_step, i / rank, i % rank, product));
  }
}

// Writes new_basis for the signal, which a Projector that reads none does not get. The workspace
// is projector.workspace_size(shape, rank) elements.
// Errors: in checked builds, spec_error if the rows of the new basis are not orthonormal.
template <class P, class B, class T>
void find_basis(const P& projector, B& backend, std::type_identity_t<matrix_view<const T>> signal,
                std::type_identity_t<matrix_view<const T>> old_basis, matrix_view<T> new_basis,
                std::span<T> workspace, const mfsdp::update_context<T>& context) {
  static_assert(sizeof(contract::check_basis<P, B>) > 0);
  if (!P::needs_signal) signal = {};
  const basis_draw draw{context.item, context.model_step};
  projector.basis(backend, signal, draw, old_basis, new_basis, workspace);
  if constexpr (mfsdp::checked) require_orthonormal<P, B, T>(backend, new_basis, context);
}

}  // namespace lordo::inline MFSDP_ABI::detail
