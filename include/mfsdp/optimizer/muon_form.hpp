// muon_form: the points in which published Muon rules differ, and the pieces that such rules share.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"
#include "mfsdp/kernel.hpp"
#include "mfsdp/optimizer/newton_schulz.hpp"

namespace mfsdp::inline MFSDP_ABI {

// How a gradient G enters the momentum M. Both give the same direction, but in a checkpoint, and to
// a small epsilon, the heavy ball is 1 / (1 - mu) times as large.
enum class momentum_rule {
  ema,         // M <- mu M + (1 - mu) G
  heavy_ball,  // M <- mu M + G
};

// By what an orthogonal update of rows x cols (outputs x inputs) is multiplied. Its own root mean
// square is 1 / sqrt(max(rows, cols)), so a rate that suits one rule does not suit another.
enum class update_scale {
  none,       // 1
  tall,       // sqrt(max(1, rows / cols))
  spectral,   // sqrt(rows / cols): the norm from inputs to outputs, in root mean squares, is 1
  match_rms,  // 0.2 sqrt(max(rows, cols)): the root mean square is 0.2, about that of AdamW
  unit_rms,   // sqrt(max(rows, cols)): the root mean square is 1
};

// Which elements of the parameter decay, all by the rate without the scale of the update.
enum class decay_rule {
  plain,
  cautious,  // where weight and update agree in sign, or one is zero: W X >= 0 (arXiv 2510.12402)
};

// What a Muon is, apart from its hyper-parameters.
struct muon_form {
  momentum_rule momentum = momentum_rule::ema;
  bool nesterov = true;  // orthogonalise the momentum as the same gradient would leave it next
  newton_schulz_options orthogonalization{};
  update_scale scale = update_scale::tall;
  decay_rule decay = decay_rule::plain;
};

[[nodiscard]] inline double scale_factor(update_scale rule, matrix_shape shape) {
  const double rows = static_cast<double>(shape.rows);
  const double cols = static_cast<double>(shape.cols);
  switch (rule) {
    case update_scale::tall:
      return std::sqrt(std::max(1.0, rows / cols));
    case update_scale::spectral:
      return std::sqrt(rows / cols);
    case update_scale::match_rms:
      return 0.2 * std::sqrt(std::max(rows, cols));
    case update_scale::unit_rms:
      return std::sqrt(std::max(rows, cols));
    default:
      return 1;
  }
}

namespace detail {

// All that changes results, for the check that all ranks use the same. A member that
// newton_schulz_options gains does not compile before it is here.
[[nodiscard]] inline std::string options_text(const muon_form& form) {
  const auto& [coefficients, steps, safety, epsilon, rule, carried_out] = form.orthogonalization;
  std::string text =
      fmt::format("{} {} {} {} {} {} {} {} {}", static_cast<int>(form.momentum), form.nesterov,
                  steps, safety, epsilon, static_cast<int>(rule), static_cast<int>(carried_out),
                  static_cast<int>(form.scale), static_cast<int>(form.decay));
  for (const auto& [a, b, c] : coefficients.rows()) text += fmt::format(" {} {} {}", a, b, c);
  return text;
}

// Errors: spec_error if the numbers make no sense.
inline void check_muon(std::string_view name, double momentum, const muon_form& form) {
  if (!(momentum >= 0 && momentum < 1)) {
    throw spec_error(fmt::format("{}: momentum is {}, not from 0 up to 1", name, momentum));
  }
  const newton_schulz_options& how = form.orthogonalization;
  if (how.steps < 0 || !(how.epsilon > 0) || !(how.safety > 0)) {
    throw spec_error(
        fmt::format("{}: {} steps, epsilon {} and safety {} of the orthogonalisation; steps cannot "
                    "be negative, the others must be positive",
                    name, how.steps, how.epsilon, how.safety));
  }
}

// The momentum takes g; e becomes a mix of both.
template <class T>
struct momentum_step {
  T keep, take, ahead_keep, ahead_take;
  MFSDP_HOST_DEVICE void operator()(auto& m, auto& e, const auto& g) const {
    m = keep * m + take * g;
    e = ahead_keep * m + ahead_take * g;
  }
};

template <class T>
struct cautious_descend {
  T lose, by;
  MFSDP_HOST_DEVICE void operator()(auto& w, const auto& e) const {
    w = w - lose * w * nonnegative(w * e) - by * e;
  }
};

// The momentum takes the gradient; x becomes what is to be orthogonalised.
template <Backend B, class T>
void take_gradient(B& backend, const muon_form& form, double momentum, std::span<T> state,
                   std::type_identity_t<std::span<const T>> gradient, std::span<T> x) {
  const double weight = form.momentum == momentum_rule::ema ? 1 - momentum : 1;
  const momentum_step<T> step{.keep = static_cast<T>(momentum),
                              .take = static_cast<T>(weight),
                              .ahead_keep = static_cast<T>(form.nesterov ? momentum : 1),
                              .ahead_take = static_cast<T>(form.nesterov ? weight : 0)};
  backend.transform(step, state, x, gradient);
}

// W <- W - decay W, where the rule says so, - step X.
template <Backend B, class T>
void apply_update(B& backend, decay_rule rule, double decay, double step, std::span<T> parameter,
                  std::type_identity_t<std::span<const T>> x) {
  const T by = static_cast<T>(step);
  if (rule == decay_rule::plain) {
    backend.transform(descend<T>{static_cast<T>(1 - decay), by}, parameter, x);
  } else {
    backend.transform(cautious_descend<T>{static_cast<T>(decay), by}, parameter, x);
  }
}

}  // namespace detail

}  // namespace mfsdp::inline MFSDP_ABI
