// ldadam: Adam of low rank on the mean gradient, in a basis that follows it in every step.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "lordo/concepts.hpp"
#include "lordo/optimizer/adam_options.hpp"
#include "lordo/projector/find_basis.hpp"
#include "lordo/projector/power_step.hpp"
#include "lordo/projector/random.hpp"
#include "lordo/projector/svd.hpp"
#include "lordo/subspace.hpp"
#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"
#include "mfsdp/kernel.hpp"
#include "mfsdp/workspace.hpp"

namespace lordo::inline MFSDP_ABI {

namespace detail {

// Adam's step at full size.
template <class T>
struct adam_step {
  adam_kernel<T> adam;
  T keep, by;
  MFSDP_HOST_DEVICE void operator()(auto& w, auto& m, auto& v, auto& g) const {
    adam(m, v, g);
    w = keep * w - by * g;
  }
};

template <class T>
struct sum_with {
  T factor;
  MFSDP_HOST_DEVICE void operator()(auto& to, const auto& g, const auto& m) const {
    to = g + factor * m;
  }
};

}  // namespace detail

// LDAdam under data parallelism, on a matrix X (p x q) with mean gradient G, step t = 1, 2, ...;
// project, lift and the rotation of moments as in subspace.hpp, M and V the moments (r x q or
// p x r), S the signal of the projector:
//
//   A <- G + E
//   S <- rho lift(M / (1 - b1^(t-1))) + (1 - rho) A,   at t = 1: A, by its singular vectors
//   B' <- projector(S) from B,   M', V' <- M, V in the basis B'
//   E <- A - lift'(project'(A)) + b1 / (1 - b1) (lift(M) - lift'(M'))    generalised feedback
//   M <- b1 M' + (1 - b1) project'(A),   V <- b2 V' + (1 - b2) project'(A)^2,   B <- B'
//   X <- (1 - lr wd) X - lr lift(M / (1 - b1^t) / (sqrt(V / (1 - b2^t)) + epsilon))
//
// A matrix with a side of at most r takes the step of B = identity, E = 0: Adam of full size.
// Before the update the mean of G + E, which is A, is formed: p q numbers a step, as the published
// code sends. All states are equal on all sites to the last bit. A site whose gradient is unusable
// steps on the mean of the others.
// Keeps r (2 max(p, q) + min(p, q)) numbers and p q for E, in whose place A stands from the
// exchange to the update. Without feedback E = 0, and the place is kept for G.
// Cost: 12 p q r operations and those of the projector; workspace of one matrix.
// Source: Robert et al., arXiv 2410.16103; github.com/IST-DASLab/LDAdam, whose defaults these are.
template <class P = power_step>
struct ldadam {
  static_assert(sizeof(contract::check_projector<P>) > 0);

  index_t rank = 16;  // r
  double learning_rate = 1e-3;
  double beta1 = 0.908;
  double beta2 = 0.99;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double interpolation = 0.908;  // rho, in [0, 1]
  bool feedback = true;
  P projector{};

  static constexpr std::string_view name = "ldadam";
  static constexpr bool whole_matrix = true;
  static constexpr bool squares_gradient = true;
  static constexpr bool updates_from_mean = true;
  static constexpr int rounds_before_update = 1;
  static constexpr int rounds_after_update = 0;

  void check() const {
    detail::check_common_options(*this);
    detail::check_adam(name, beta1, beta2, epsilon);
    if (!(interpolation >= 0 && interpolation <= 1)) {
      throw mfsdp::spec_error(
          fmt::format("ldadam: interpolation is {}, not from 0 to 1", interpolation));
    }
  }
  [[nodiscard]] std::string options() const {
    return fmt::format("ldadam {} {} {} {} {} {} {} {} ({})", rank, learning_rate, beta1, beta2,
                       epsilon, weight_decay, interpolation, feedback, projector.options());
  }
  [[nodiscard]] constexpr index_t flops(matrix_shape shape) const {
    if (!low_rank(shape)) return 16 * shape.elements();
    return (12 * rank + 8) * shape.elements() + projector.flops(shape, rank) +
           rank * projected_shape(shape, rank).elements() * 4;
  }
  [[nodiscard]] constexpr std::array<mfsdp::state_spec, 4> states(matrix_shape shape) const {
    const index_t moment =
        low_rank(shape) ? projected_shape(shape, rank).elements() : shape.elements();
    const index_t basis = low_rank(shape) ? basis_shape(shape, rank).elements() : 0;
    return {{{"basis", basis, true},
             {"first_moment", moment, true},
             {"second_moment", moment, true},
             {"accumulated_gradient", shape.elements(), true}}};
  }
  [[nodiscard]] constexpr std::array<std::string_view, 4> equal_states(matrix_shape) const {
    return {P::name};
  }
  [[nodiscard]] constexpr index_t workspace_size(matrix_shape shape) const {
    if (!low_rank(shape)) return 0;
    const auto part = [](index_t elements) { return mfsdp::detail::workspace_part(elements); };
    const matrix_shape low = projected_shape(shape, rank);
    return part(shape.elements()) + part(basis_shape(shape, rank).elements()) +
           part(low.elements()) + part(rank * rank) +
           std::max({projector.workspace_size(shape, rank), svd{}.workspace_size(shape, rank),
                     rotation_workspace(low, rank)});
  }

  [[nodiscard]] constexpr std::array<bool, 5> exchanges(matrix_shape, mfsdp::exchange_round) const {
    return {false, false, false, false, true};
  }

  template <mfsdp::DecomposingBackend B, class T>
  void start(B& backend, const std::array<std::span<T>, 4>& state, matrix_view<T> parameter,
             const mfsdp::update_context<T>& context) const {
    detail::start_basis<B, T>(backend, state[0], parameter.shape(), context.item);
  }

  template <mfsdp::Backend B, class T>
  void contribute(B& backend, const std::array<std::span<T>, 4>& state, matrix_view<T> parameter,
                  std::type_identity_t<matrix_view<const T>> gradient,
                  const mfsdp::update_context<T>&, int) const {
    if (feedback && low_rank(parameter.shape())) {
      backend.transform(mfsdp::detail::add{}, state[3], gradient.flat());
    } else {
      backend.copy(gradient.flat(), state[3]);
    }
  }

  template <mfsdp::Backend B, class T>
  void adopt(B&, const std::array<std::span<T>, 4>&, matrix_view<T>,
             const mfsdp::update_context<T>&, int) const {}

  template <mfsdp::DecomposingBackend B, class T>
  void update(B& backend, const std::array<std::span<T>, 4>& state, matrix_view<T> parameter,
              std::type_identity_t<matrix_view<const T>>,
              const mfsdp::update_context<T>& context) const {
    const matrix_shape shape = parameter.shape();
    const double rate = learning_rate * context.learning_rate_scale;
    const T keep = static_cast<T>(1 - rate * weight_decay);
    const T by = static_cast<T>(rate);
    if (!low_rank(shape)) {
      backend.transform(detail::adam_step<T>{adam_at<T>(context.step), keep, by}, parameter.flat(),
                        state[1], state[2], state[3]);
      return;
    }

    assert(std::ssize(context.workspace) >= workspace_size(shape));
    mfsdp::detail::workspace_cutter<T> workspace(context.workspace);
    const matrix_view<T> full = workspace.take(shape);
    const matrix_view<T> next = workspace.take(basis_shape(shape, rank));
    const matrix_view<T> low = workspace.take(projected_shape(shape, rank));
    const matrix_view<T> turn = workspace.take(matrix_shape{rank, rank});
    const matrix_view<T> basis(state[0].data(), next.shape());
    const matrix_view<T> first(state[1].data(), low.shape());
    const matrix_view<T> second(state[2].data(), low.shape());
    const matrix_view<T> residual(state[3].data(), shape);

    // The last basis, in which the moments still stand, is kept until they are turned.
    const double bias1 = 1 - std::pow(beta1, static_cast<double>(context.step - 1));
    const double bias2 = 1 - std::pow(beta2, static_cast<double>(context.step - 1));
    if (P::needs_signal && context.step == 1) {
      detail::find_basis(svd{}, backend, residual, basis, next, workspace.rest(), context);
    } else {
      if (P::needs_signal) {
        backend.copy(residual.flat(), full.flat());
        lift<B, T>(backend, static_cast<T>(interpolation / bias1), basis, first,
                   static_cast<T>(1 - interpolation), full);
      }
      detail::find_basis(projector, backend, full, basis, next, workspace.rest(), context);
    }

    const T carry = static_cast<T>(beta1 / (1 - beta1));
    project<B, T>(backend, T(1), next, residual, T(0), low);
    if (feedback) lift<B, T>(backend, carry, basis, first, T(1), residual);
    if (context.step > 1) {
      rotation<B, T>(backend, next, basis, turn);
      rotate_moments<B, T>(backend, side_of(shape), turn, bias1, bias2, first, second,
                           workspace.rest());
    }
    backend.copy(next.flat(), basis.flat());
    if (feedback) {
      const matrix_view<T> taken(workspace.rest().data(), low.shape());
      backend.transform(detail::sum_with<T>{carry}, taken.flat(), low.flat(), first.flat());
      lift<B, T>(backend, T(-1), basis, taken, T(1), residual);
    }

    backend.transform(adam_at<T>(context.step), first.flat(), second.flat(), low.flat());
    lift<B, T>(backend, T(1), basis, low, T(0), full);
    backend.transform(mfsdp::detail::descend<T>{keep, by}, parameter.flat(), full.flat());
  }

 private:
  [[nodiscard]] constexpr bool low_rank(matrix_shape shape) const {
    return rank < std::min(shape.rows, shape.cols);
  }
  template <class T>
  [[nodiscard]] detail::adam_kernel<T> adam_at(std::int64_t step) const {
    const double t = static_cast<double>(step);
    auto kernel = detail::adam_kernel<T>::of(beta1, beta2, epsilon);
    kernel.momentum = static_cast<T>(1 / (1 - std::pow(beta1, t)));
    kernel.unbias = static_cast<T>(1 / std::sqrt(1 - std::pow(beta2, t)));
    return kernel;
  }
};

}  // namespace lordo::inline MFSDP_ABI
