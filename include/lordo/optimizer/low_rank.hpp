// low_rank: LoRDO. Many local steps with low-rank moments, one basis from what they added up to.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "lordo/concepts.hpp"
#include "lordo/optimizer/clipping.hpp"
#include "lordo/optimizer/error_feedback.hpp"
#include "lordo/optimizer/figures.hpp"
#include "lordo/optimizer/low_rank_options.hpp"
#include "lordo/optimizer/low_rank_step.hpp"
#include "lordo/optimizer/moments.hpp"
#include "lordo/periods.hpp"
#include "lordo/projector/power_step.hpp"
#include "lordo/subspace.hpp"
#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"
#include "mfsdp/workspace.hpp"

namespace lordo::inline MFSDP_ABI {

// LoRDO on a matrix X (p x q) with gradient G and an orthonormal basis of rank r (subspace.hpp;
// left side here). Step t of a site:
//
//   G' = clip(G),  A = G' + E,  g = B A,  E <- A - B^T g         E only with error feedback
//   moments take g and give the step s                           Adam: s = u' / D, moments.hpp
//   U = (1 - omega) / mu F / d + omega B^T s                     F: G' or G' - B^T B G'
//   X <- X - lr wd X_a - lr U                                    or (1 - lr wd) X - lr U
//
// Where both terms live in the subspace (full_rank_term::projected), U = B^T s of the mixed
// momentum omega u' + (1 - omega) / mu g. Every periods.parameters steps, after the step:
//
//   X <- mean over sites,  Delta = X - X_a + X_a sum(lr wd),  X_a <- X
//   B_new = basis of Delta by the Projector,  R = B_new B^T,  moments rotated by R,  B <- B_new
//
// Moments are averaged at periods of their own, in the basis that is common to all sites, before a
// rotation of the same step. The local form has no anchor, keeps its moments to itself and takes a
// basis from A at the first update after a sync. A Projector that reads no signal needs no anchor
// either. Where there is no anchor, decay is of the parameter.
//
// omega weighs the momentum, but the full-rank term is the larger one far below omega = 0.9, as the
// momentum of a noisy gradient shrinks and the gradient does not. mu is one knob too many: only
// omega lr and (1 - omega) / (omega mu) matter; leave it at 1. With omega = 1 no step leaves the
// span of the first basis. B^T s has norm about sqrt(r q), that of full Adam sqrt(p q); nothing
// compensates for it.
//
// A matrix with r >= min(p, q) gets the same moments at full size: Adam (Muon) without basis,
// feedback and full-rank term, averaged at the same periods.
// A zero gradient at the first step only decays X; G must have squares that are finite and is never
// written. Bias correction counts this site's updates, in a rotation the steps of the model, which
// all sites know.
// Cost: 4 p q r operations a step, with feedback 8; workspace of two matrices and what the
// Projector, a decomposition or Newton-Schulz ask for. State: r (2 q + p) numbers for Adam, r (q +
// p) for Muon, p q more each for anchor and feedback. Sent: p q each parameter period, r q for each
// moment, p q once for the first basis.
// Source: Jovanovic et al., arXiv 2602.04396, as far as it could be read; docs/lordo.md says what
// is theirs and what is not.
template <class Moments, class P>
struct low_rank {
  static constexpr double usual_feedback_decay = 0.9;

  index_t rank = 0;  // positive
  double learning_rate = Moments::learning_rate;
  basis_source variant = basis_source::global;
  double omega = 0.5;  // of the low-rank term, from 0 to 1
  double mu = 1;       // positive
  full_rank_term full_term = full_rank_term::gradient;
  Moments moments{};
  P projector{};
  clipping clip{};
  std::optional<error_feedback> feedback{};      // if not given, none if global, full if local
  double feedback_decay = usual_feedback_decay;  // for error_feedback::decayed only
  first_basis first = first_basis::gradient;
  double weight_decay = 0;
  std::optional<decay_source> decay_from{};  // if not given, the anchor where there is one
  sync_periods periods{};

  static_assert(sizeof(contract::check_projector<P>) > 0);

  static constexpr std::string_view name = Moments::rule;
  static constexpr bool whole_matrix = true;
  static constexpr bool squares_gradient = true;
  static constexpr bool has_second_moment = Moments::has_second;
  static constexpr bool divides_by_norm = Moments::divides_by_norm;
  static constexpr int rounds_before_update = 1;  // for the first basis
  static constexpr int rounds_after_update = 1;

  // Places in states(shape).
  enum state : std::size_t {
    basis,
    first_moment,
    second_moment,
    anchor,
    error,
    decay_sum,
    figures,
    round_open
  };
  template <class T>
  using state_array = std::array<std::span<T>, 8>;

  void check() const {
    const auto refuse = [](std::string_view what, double value, std::string_view cure) {
      throw mfsdp::spec_error(fmt::format("{}: {} is {}; {}", name, what, value, cure));
    };
    detail::check_common_options(*this);
    if (!(omega >= 0 && omega <= 1)) {
      refuse("omega", omega, "it weighs the low-rank term, from 0 to 1");
    }
    if (!(mu > 0)) refuse("mu", mu, "it divides the full-rank term and must be positive");
    if (!(feedback_decay >= 0 && feedback_decay <= 1)) {
      refuse("feedback_decay", feedback_decay, "it must be from 0 to 1");
    }
    if (feedback_decay != usual_feedback_decay && feedback_in_use() != error_feedback::decayed) {
      refuse("feedback_decay", feedback_decay, "it has no effect without error_feedback::decayed");
    }
    if (decay_from == decay_source::anchor && !keeps_anchor()) {
      throw mfsdp::spec_error(
          fmt::format("{}: decay_from is the anchor, which {} does not keep; leave it out or set "
                      "decay_source::parameter",
                      name,
                      variant == basis_source::local ? "the local form"
                                                     : "a rule whose Projector reads no signal"));
    }
    moments.check(name);
    clip.check(name);
    periods.check(name);
  }

  // For the check that all ranks and sites use the same.
  [[nodiscard]] std::string options() const {
    return fmt::format(
        "{} {} {} {} {} {} {} moments {} projector {} clip {} feedback {} {} first "
        "{} decay {} {} periods {}",
        name, rank, learning_rate, static_cast<int>(variant), omega, mu,
        static_cast<int>(full_term), moments.options(), projector.options(), clip.options(),
        static_cast<int>(feedback_in_use()), feedback_decay, static_cast<int>(first), weight_decay,
        static_cast<int>(decay_in_use()), periods.options());
  }

  // Whether the matrix is updated at full size, without a basis.
  [[nodiscard]] constexpr bool full_size(matrix_shape shape) const {
    return rank >= std::min(shape.rows, shape.cols);
  }

  // A change of basis counts with its share of one step.
  [[nodiscard]] constexpr index_t flops(matrix_shape shape) const {
    if (full_size(shape)) return moments.flops(shape) + 4 * shape.elements();
    const matrix_shape low = projected_shape(shape, rank);
    const index_t products = 2 + (feedback_in_use() != error_feedback::none ? 2 : 0) +
                             (full_term == full_rank_term::residual ? 1 : 0);
    const index_t change = projector.flops(shape, rank) +
                           2 * rank * basis_shape(shape, rank).elements() +
                           4 * rank * low.elements() + 3 * shape.elements();
    return 2 * products * rank * shape.elements() + moments.flops(low) + 12 * shape.elements() +
           detail::in_a_step(change, periods.parameters);
  }

  // All exact, as sites compare them bit by bit.
  [[nodiscard]] constexpr std::array<mfsdp::state_spec, 8> states(matrix_shape shape) const {
    const bool full = full_size(shape);
    const index_t low = full ? shape.elements() : projected_shape(shape, rank).elements();
    return {{{"basis", full ? 0 : basis_shape(shape, rank).elements(), true},
             {"first_moment", low, true},
             {"second_moment", has_second_moment ? low : 0, true},
             {"anchor", has_anchor(shape) ? shape.elements() : 0, true},
             {"feedback", !full && feedback_in_use() != error_feedback::none ? shape.elements() : 0,
              true},
             {"decay_sum", decays_from_anchor(shape) ? 1 : 0, true},
             {"figures", full ? 0 : static_cast<index_t>(figure::count), true},
             {"round_open", !full && opens_rounds() ? 1 : 0, true}}};
  }

  [[nodiscard]] constexpr std::array<std::string_view, 8> equal_states(matrix_shape) const {
    return {variant == basis_source::global ? P::name : std::string_view()};
  }

  [[nodiscard]] constexpr index_t workspace_size(matrix_shape shape) const {
    if (!full_size(shape)) return detail::low_rank_scratch<float>::size(*this, shape);
    return 2 * mfsdp::detail::workspace_part(shape.elements()) + moments.workspace_size(shape);
  }

  [[nodiscard]] constexpr std::array<bool, 9> exchanges(matrix_shape shape,
                                                        mfsdp::exchange_round round) const {
    std::array<bool, 9> flags{};
    if (round.round == 0) {
      flags[1 + anchor] = has_anchor(shape) && decomposes_first_gradient() && round.step == 1;
      return flags;
    }
    flags[0] = periods.parameters_due(round.step, round.item);
    flags[1 + decay_sum] = flags[0] && decays_from_anchor(shape);
    if (variant == basis_source::global || full_size(shape)) {
      flags[1 + first_moment] = periods.first_moment_due(round.step, round.item);
      flags[1 + second_moment] =
          has_second_moment && periods.second_moment_due(round.step, round.item);
    }
    return flags;
  }

  template <mfsdp::DecomposingBackend B, class T>
  void start(B& backend, const state_array<T>& states, matrix_view<T> parameter,
             const mfsdp::update_context<T>& context) const {
    if (full_size(parameter.shape())) return;
    detail::low_rank_step(*this, backend, states, parameter, context).start();
  }

  // A site that joins starts from the anchor, with no error; the local form opens a round.
  template <mfsdp::Backend B, class T>
  void join(B& backend, const state_array<T>& states, matrix_view<T> parameter,
            const mfsdp::update_context<T>&) const {
    if (!states[anchor].empty()) {
      backend.copy(std::span<const T>(states[anchor]), parameter.flat());
    }
    backend.fill(states[error], T(0));
    backend.fill(states[decay_sum], T(0));
    backend.fill(states[round_open], T(0));
  }

  template <mfsdp::DecomposingBackend B, class T>
  void contribute(B& backend, const state_array<T>& states, matrix_view<T>,
                  std::type_identity_t<matrix_view<const T>> gradient,
                  const mfsdp::update_context<T>&, int round) const {
    if (round == 0) detail::clip<B, T>(backend, clip, gradient.flat(), states[anchor]);
  }

  template <mfsdp::DecomposingBackend B, class T>
  void adopt(B& backend, const state_array<T>& states, matrix_view<T> parameter,
             const mfsdp::update_context<T>& context, int round) const {
    if (full_size(parameter.shape())) return;
    detail::low_rank_step step(*this, backend, states, parameter, context);
    if (round == 0) {
      step.take_first_basis();
    } else if (periods.parameters_due(context.model_step, context.item)) {
      if (variant == basis_source::global) step.synchronize();
      step.end_round();
    }
  }

  template <mfsdp::DecomposingBackend B, class T>
  void update(B& backend, const state_array<T>& states, matrix_view<T> parameter,
              std::type_identity_t<matrix_view<const T>> gradient,
              const mfsdp::update_context<T>& context) const {
    assert(std::ssize(context.workspace) >= workspace_size(parameter.shape()));
    if (parameter.size() == 0) return;
    if (full_size(parameter.shape())) {
      update_full_size(backend, states, parameter, gradient, context);
      return;
    }
    detail::low_rank_step(*this, backend, states, parameter, context)
        .update(gradient, periods.parameters_due(context.model_step, context.item));
  }

  // What is in use if it was not given, or not needed.
  [[nodiscard]] constexpr error_feedback feedback_in_use() const {
    return feedback.value_or(variant == basis_source::global ? error_feedback::none
                                                             : error_feedback::full);
  }
  [[nodiscard]] constexpr bool decomposes_first_gradient() const {
    return P::needs_signal && first == first_basis::gradient;
  }
  [[nodiscard]] constexpr bool has_anchor(matrix_shape shape) const {
    return keeps_anchor() && !full_size(shape);
  }
  [[nodiscard]] constexpr decay_source decay_in_use() const {
    return decay_from.value_or(keeps_anchor() ? decay_source::anchor : decay_source::parameter);
  }
  [[nodiscard]] constexpr bool decays_from_anchor(matrix_shape shape) const {
    return has_anchor(shape) && weight_decay > 0 && decay_in_use() == decay_source::anchor;
  }

 private:
  [[nodiscard]] constexpr bool keeps_anchor() const {
    return variant == basis_source::global && P::needs_signal;
  }
  // Whether the first update of a round differs from the others.
  [[nodiscard]] constexpr bool opens_rounds() const {
    return variant == basis_source::local || feedback_in_use() == error_feedback::window;
  }
  template <class B, class T>
  void update_full_size(B& backend, const state_array<T>& states, matrix_view<T> parameter,
                        matrix_view<const T> gradient,
                        const mfsdp::update_context<T>& context) const {
    const matrix_shape shape = parameter.shape();
    mfsdp::detail::workspace_cutter<T> cutter(context.workspace);
    const matrix_view<T> g = cutter.take(shape);
    const matrix_view<T> denominator = cutter.take(shape);
    const matrix_view<T> first_state(states[first_moment].data(), shape);
    const matrix_view<T> second_state(states[second_moment].data(),
                                      has_second_moment ? shape : matrix_shape{});
    detail::clip<B, T>(backend, clip, gradient.flat(), g.flat());
    moments.take(backend, context.step, {},
                 subspace_step<T>{g, first_state, second_state, denominator}, cutter.rest());
    const double rate = learning_rate * context.learning_rate_scale;
    const mfsdp::detail::descend<T> step{static_cast<T>(1 - rate * weight_decay),
                                         static_cast<T>(rate * moments.scale(shape))};
    backend.transform(step, parameter.flat(), std::span<const T>(g.flat()));
  }
};

// The two rules, with any Projector: low_rank_adam<>{.rank = 8}, low_rank_muon<svd>{.rank = 8}.
template <class P = power_step>
using low_rank_adam = low_rank<adam_moments, P>;
template <class P = power_step>
using low_rank_muon = low_rank<orthogonal_moments, P>;

static_assert(mfsdp::PeriodicOptimizer<low_rank_adam<>>);
static_assert(mfsdp::PeriodicOptimizer<low_rank_muon<>>);

}  // namespace lordo::inline MFSDP_ABI
