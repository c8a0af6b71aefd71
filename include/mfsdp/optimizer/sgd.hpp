// sgd: gradient descent with momentum.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"

namespace mfsdp::inline MFSDP_ABI {

namespace detail {

template <class T>
struct sgd_step {
  T keep, decay, by_gradient, by_momentum;
  MFSDP_HOST_DEVICE void operator()(auto& w, auto& m, const auto& g) const {
    m = keep * m + g + decay * w;
    w = w - by_gradient * (g + decay * w) - by_momentum * m;
  }
};

}  // namespace detail

// On each element w with gradient g:
//
//   g <- g + wd w                      the decay is coupled: a penalty in the loss
//   m <- mu m + g                      the state, kept for mu = 0 as well
//   w <- w - lr m, or, after Nesterov, w - lr (g + mu m)
//
// A zero gradient at the first step decays w, nothing else; the gradient is never written. Any cut
// of a tensor gives the bits of the whole. Cost: 8 operations an element, no workspace; one number
// per weight.
// Source: Sutskever et al., ICML 2013; forms and defaults are torch.optim.SGD's, dampening 0.
struct sgd {
  double learning_rate = 1e-3;
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;

  static constexpr std::string_view name = "sgd";
  static constexpr bool whole_matrix = false;

  // For the check that all ranks use the same.
  [[nodiscard]] std::string options() const {
    return fmt::format("sgd {} {} {} {}", learning_rate, momentum, weight_decay, nesterov);
  }
  [[nodiscard]] constexpr index_t flops(matrix_shape shape) const { return 8 * shape.elements(); }
  [[nodiscard]] constexpr std::array<state_spec, 1> states(matrix_shape shape) const {
    return {{{"momentum", shape.elements()}}};
  }
  [[nodiscard]] constexpr index_t workspace_size(matrix_shape) const { return 0; }

  template <Backend B, class T>
  void update(B& backend, const std::array<std::span<T>, 1>& state, matrix_view<T> parameter,
              std::type_identity_t<matrix_view<const T>> gradient,
              const update_context<T>& context) const {
    // Both steps are a g + b m.
    const double rate = learning_rate * context.learning_rate_scale;
    const detail::sgd_step<T> step{
        .keep = static_cast<T>(momentum),
        .decay = static_cast<T>(weight_decay),
        .by_gradient = static_cast<T>(nesterov ? rate : 0),
        .by_momentum = static_cast<T>(nesterov ? rate * momentum : rate)};
    backend.transform(step, parameter.flat(), state[0], gradient.flat());
  }
};

static_assert(Optimizer<sgd>);

}  // namespace mfsdp::inline MFSDP_ABI
