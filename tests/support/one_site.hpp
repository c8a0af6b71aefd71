// A PeriodicOptimizer alone, as an Optimizer that optimizer_conformance takes.
#pragma once

#include <algorithm>
#include <limits>
#include <string_view>
#include <type_traits>

#include "mfsdp/concepts.hpp"

namespace mfsdp_test {

// With a single site a mean is what is there; all else is called as the contract says, with a
// workspace that no earlier call has left anything in. A step starts the states if it is the first.
template <class O>
struct on_one_site {
  O rule;

  static constexpr std::string_view name = O::name;
  static constexpr bool whole_matrix = O::whole_matrix;
  static constexpr bool squares_gradient = requires { requires O::squares_gradient; };

  mfsdp::index_t flops(mfsdp::matrix_shape shape) const { return rule.flops(shape); }
  auto states(mfsdp::matrix_shape shape) const { return rule.states(shape); }
  mfsdp::index_t workspace_size(mfsdp::matrix_shape shape) const {
    return rule.workspace_size(shape);
  }

  template <class B, class T>
  void update(B& backend, const mfsdp::state_spans<O, T>& states, mfsdp::matrix_view<T> parameter,
              std::type_identity_t<mfsdp::matrix_view<const T>> gradient,
              mfsdp::update_context<T> context) const {
    context.model_step = context.step;
    const auto fresh = [&] {
      backend.fill(context.workspace, std::numeric_limits<T>::quiet_NaN());
      return context;
    };
    if constexpr (requires { rule.start(backend, states, parameter, context); }) {
      if (context.step == 1) rule.start(backend, states, parameter, fresh());
    }
    const auto rounds = [&](int first, int count, mfsdp::matrix_view<const T> g) {
      for (int round = first; round < first + count; ++round) {
        const auto flags =
            rule.exchanges(parameter.shape(), {context.model_step, context.item, round});
        if (std::ranges::find(flags, true) == flags.end()) continue;
        rule.contribute(backend, states, parameter, g, fresh(), round);
        rule.adopt(backend, states, parameter, fresh(), round);
      }
    };
    rounds(0, O::rounds_before_update, gradient);
    rule.update(backend, states, parameter, gradient, fresh());
    rounds(O::rounds_before_update, O::rounds_after_update, {});
  }
};

template <class O>
on_one_site(O) -> on_one_site<O>;

}  // namespace mfsdp_test
