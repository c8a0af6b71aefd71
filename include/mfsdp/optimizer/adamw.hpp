// adamw: Adam with decoupled weight decay, for every tensor that is not a matrix.
#pragma once

#include <array>
#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"
#include "mfsdp/kernel.hpp"

namespace mfsdp::inline MFSDP_ABI {

namespace detail {

// Decoupled decay is in `keep`, that of a penalty in `penalty`.
template <class T>
struct adamw_step {
  T keep1, take1, keep2, take2, step, unbias, floor, keep, penalty;
  MFSDP_HOST_DEVICE void operator()(auto& w, auto& m, auto& v, const auto& g) const {
    using std::sqrt;
    const auto e = g + penalty * w;
    m = keep1 * m + take1 * e;
    v = keep2 * v + take2 * e * e;
    w = keep * w - step * m / (unbias * sqrt(v) + floor);
  }
};

template <class T>
struct cautious_adamw_step {
  T keep1, take1, keep2, take2, step, unbias, floor, lose;
  MFSDP_HOST_DEVICE void operator()(auto& w, auto& m, auto& v, const auto& g) const {
    using std::sqrt;
    m = keep1 * m + take1 * g;
    v = keep2 * v + take2 * g * g;
    w = w - lose * w * nonnegative(w * m) - step * m / (unbias * sqrt(v) + floor);
  }
};

}  // namespace detail

// How weight decay enters.
enum class adam_decay {
  decoupled,  // w <- (1 - lr wd) w; where in the step makes no difference but for rounding
  cautious,   // the same where w and its step agree in sign or one is zero (arXiv 2510.12402)
  l2,         // g <- g + wd w first, a penalty in the loss: Adam
};

// On each element w with gradient g, at step t = 1, 2, ...:
//
//   m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2          the states, in this order
//   w <- (1 - lr wd) w - lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + epsilon)
//
// A zero gradient at the first step decays w, nothing else; the gradient is never written. Its
// square must be finite in the element type, or w becomes NaN. Any cut of a tensor gives the bits
// of the whole. Cost: 14 operations an element, no workspace; two numbers per weight.
// Source: Loshchilov & Hutter, arXiv 1711.05101; forms and defaults are torch.optim.AdamW's, with
// adam_decay::l2 torch.optim.Adam's.
struct adamw {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  adam_decay decay = adam_decay::decoupled;

  static constexpr std::string_view name = "adamw";
  static constexpr bool whole_matrix = false;
  static constexpr bool squares_gradient = true;

  // For the check that all ranks use the same.
  [[nodiscard]] std::string options() const {
    return fmt::format("adamw {} {} {} {} {} {}", learning_rate, beta1, beta2, epsilon,
                       weight_decay, static_cast<int>(decay));
  }
  [[nodiscard]] constexpr index_t flops(matrix_shape shape) const { return 14 * shape.elements(); }
  [[nodiscard]] constexpr std::array<state_spec, 2> states(matrix_shape shape) const {
    return {{{"first_moment", shape.elements()}, {"second_moment", shape.elements()}}};
  }
  [[nodiscard]] constexpr index_t workspace_size(matrix_shape) const { return 0; }

  template <Backend B, class T>
  void update(B& backend, const std::array<std::span<T>, 2>& state, matrix_view<T> parameter,
              std::type_identity_t<matrix_view<const T>> gradient,
              const update_context<T>& context) const {
    const double t = static_cast<double>(context.step);
    const double rate = learning_rate * context.learning_rate_scale;
    const T keep1 = static_cast<T>(beta1);
    const T take1 = static_cast<T>(1 - beta1);
    const T keep2 = static_cast<T>(beta2);
    const T take2 = static_cast<T>(1 - beta2);
    const T step = static_cast<T>(rate / (1 - std::pow(beta1, t)));
    const T unbias = static_cast<T>(1 / std::sqrt(1 - std::pow(beta2, t)));
    const T floor = static_cast<T>(epsilon);
    if (decay == adam_decay::cautious) {
      backend.transform(detail::cautious_adamw_step<T>{keep1, take1, keep2, take2, step, unbias,
                                                       floor, static_cast<T>(rate * weight_decay)},
                        parameter.flat(), state[0], state[1], gradient.flat());
    } else {
      const T penalty = static_cast<T>(decay == adam_decay::l2 ? weight_decay : 0);
      const T keep = static_cast<T>(decay == adam_decay::l2 ? 1 : 1 - rate * weight_decay);
      backend.transform(
          detail::adamw_step<T>{keep1, take1, keep2, take2, step, unbias, floor, keep, penalty},
          parameter.flat(), state[0], state[1], gradient.flat());
    }
  }
};

static_assert(Optimizer<adamw>);

}  // namespace mfsdp::inline MFSDP_ABI
