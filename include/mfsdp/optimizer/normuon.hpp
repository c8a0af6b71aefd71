// normuon: Muon whose rows take steps of equal size.
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
#include "mfsdp/optimizer/muon.hpp"
#include "mfsdp/optimizer/muon_form.hpp"

namespace mfsdp::inline MFSDP_ABI {

namespace detail {

// The average of rows' sums of squares; each sum becomes what its row is multiplied by.
template <class T>
struct row_factor {
  T keep, take, floor;
  MFSDP_HOST_DEVICE void operator()(auto& v, auto& f) const {
    using std::sqrt;
    v = keep * v + take * f;
    f = T(1) / (sqrt(v) + floor);
  }
};

}  // namespace detail

// On a matrix W (rows x cols, outputs x inputs), with X orthogonalised as in muon:
//
//   V <- b2 V + (1 - b2) mean of X^2 over each row    the second state, one number a row
//   Y <- X / (sqrt(V) + 1e-8), row by row
//   W <- (1 - lr wd) W - lr scale |X| / max(|Y|, 1e-8) Y
//
// in norms of Frobenius: rows are evened out, the length of the step is Muon's. There is no bias
// correction, since a factor common to all rows cancels. A zero gradient decays W and the states,
// nothing else. The gradient is never written.
// Cost: that of muon and 6 operations an element; a state and a workspace of `rows` more.
// Source: Li et al., arXiv 2510.05491, by NorMuon of github.com/microsoft/dion, whose form and
// defaults these are. Other implementations even out the shorter side instead of rows.
struct normuon {
  double learning_rate = 0.01;
  double momentum = 0.95;  // in [0, 1)
  double second_moment_decay = 0.95;
  double weight_decay = 0.01;
  muon_form form = muon::dion().form;

  static constexpr std::string_view name = "normuon";
  static constexpr bool whole_matrix = true;

  void check() const { detail::check_muon(name, momentum, form); }
  // For the check that all ranks use the same.
  [[nodiscard]] std::string options() const {
    return fmt::format("normuon {} {} {} {} {}", learning_rate, momentum, second_moment_decay,
                       weight_decay, detail::options_text(form));
  }
  [[nodiscard]] constexpr index_t flops(matrix_shape shape) const {
    return newton_schulz_flops(shape, form.orthogonalization.steps, form.orthogonalization.form) +
           19 * shape.elements();
  }
  // The second moment stays exact: its changes are a small part of it, which rounding would lose.
  [[nodiscard]] constexpr std::array<state_spec, 2> states(matrix_shape shape) const {
    return {{{"momentum", shape.elements()},
             {.name = "row_second_moment", .elements = shape.rows, .exact = true}}};
  }
  [[nodiscard]] constexpr index_t workspace_size(matrix_shape shape) const {
    return detail::workspace_part(shape.elements()) + detail::workspace_part(shape.rows) +
           newton_schulz_workspace(shape, form.orthogonalization.form);
  }

  template <RowwiseBackend B, class T>
  void update(B& backend, const std::array<std::span<T>, 2>& state, matrix_view<T> parameter,
              std::type_identity_t<matrix_view<const T>> gradient,
              const update_context<T>& context) const {
    assert(std::ssize(context.workspace) >= workspace_size(parameter.shape()));
    if (parameter.size() == 0) return;
    detail::workspace_cutter<T> workspace(context.workspace);
    const matrix_view<T> direction = workspace.take(parameter.shape());
    const std::span<T> factors = workspace.take(parameter.rows());

    detail::take_gradient(backend, form, momentum, state[0], gradient.flat(), direction.flat());
    newton_schulz(backend, direction, form.orthogonalization, workspace.rest());

    const double before = std::sqrt(backend.sum_of_squares(direction.flat()));
    const detail::row_factor<T> normalize{
        .keep = static_cast<T>(second_moment_decay),
        .take = static_cast<T>((1 - second_moment_decay) / static_cast<double>(parameter.cols())),
        .floor = static_cast<T>(epsilon_)};
    backend.row_sums_of_squares(direction, factors);
    backend.transform(normalize, state[1], factors);
    backend.scale_rows(factors, direction);
    const double after = std::sqrt(backend.sum_of_squares(direction.flat()));

    const double rate = learning_rate * context.learning_rate_scale;
    const double step = rate * scale_factor(form.scale, parameter.shape());
    detail::apply_update(backend, form.decay, rate * weight_decay,
                         step * before / std::max(after, epsilon_), parameter.flat(),
                         direction.flat());
  }

 private:
  static constexpr double epsilon_ = 1e-8;
};

static_assert(Optimizer<normuon>);

}  // namespace mfsdp::inline MFSDP_ABI
