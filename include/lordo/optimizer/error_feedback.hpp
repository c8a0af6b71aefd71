// error_feedback: what a projection leaves out, kept for later.
#pragma once

#include <type_traits>

#include "lordo/subspace.hpp"
#include "mfsdp/concepts.hpp"
#include "mfsdp/kernel.hpp"

namespace lordo::inline MFSDP_ABI {

// With A = G + E, g = project(A) and rest = A - lift(g), what E becomes:
enum class error_feedback {
  none,    // there is no E
  full,    // rest
  window,  // rest; at the first update of a round only that of G, so that no error outlives a round
  decayed,  // a factor times rest
};

namespace detail {

template <class T>
struct axpby {
  T keep, take;
  MFSDP_HOST_DEVICE void operator()(auto& x, const auto& y) const { x = keep * x + take * y; }
};

// `low` holds project(g) and gets what the projection of the error adds; error <- decay rest, as
// above, or with `drop` decay (g - lift(project(g))). `extra` is scratch of the size of low.
template <mfsdp::Backend B, class T>
void feed_back(B& backend, bool drop, double decay,
               std::type_identity_t<matrix_view<const T>> basis,
               std::type_identity_t<matrix_view<const T>> gradient, matrix_view<T> low,
               matrix_view<T> error, matrix_view<T> extra) {
  project<B, T>(backend, T(1), basis, error, T(0), extra);
  const auto add = [&] {
    backend.transform(mfsdp::detail::add{}, low.flat(), std::span<const T>(extra.flat()));
  };
  if (!drop) add();
  backend.transform(axpby<T>{static_cast<T>(drop ? 0 : decay), static_cast<T>(decay)}, error.flat(),
                    gradient.flat());
  lift<B, T>(backend, static_cast<T>(-decay), basis, low, T(1), error);
  if (drop) add();
}

}  // namespace detail

}  // namespace lordo::inline MFSDP_ABI
