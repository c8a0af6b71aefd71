// Every rule for matrices in one OptimizerSet, of which a run uses one: a model with it is one type
// for all of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "mfsdp/concepts.hpp"

namespace mfsdp_test {

// One of `Matrix` for the matrices, `Rest` for the rest.
template <class Rest, class... Matrix>
class every_rule {
 public:
  explicit every_rule(Rest rest, Matrix... matrix)
      : members_(std::move(rest), std::move(matrix)...) {}

  static constexpr std::size_t count = sizeof...(Matrix);
  static constexpr std::array<std::string_view, count> names{Matrix::name...};

  // The same with another choice.
  [[nodiscard]] every_rule choose(std::size_t which) const {
    every_rule other = *this;
    other.chosen_ = 1 + which;
    return other;
  }
  [[nodiscard]] std::tuple<Rest, Matrix...> members() const { return members_; }
  [[nodiscard]] std::size_t route(const mfsdp::tensor_spec& tensor) const {
    return tensor.role == mfsdp::tensor_role::matrix ? chosen_ : 0;
  }
  [[nodiscard]] auto groups() const {
    std::array<mfsdp::optimizer_group, 1 + count> all;
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = {std::to_string(i), true};
    return all;
  }

 private:
  std::tuple<Rest, Matrix...> members_;
  std::size_t chosen_ = 1;
};

}  // namespace mfsdp_test
