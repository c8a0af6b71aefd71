// mixed: one optimizer for the matrices of a model, another for everything else.
#pragma once

#include <cstddef>
#include <tuple>

#include "mfsdp/concepts.hpp"

namespace mfsdp::inline MFSDP_ABI {

// An OptimizerSet of two, `mixed{muon{}, adamw{}}`. Tensors of role matrix go to the first, all
// others to the second, which must work on any piece because they may be cut.
template <class Matrix, class Elementwise>
struct mixed {
  static_assert(
      !requires { requires Elementwise::whole_matrix; },
      "mfsdp: the second optimizer of mixed updates pieces of tensors, this one needs "
      "whole matrices");

  Matrix matrix;
  Elementwise elementwise;

  [[nodiscard]] constexpr std::tuple<Matrix, Elementwise> members() const {
    return {matrix, elementwise};
  }
  [[nodiscard]] constexpr std::size_t route(const tensor_spec& tensor) const {
    return tensor.role == tensor_role::matrix ? 0 : 1;
  }
};

template <class Matrix, class Elementwise>
mixed(Matrix, Elementwise) -> mixed<Matrix, Elementwise>;

}  // namespace mfsdp::inline MFSDP_ABI
