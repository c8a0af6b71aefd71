// dion: orthogonal updates of low rank, from one step of power iteration on the momentum.
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
#include "mfsdp/kernel.hpp"
#include "mfsdp/optimizer/muon_form.hpp"

namespace mfsdp::inline MFSDP_ABI {

namespace detail {

// A sum of squares becomes the inverse of its root.
template <class T>
struct inverse_root {
  T floor;
  MFSDP_HOST_DEVICE void operator()(auto& x) const {
    using std::sqrt;
    x = T(1) / (sqrt(x) + floor);
  }
};

template <class T>
struct chaotic_map {
  T shift;
  MFSDP_HOST_DEVICE void operator()(auto& to, const auto& from) const {
    using std::sin;
    to = sin(T(37) * shift * from + shift);
  }
};

}  // namespace detail

// On a matrix W (m x n, outputs x inputs) with gradient G and rank r, at most min(m, n). All
// factors are kept by rows: P is r x m, Q and R are r x n.
//
//   M <- M + G                       the first state, m x n
//   P <- orthonormalised Q M^T
//   R <- P M
//   M <- M - (1 - mu) P^T R          what was not used stays for later steps
//   Q <- R / (|row of R| + 1e-8)     the second state
//   W <- (1 - lr wd) W - lr sqrt(m / n) P^T Q
//
// A basis Q of zeros, as at the start, becomes a fixed one of pseudo-random numbers. A zero
// gradient at the first step only decays W. The gradient is never written.
// The alignment of W and G does not matter; the states are multiplied where they stand.
// Cost: 8 m n r + 4 m r^2 operations, workspace for m n + m r elements.
// Source: Ahn et al., arXiv 2504.05295; github.com/microsoft/dion (dion_simple).
struct dion {
  double learning_rate = 0.01;
  double momentum = 0.95;
  double weight_decay = 0.01;
  index_t rank = 768;  // of an update; positive

  static constexpr std::string_view name = "dion";
  static constexpr bool whole_matrix = true;
  static constexpr bool squares_gradient = true;

  void check() const {
    if (rank < 1) throw spec_error(fmt::format("dion: the rank {} is not positive", rank));
  }
  // For the check that all ranks use the same.
  [[nodiscard]] std::string options() const {
    return fmt::format("dion {} {} {} {}", learning_rate, momentum, weight_decay, rank);
  }
  [[nodiscard]] constexpr index_t flops(matrix_shape shape) const {
    const index_t r = rank_in(shape);
    return 8 * r * shape.elements() + 4 * r * r * shape.rows + 5 * shape.elements();
  }
  // The basis stays exact: an error of it is one of the direction.
  [[nodiscard]] constexpr std::array<state_spec, 2> states(matrix_shape shape) const {
    return {{{"momentum", shape.elements()},
             {.name = "basis", .elements = rank_in(shape) * shape.cols, .exact = true}}};
  }
  [[nodiscard]] constexpr index_t workspace_size(matrix_shape shape) const {
    const index_t r = rank_in(shape);
    return detail::workspace_part(shape.elements()) + detail::workspace_part(r * shape.rows) +
           detail::workspace_part(r);
  }

  template <DecomposingBackend B, class T>
  void update(B& backend, const std::array<std::span<T>, 2>& state, matrix_view<T> parameter,
              std::type_identity_t<matrix_view<const T>> gradient,
              const update_context<T>& context) const {
    assert(std::ssize(context.workspace) >= workspace_size(parameter.shape()));
    if (parameter.size() == 0) return;
    const index_t r = rank_in(parameter.shape());
    detail::workspace_cutter<T> workspace(context.workspace);
    const matrix_view<T> direction = workspace.take(parameter.shape());
    const matrix_view<T> left = workspace.take(matrix_shape{r, parameter.rows()});
    const std::span<T> factors = workspace.take(r);
    const matrix_view<T> residual(state[0].data(), parameter.shape());
    const matrix_view<T> basis(state[1].data(), r, parameter.cols());

    if (backend.sum_of_squares(basis.flat()) == 0) scatter(backend, basis.flat());
    backend.transform(detail::add{}, residual.flat(), gradient.flat());
    backend.multiply(T(1), basis, transpose::no, residual, transpose::yes, T(0), left, left);
    backend.orthonormalize_rows(left);
    backend.multiply(T(1), left, transpose::no, residual, transpose::no, T(0), basis, basis);
    backend.multiply(static_cast<T>(momentum - 1), left, transpose::yes, basis, transpose::no, T(1),
                     residual, residual);

    backend.row_sums_of_squares(basis, factors);
    backend.transform(detail::inverse_root<T>{T(1e-8)}, factors);
    backend.scale_rows(factors, basis);
    backend.multiply(T(1), left, transpose::yes, basis, transpose::no, T(0), direction, direction);

    const double rate = learning_rate * context.learning_rate_scale;
    detail::apply_update(backend, decay_rule::plain, rate * weight_decay,
                         rate * scale_factor(update_scale::spectral, parameter.shape()),
                         parameter.flat(), direction.flat());
  }

 private:
  [[nodiscard]] constexpr index_t rank_in(matrix_shape shape) const {
    return std::min({rank, shape.rows, shape.cols});
  }

  // Numbers in [-1, 1] without a visible pattern, the same for the same size. What is there is
  // doubled through a chaotic map until the span is full, so that it takes few operations of any
  // backend. Each map has another frequency, or rows would depend on each other linearly.
  template <class B, class T>
  static void scatter(B& backend, std::span<T> x) {
    backend.fill(x.first(1), T(0.5));
    T shift = 1;
    for (std::size_t filled = 1; filled < x.size(); filled *= 2, shift += 1) {
      const std::size_t count = std::min(filled, x.size() - filled);
      backend.transform(detail::chaotic_map<T>{shift}, x.subspan(filled, count),
                        std::span<const T>(x.first(count)));
    }
  }
};

static_assert(Optimizer<dion>);

}  // namespace mfsdp::inline MFSDP_ABI
