// muon: momentum, orthogonalised. The step of a matrix has all its singular values near one.
#pragma once

#include <array>
#include <cassert>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"
#include "mfsdp/optimizer/muon_form.hpp"
#include "mfsdp/optimizer/newton_schulz_tables.hpp"

namespace mfsdp::inline MFSDP_ABI {

// Muon on a matrix W (rows x cols, outputs x inputs) with gradient G; here Keller Jordan's form,
// which is the default (muon_form has the others):
//
//   M <- mu M + (1 - mu) G                           the state, one matrix
//   X <- newton_schulz(mu M + (1 - mu) G)            Nesterov's look-ahead
//   W <- (1 - lr wd) W - lr sqrt(max(1, rows / cols)) X
//
// A zero gradient decays W and M, nothing else; a matrix of a single row, column or element moves
// by about 0.7 of its unit step. No finite float overflows; below a norm of about epsilon the step
// fades. G must be finite, which the runtime sees to. The gradient is never written.
// The alignment of W, M and G does not matter, since products run in the workspace.
// Cost: newton_schulz_flops; state and workspace about four matrices.
struct muon {
  double learning_rate = 0.02;
  double momentum = 0.95;  // in [0, 1)
  double weight_decay = 0;
  muon_form form{};

  static constexpr std::string_view name = "muon";
  static constexpr bool whole_matrix = true;

  // Presets: the numbers and default hyper-parameters of other implementations, in the precision of
  // the parameter instead of theirs. To port a run, take its preset and set the rates:
  //
  //   auto rule = muon::moonlight();
  //   rule.learning_rate = 2e-4;

  // github.com/KellerJordan/Muon.
  [[nodiscard]] static constexpr muon keller() { return {}; }

  // torch.optim.Muon, adjust_lr_fn "original" (its default).
  [[nodiscard]] static constexpr muon torch() {
    return {.learning_rate = 1e-3,
            .weight_decay = 0.1,
            .form = {.orthogonalization = {.rule = epsilon_rule::clamp}}};
  }

  // torch.optim.Muon, adjust_lr_fn "match_rms_adamw".
  [[nodiscard]] static constexpr muon torch_match_rms() {
    muon rule = torch();
    rule.form.scale = update_scale::match_rms;
    return rule;
  }

  // github.com/MoonshotAI/Moonlight; arXiv 2502.16982.
  [[nodiscard]] static constexpr muon moonlight() {
    return {.learning_rate = 1e-3,
            .weight_decay = 0.1,
            .form = {.momentum = momentum_rule::heavy_ball, .scale = update_scale::match_rms}};
  }

  // Muon of github.com/microsoft/dion; its cautious_wd is decay_rule::cautious.
  [[nodiscard]] static constexpr muon dion() {
    return {.learning_rate = 0.01,
            .weight_decay = 0.01,
            .form = {.momentum = momentum_rule::heavy_ball,
                     .nesterov = false,
                     .orthogonalization = {.coefficients = polar_express_safe_coefficients,
                                           .safety = 1.02,
                                           .epsilon = 1e-6},
                     .scale = update_scale::spectral}};
  }

  // github.com/NVIDIA-NeMo/Emerging-Optimizers. It decays before it updates the momentum, which
  // makes no difference since the momentum does not see W.
  [[nodiscard]] static constexpr muon nvidia() {
    return {.learning_rate = 3e-4,
            .weight_decay = 0.01,
            .form = {.nesterov = false,
                     .orthogonalization = {.coefficients = you_coefficients,
                                           .epsilon = 1e-15,
                                           .rule = epsilon_rule::clamp},
                     .scale = update_scale::unit_rms}};
  }

  // github.com/Dao-AILab/gram-newton-schulz.
  [[nodiscard]] static constexpr muon gram() {
    return {.learning_rate = 1e-3,
            .weight_decay = 0.1,
            .form = {.momentum = momentum_rule::heavy_ball,
                     .orthogonalization = {.coefficients = gram_coefficients},
                     .scale = update_scale::match_rms}};
  }

  void check() const { detail::check_muon(name, momentum, form); }
  // For the check that all ranks use the same.
  [[nodiscard]] std::string options() const {
    return fmt::format("muon {} {} {} {}", learning_rate, momentum, weight_decay,
                       detail::options_text(form));
  }
  [[nodiscard]] constexpr index_t flops(matrix_shape shape) const {
    return newton_schulz_flops(shape, form.orthogonalization.steps, form.orthogonalization.form) +
           13 * shape.elements();
  }
  [[nodiscard]] constexpr std::array<state_spec, 1> states(matrix_shape shape) const {
    return {{{"momentum", shape.elements()}}};
  }
  [[nodiscard]] constexpr index_t workspace_size(matrix_shape shape) const {
    return detail::workspace_part(shape.elements()) +
           newton_schulz_workspace(shape, form.orthogonalization.form);
  }

  template <Backend B, class T>
  void update(B& backend, const std::array<std::span<T>, 1>& state, matrix_view<T> parameter,
              std::type_identity_t<matrix_view<const T>> gradient,
              const update_context<T>& context) const {
    assert(std::ssize(context.workspace) >= workspace_size(parameter.shape()));
    detail::workspace_cutter<T> workspace(context.workspace);
    const matrix_view<T> direction = workspace.take(parameter.shape());

    detail::take_gradient(backend, form, momentum, state[0], gradient.flat(), direction.flat());
    newton_schulz(backend, direction, form.orthogonalization, workspace.rest());
    const double rate = learning_rate * context.learning_rate_scale;
    detail::apply_update(backend, form.decay, rate * weight_decay,
                         rate * scale_factor(form.scale, parameter.shape()), parameter.flat(),
                         direction.flat());
  }
};

static_assert(Optimizer<muon>);

struct named_muon {
  std::string_view name;
  muon rule;
};

// The presets by name, for command lines.
inline constexpr std::array<named_muon, 7> muon_presets{
    {{"keller", muon::keller()},
     {"torch", muon::torch()},
     {"torch_match_rms", muon::torch_match_rms()},
     {"moonlight", muon::moonlight()},
     {"dion", muon::dion()},
     {"nvidia", muon::nvidia()},
     {"gram", muon::gram()}}};

// The preset of this name. Errors: spec_error that lists the names.
[[nodiscard]] inline muon muon_preset(std::string_view name) {
  std::string names;
  for (const named_muon& preset : muon_presets) {
    if (preset.name == name) return preset.rule;
    names += fmt::format(" {}", preset.name);
  }
  throw spec_error(fmt::format("no preset of muon is named '{}'; there are:{}", name, names));
}

}  // namespace mfsdp::inline MFSDP_ABI
