// svd or power_step as one type, which saves a test from compiling its rule twice; with the signs
// of the basis at will, which must not matter.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "lordo/concepts.hpp"
#include "lordo/projector/power_step.hpp"
#include "lordo/projector/svd.hpp"

namespace mfsdp_test {

struct chosen_projector {
  bool power = false;
  bool flipped = false;  // the first row points the other way

  static constexpr std::string_view name = "chosen";
  static constexpr bool needs_signal = true;

  std::string options() const { return fmt::format("chosen {} {}", power, flipped); }
  mfsdp::index_t flops(mfsdp::matrix_shape shape, mfsdp::index_t rank) const {
    return lordo::svd{}.flops(shape, rank);
  }
  mfsdp::index_t workspace_size(mfsdp::matrix_shape shape, mfsdp::index_t rank) const {
    return lordo::svd{}.workspace_size(shape, rank);
  }
  template <class B, class T>
  void basis(B& backend, mfsdp::matrix_view<const T> signal, lordo::basis_draw draw,
             mfsdp::matrix_view<const T> old, mfsdp::matrix_view<T> to,
             std::span<T> workspace) const {
    if (power) {
      lordo::power_step{}.basis(backend, signal, draw, old, to, workspace);
    } else {
      lordo::svd{}.basis(backend, signal, draw, old, to, workspace);
    }
    if (flipped) {
      backend.transform([](auto& x) { x = -x; }, mfsdp::slice(to.flat(), 0, to.cols()));
    }
  }
};

}  // namespace mfsdp_test
