// random_projection, which insists on an empty signal, as a Projector may that does not need one.
#pragma once

#include <doctest/doctest.h>

#include <span>
#include <type_traits>

#include "lordo/projector/random.hpp"

namespace mfsdp_test {

struct blind_projector : lordo::random_projection {
  template <mfsdp::DecomposingBackend B, class T>
  void basis(B& backend, std::type_identity_t<mfsdp::matrix_view<const T>> signal,
             lordo::basis_draw draw, std::type_identity_t<mfsdp::matrix_view<const T>> old_basis,
             mfsdp::matrix_view<T> new_basis, std::span<T> workspace) const {
    CHECK(signal.size() == 0);
    CHECK(old_basis.shape() == new_basis.shape());
    random_projection::basis<B, T>(backend, signal, draw, old_basis, new_basis, workspace);
  }
};

}  // namespace mfsdp_test
