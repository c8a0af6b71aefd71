// outer: what becomes of the mean pseudo-gradient at a sync.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"
#include "mfsdp/kernel.hpp"

namespace lordo::inline MFSDP_ABI {

// An outer step moves the anchor X_a, the parameter at the last sync, by the mean pseudo-gradient
// D = mean over the sites of X - X_a. X_a and D have equal bits on all sites, and so do the states
// of the step, of which nothing is sent.

// X_a <- X_a + D: the sites' parameters are averaged. Nothing is kept.
struct outer_average {
  static constexpr bool needs_anchor = false;  // the mean of the parameters is the result

  void check(std::string_view) const {}
  [[nodiscard]] std::string options() const { return "average"; }
  [[nodiscard]] constexpr std::array<mfsdp::state_spec, 0> states(mfsdp::matrix_shape) const {
    return {};
  }

  template <mfsdp::Backend B, class T>
  void step(B& backend, const std::array<std::span<T>, 0>&, std::span<T> anchor,
            std::type_identity_t<std::span<const T>> delta) const {
    backend.transform(mfsdp::detail::add{}, anchor, delta);
  }
};

namespace detail {

template <class T>
struct nesterov_step {
  T keep, rate;
  MFSDP_HOST_DEVICE void operator()(auto& a, auto& v, const auto& d) const {
    v = keep * v + d;
    a = a + rate * (d + keep * v);
  }
};

}  // namespace detail

// SGD with Nesterov's momentum on the outer gradient -D, in the form of torch.optim.SGD:
//
//   V <- mu V + D
//   X_a <- X_a + lr (D + mu V)
//
// V is zero at the start. A rate of 1 with a momentum of 0 is outer_average but for rounding. The
// rate is not scaled by the schedule of the inner one.
// Keeps two numbers a weight: X_a and V. With AdamW inside it is DiLoCo (Douillard et al., arXiv
// 2311.08105), whose rate and momentum are the defaults; with Muon inside MuLoCo (arXiv
// 2505.23725).
struct outer_nesterov {
  double learning_rate = 0.7;  // positive
  double momentum = 0.9;       // in [0, 1)

  static constexpr bool needs_anchor = true;

  void check(std::string_view owner) const {
    if (!(learning_rate > 0)) {
      throw mfsdp::spec_error(
          fmt::format("{}: the outer learning rate {} is not positive; 1 with momentum 0 averages",
                      owner, learning_rate));
    }
    if (!(momentum >= 0 && momentum < 1)) {
      throw mfsdp::spec_error(
          fmt::format("{}: the outer momentum is {}, not from 0 up to 1", owner, momentum));
    }
  }
  [[nodiscard]] std::string options() const {
    return fmt::format("nesterov {} {}", learning_rate, momentum);
  }
  [[nodiscard]] constexpr std::array<mfsdp::state_spec, 1> states(mfsdp::matrix_shape shape) const {
    return {{{"outer_momentum", shape.elements(), true}}};
  }

  template <mfsdp::Backend B, class T>
  void step(B& backend, const std::array<std::span<T>, 1>& state, std::span<T> anchor,
            std::type_identity_t<std::span<const T>> delta) const {
    backend.transform(
        detail::nesterov_step<T>{static_cast<T>(momentum), static_cast<T>(learning_rate)}, anchor,
        state[0], delta);
  }
};

}  // namespace lordo::inline MFSDP_ABI
