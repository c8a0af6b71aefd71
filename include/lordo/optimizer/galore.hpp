// galore: Adam of low rank on the mean gradient, in a basis that stays for many steps.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "lordo/concepts.hpp"
#include "lordo/optimizer/adam_options.hpp"
#include "lordo/periods.hpp"
#include "lordo/projector/find_basis.hpp"
#include "lordo/projector/random.hpp"
#include "lordo/projector/svd.hpp"
#include "lordo/subspace.hpp"
#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"
#include "mfsdp/workspace.hpp"

namespace lordo::inline MFSDP_ABI {

namespace detail {

// Decays what the step has left.
template <class T>
struct step_then_decay {
  T keep, by;
  MFSDP_HOST_DEVICE void operator()(auto& w, const auto& e) const { w = keep * (w - by * e); }
};

}  // namespace detail

// GaLore under data parallelism, on a matrix X (p x q) with mean gradient G, step t = 1, 2, ...;
// project and lift as in subspace.hpp, M and V the moments (r x q or p x r):
//
//   every `refresh` steps of the model, the first included:   B <- projector(G) from B
//   M <- b1 M + (1 - b1) project(G),   V <- b2 V + (1 - b2) project(G)^2
//   X <- X - lr scale sqrt(1 - b2^t) / (1 - b1^t) lift(M / (sqrt(V) + epsilon))
//   X <- (1 - lr wd) X
//
// The first basis are the singular vectors of G unless the projector reads no signal. The moments
// are not turned at a refresh. Epsilon stands outside of the corrected root, as in the source.
// A matrix with a side of at most r takes the step of B = identity: Adam of full size at lr scale.
// The basis of a square matrix is on the left; the source takes the right.
// Before the update the mean of project(G) is formed, r max(p, q) numbers, and at a refresh that of
// G, p q numbers; the basis is equal on all sites to the last bit, and nothing is sent for it. A
// site whose gradient is unusable steps on the mean of the others.
// Keeps r (3 max(p, q) + min(p, q)) numbers, and p q for the mean gradient of a refresh. A
// projector that reads no signal needs neither that mean nor its memory.
// Cost: 4 p q r operations, and those of the projector at a refresh; workspace of one matrix and
// one projected.
// Source: Zhao et al., arXiv 2403.03507; github.com/jiaweizzhao/GaLore, whose defaults these are
// but for the rank.
template <class P = svd>
struct galore {
  static_assert(sizeof(contract::check_projector<P>) > 0);

  index_t rank = 0;  // r; must be given
  double learning_rate = 0.01;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-6;
  double weight_decay = 0;
  double scale = 0.25;
  std::int64_t refresh = 200;  // steps a basis stays; positive
  P projector{};

  static constexpr std::string_view name = "galore";
  static constexpr bool whole_matrix = true;
  static constexpr bool squares_gradient = true;
  static constexpr bool updates_from_mean = true;
  static constexpr int rounds_before_update = 1;
  static constexpr int rounds_after_update = 0;

  void check() const {
    detail::check_common_options(*this);
    detail::check_adam(name, beta1, beta2, epsilon);
    detail::check_not_negative(name, "scale", scale);
    if (refresh < 1) {
      throw mfsdp::spec_error(fmt::format(
          "galore: refresh is {}; a basis stays for a positive number of steps", refresh));
    }
  }
  [[nodiscard]] std::string options() const {
    return fmt::format("galore {} {} {} {} {} {} {} {} ({})", rank, learning_rate, beta1, beta2,
                       epsilon, weight_decay, scale, refresh, projector.options());
  }
  [[nodiscard]] constexpr index_t flops(matrix_shape shape) const {
    if (!low_rank(shape)) return 16 * shape.elements();
    return (4 * rank + 4) * shape.elements() + 12 * projected_shape(shape, rank).elements() +
           detail::in_a_step(projector.flops(shape, rank), refresh);
  }
  [[nodiscard]] constexpr std::array<mfsdp::state_spec, 5> states(matrix_shape shape) const {
    const bool low = low_rank(shape);
    const index_t projected = low ? projected_shape(shape, rank).elements() : 0;
    const index_t moment = low ? projected : shape.elements();
    return {{{"basis", low ? basis_shape(shape, rank).elements() : 0, true},
             {"first_moment", moment, true},
             {"second_moment", moment, true},
             {"projected_gradient", projected, true},
             {"mean_gradient", low && !P::needs_signal ? 0 : shape.elements(), true}}};
  }
  [[nodiscard]] constexpr std::array<std::string_view, 5> equal_states(matrix_shape) const {
    return {P::name};
  }
  [[nodiscard]] constexpr index_t workspace_size(matrix_shape shape) const {
    if (!low_rank(shape)) return 0;
    const auto part = [](index_t elements) { return mfsdp::detail::workspace_part(elements); };
    const index_t refreshing =
        part(basis_shape(shape, rank).elements()) +
        std::max(projector.workspace_size(shape, rank), svd{}.workspace_size(shape, rank));
    const index_t stepping = part(shape.elements()) + part(projected_shape(shape, rank).elements());
    return std::max(refreshing, stepping);
  }

  [[nodiscard]] constexpr std::array<bool, 6> exchanges(matrix_shape shape,
                                                        mfsdp::exchange_round round) const {
    const bool whole = sends_whole(shape, round.step);
    return {false, false, false, false, !whole, whole};
  }

  template <mfsdp::DecomposingBackend B, class T>
  void start(B& backend, const std::array<std::span<T>, 5>& state, matrix_view<T> parameter,
             const mfsdp::update_context<T>& context) const {
    detail::start_basis<B, T>(backend, state[0], parameter.shape(), context.item);
  }

  template <mfsdp::Backend B, class T>
  void contribute(B& backend, const std::array<std::span<T>, 5>& state, matrix_view<T> parameter,
                  std::type_identity_t<matrix_view<const T>> gradient,
                  const mfsdp::update_context<T>& context, int) const {
    const matrix_shape shape = parameter.shape();
    if (sends_whole(shape, context.model_step)) {
      backend.copy(gradient.flat(), state[4]);
      return;
    }
    // What needs no signal is drawn here and again in adopt(), which every site calls.
    matrix_view<T> basis(state[0].data(), basis_shape(shape, rank));
    if (refreshes(context.model_step)) basis = next_basis(backend, state, shape, context);
    project_gradient<B, T>(backend, state, basis, gradient);
  }

  template <mfsdp::DecomposingBackend B, class T>
  void adopt(B& backend, const std::array<std::span<T>, 5>& state, matrix_view<T> parameter,
             const mfsdp::update_context<T>& context, int) const {
    const matrix_shape shape = parameter.shape();
    if (!low_rank(shape) || !refreshes(context.model_step)) return;
    const matrix_view<T> next = next_basis(backend, state, shape, context);
    backend.copy(next.flat(), state[0]);
    if (P::needs_signal) {
      project_gradient<B, T>(backend, state, next, {state[4].data(), shape});
    }
  }

  template <mfsdp::Backend B, class T>
  void update(B& backend, const std::array<std::span<T>, 5>& state, matrix_view<T> parameter,
              std::type_identity_t<matrix_view<const T>>,
              const mfsdp::update_context<T>& context) const {
    const matrix_shape shape = parameter.shape();
    const double t = static_cast<double>(context.step);
    const double rate = learning_rate * context.learning_rate_scale;
    const T by =
        static_cast<T>(rate * scale * std::sqrt(1 - std::pow(beta2, t)) / (1 - std::pow(beta1, t)));
    const auto adam = detail::adam_kernel<T>::of(beta1, beta2, epsilon);
    const detail::step_then_decay<T> take_step{static_cast<T>(1 - rate * weight_decay), by};
    if (!low_rank(shape)) {
      // The mean gradient is not needed any more, so the direction takes its place.
      backend.transform(adam, state[1], state[2], state[4]);
      backend.transform(take_step, parameter.flat(), state[4]);
      return;
    }
    assert(std::ssize(context.workspace) >= workspace_size(shape));
    mfsdp::detail::workspace_cutter<T> workspace(context.workspace);
    const matrix_view<T> full = workspace.take(shape);
    const matrix_view<T> low = workspace.take(projected_shape(shape, rank));
    const matrix_view<T> basis(state[0].data(), basis_shape(shape, rank));
    backend.copy(state[3], low.flat());
    backend.transform(adam, state[1], state[2], low.flat());
    lift<B, T>(backend, T(1), basis, low, T(0), full);
    backend.transform(take_step, parameter.flat(), full.flat());
  }

 private:
  [[nodiscard]] constexpr bool low_rank(matrix_shape shape) const {
    return rank < std::min(shape.rows, shape.cols);
  }
  [[nodiscard]] constexpr bool refreshes(std::int64_t model_step) const {
    return (model_step - 1) % refresh == 0;
  }
  // Whether the gradient itself is averaged.
  [[nodiscard]] constexpr bool sends_whole(matrix_shape shape, std::int64_t model_step) const {
    return !low_rank(shape) || (P::needs_signal && refreshes(model_step));
  }
  // That of a refresh, in the workspace.
  template <class B, class T>
  [[nodiscard]] matrix_view<T> next_basis(B& backend, const std::array<std::span<T>, 5>& state,
                                          matrix_shape shape,
                                          const mfsdp::update_context<T>& context) const {
    assert(std::ssize(context.workspace) >= workspace_size(shape));
    mfsdp::detail::workspace_cutter<T> workspace(context.workspace);
    const matrix_view<T> next = workspace.take(basis_shape(shape, rank));
    const matrix_view<const T> basis(state[0].data(), next.shape());
    const matrix_view<const T> mean(state[4].data(), shape);
    if (P::needs_signal && context.model_step == 1) {
      detail::find_basis(svd{}, backend, mean, basis, next, workspace.rest(), context);
    } else {
      detail::find_basis(projector, backend, mean, basis, next, workspace.rest(), context);
    }
    return next;
  }
  template <class B, class T>
  void project_gradient(B& backend, const std::array<std::span<T>, 5>& state,
                        matrix_view<const T> basis, matrix_view<const T> gradient) const {
    const matrix_view<T> projected(state[3].data(), projected_shape(gradient.shape(), rank));
    project<B, T>(backend, T(1), basis, gradient, T(0), projected);
  }
};

}  // namespace lordo::inline MFSDP_ABI
