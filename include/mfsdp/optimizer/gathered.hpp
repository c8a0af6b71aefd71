// gathered: spells out the price of a matrix optimizer on a placement that cuts matrices.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <type_traits>

#include "mfsdp/concepts.hpp"

namespace mfsdp::inline MFSDP_ABI {

// `gathered{muon{}}`: the rule of `inner` on matrices that the placement cuts. The runtime gathers
// the gradient of each matrix, every rank computes the whole update with states of full size, and
// keeps its own rows. The parameter must enter the rule element by element, as it does in all known
// ones with decoupled decay, because a rank has only its own rows of it.
template <class O>
struct gathered {
  static_assert(Optimizer<O>,
                "mfsdp: gathered holds something that is no Optimizer; used alone, it says which "
                "member it lacks");
  static_assert(
      O::whole_matrix,
      "mfsdp: gathered is for optimizers that need whole matrices, this one takes pieces");
  static_assert(!PeriodicOptimizer<O>,
                "mfsdp: gathered repeats an update on every rank, so it cannot hold a "
                "PeriodicOptimizer, whose states one rank of each site exchanges; use "
                "owner_placement");

  O inner;

 private:
  static constexpr auto text_ = [] {
    constexpr std::string_view prefix = "gathered ";
    constexpr std::string_view rule = O::name;
    std::array<char, prefix.size() + rule.size()> text{};
    std::copy(rule.begin(), rule.end(), std::copy(prefix.begin(), prefix.end(), text.begin()));
    return text;
  }();

 public:
  static constexpr std::string_view name{text_.data(), text_.size()};
  static constexpr std::string_view states_of = O::name;
  static constexpr bool whole_matrix = true;
  static constexpr bool gathers = true;
  static constexpr bool squares_gradient = requires { requires O::squares_gradient; };

  void check() const {
    if constexpr (ChecksOptions<O>) inner.check();
  }
  [[nodiscard]] std::string options() const
    requires requires(const O& o) { o.options(); }
  {
    return inner.options();
  }
  [[nodiscard]] constexpr index_t flops(matrix_shape shape) const { return inner.flops(shape); }
  [[nodiscard]] constexpr auto states(matrix_shape shape) const { return inner.states(shape); }
  [[nodiscard]] constexpr index_t workspace_size(matrix_shape shape) const {
    return inner.workspace_size(shape);
  }

  template <class B, class T>
    requires UpdatesOn<O, B>
  void update(B& backend, const state_spans<O, T>& state, matrix_view<T> parameter,
              std::type_identity_t<matrix_view<const T>> gradient,
              const update_context<T>& context) const {
    inner.update(backend, state, parameter, gradient, context);
  }
};

template <class O>
gathered(O) -> gathered<O>;

}  // namespace mfsdp::inline MFSDP_ABI
