// muon: momentum, orthogonalised. The step of a matrix has all its singular values near one.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"
#include "mfsdp/optimizer/newton_schulz.hpp"

namespace mfsdp::inline MFSDP_ABI {

// Keller Jordan's Muon on a matrix W (rows x cols, outputs x inputs) with gradient G:
//
//   M <- mu M + (1 - mu) G                           the state, one matrix
//   X <- newton_schulz(mu M + (1 - mu) G)            Nesterov's look-ahead
//   W <- (1 - lr wd) W - lr sqrt(max(1, rows / cols)) X
//
// A zero gradient decays W and M, nothing else; a matrix of a single row, column or element moves
// by about 0.7 of its unit step. No finite float overflows; below a norm of about epsilon the step
// fades; NaN or infinity in G spreads to all of W. The gradient is never written.
// The alignment of W, M and G does not matter, since products run in the workspace.
// Cost: newton_schulz_flops; state and workspace about four matrices.
// Source: github.com/KellerJordan/Muon, in the precision of the parameter instead of bfloat16.
struct muon {
  double learning_rate = 0.02;
  double momentum = 0.95;
  double weight_decay = 0;
  int steps = 5;  // of Newton-Schulz
  double epsilon = 1e-7;

  static constexpr std::string_view name = "muon";
  static constexpr bool whole_matrix = true;

  // For the check that all ranks use the same.
  [[nodiscard]] std::string options() const {
    return fmt::format("muon {} {} {} {} {}", learning_rate, momentum, weight_decay, steps,
                       epsilon);
  }
  [[nodiscard]] constexpr index_t flops(matrix_shape shape) const {
    return newton_schulz_flops(shape, steps) + 13 * shape.elements();
  }
  [[nodiscard]] constexpr std::array<state_spec, 1> states(matrix_shape shape) const {
    return {{{"momentum", shape.elements()}}};
  }
  [[nodiscard]] constexpr index_t workspace_size(matrix_shape shape) const {
    return detail::workspace_part(shape.elements()) + newton_schulz_workspace(shape);
  }

  template <Backend B, class T>
  void update(B& backend, const std::array<std::span<T>, 1>& state, matrix_view<T> parameter,
              std::type_identity_t<matrix_view<const T>> gradient,
              const update_context<T>& context) const {
    assert(std::ssize(context.workspace) >= workspace_size(parameter.shape()));
    const index_t part = detail::workspace_part(parameter.size());
    const matrix_view<T> direction(context.workspace.data(), parameter.shape());

    const T keep = static_cast<T>(momentum);
    const T take = static_cast<T>(1 - momentum);
    backend.transform(
        [keep, take](auto& m, auto& x, const auto& g) {
          m = keep * m + take * g;
          x = keep * m + take * g;
        },
        state[0], direction.flat(), gradient.flat());

    newton_schulz(backend, direction, {.steps = steps, .epsilon = epsilon},
                  context.workspace.subspan(static_cast<std::size_t>(part)));

    const double aspect =
        static_cast<double>(parameter.rows()) / static_cast<double>(parameter.cols());
    const double rate = learning_rate * context.learning_rate_scale;
    const T decay = static_cast<T>(1 - rate * weight_decay);
    const T step = static_cast<T>(rate * std::sqrt(std::max(1.0, aspect)));
    backend.transform([decay, step](auto& w, const auto& x) { w = decay * w - step * x; },
                      parameter.flat(), std::span<const T>(direction.flat()));
  }
};

static_assert(Optimizer<muon>);

}  // namespace mfsdp::inline MFSDP_ABI
