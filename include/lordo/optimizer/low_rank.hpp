// low_rank: LoRDO. Many local steps with low-rank moments, one basis from what they added up to.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
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
#include "lordo/optimizer/moments.hpp"
#include "lordo/periods.hpp"
#include "lordo/projector/power_step.hpp"
#include "lordo/projector/random.hpp"
#include "lordo/projector/svd.hpp"
#include "lordo/subspace.hpp"
#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"
#include "mfsdp/workspace.hpp"

namespace lordo::inline MFSDP_ABI {

// Where the basis of a site comes from.
enum class basis_source {
  global,  // all sites share one, of their mean pseudo-gradient, from sync to sync
  local,   // each has its own, of its gradient at the first step of a round
};

// What the full-rank term is made of.
enum class full_rank_term {
  gradient,   // the clipped gradient
  residual,   // what the basis leaves out of it
  projected,  // what the basis keeps of it, feedback included: nothing outside the subspace
};

enum class first_basis {
  gradient,  // singular vectors of the mean first gradient (local: of a site's own)
  random,    // drawn, the same on all sites: no exchange and no decomposition at the start
};

enum class decay_source {
  anchor,     // X <- X - lr wd X_a: the same on all sites and known at the sync
  parameter,  // X <- (1 - lr wd) X
};

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
// basis from A at the first step of a round. A Projector that reads no signal needs no anchor
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
// A zero gradient only decays X and the moments; G must have squares that are finite and is never
// written. Bias correction counts this site's updates, in a rotation the steps of the model, which
// all sites know.
// Cost: 4 p q r operations a step, with feedback 8; state r (2 q + p) numbers for Adam, r (q + p)
// for Muon, p q more each for anchor and feedback. Sent: p q each parameter period, r q for each
// moment, p q once for the first basis.
// Source: Jovanovic et al., arXiv 2602.04396, as far as it could be read; docs/lordo.md says what
// is theirs and what is not.
template <class Moments, class P>
struct low_rank {
  index_t rank = 0;  // positive
  double learning_rate = Moments::learning_rate;
  basis_source variant = basis_source::global;
  double omega = 0.5;  // of the low-rank term, from 0 to 1
  double mu = 1;       // positive
  full_rank_term full_term = full_rank_term::gradient;
  Moments moments{};
  P projector{};
  clipping clip{};
  std::optional<error_feedback> feedback{};  // if not given, none if global, full if local
  double feedback_decay = 0.9;               // for error_feedback::decayed
  first_basis first = first_basis::gradient;
  double weight_decay = 0;
  decay_source decay_from = decay_source::anchor;
  sync_periods periods{};

  static_assert(sizeof(contract::check_projector<P>) > 0);

  static constexpr std::string_view name = Moments::rule;
  static constexpr bool whole_matrix = true;
  static constexpr bool squares_gradient = true;
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
    figures
  };
  template <class T>
  using state_array = std::array<std::span<T>, 7>;

  void check() const {
    const auto refuse = [](std::string_view what, double value, std::string_view cure) {
      throw mfsdp::spec_error(fmt::format("{}: {} is {}; {}", name, what, value, cure));
    };
    if (rank < 1) refuse("rank", static_cast<double>(rank), "give the rank of the basis");
    if (!(learning_rate >= 0)) refuse("learning_rate", learning_rate, "it cannot be negative");
    if (!(omega >= 0 && omega <= 1)) {
      refuse("omega", omega, "it weighs the low-rank term, from 0 to 1");
    }
    if (!(mu > 0)) refuse("mu", mu, "it divides the full-rank term and must be positive");
    if (!(feedback_decay >= 0 && feedback_decay <= 1)) {
      refuse("feedback_decay", feedback_decay, "it must be from 0 to 1");
    }
    if (!(weight_decay >= 0)) refuse("weight_decay", weight_decay, "it cannot be negative");
    moments.check(name);
    clip.check(name);
    periods.check(name);
    if constexpr (mfsdp::ChecksOptions<P>) projector.check();
  }

  // For the check that all ranks and sites use the same.
  [[nodiscard]] std::string options() const {
    return fmt::format(
        "{} {} {} {} {} {} {} moments {} projector {} clip {} feedback {} {} first "
        "{} decay {} {} periods {}",
        name, rank, learning_rate, static_cast<int>(variant), omega, mu,
        static_cast<int>(full_term), moments.options(), projector.options(), clip.options(),
        static_cast<int>(error_rule()), feedback_decay, static_cast<int>(first), weight_decay,
        static_cast<int>(decay_from), periods.options());
  }

  // Whether the matrix is updated at full size, without a basis.
  [[nodiscard]] constexpr bool full_size(matrix_shape shape) const {
    return rank >= std::min(shape.rows, shape.cols);
  }

  // A change of basis counts with its share of one step.
  [[nodiscard]] constexpr index_t flops(matrix_shape shape) const {
    if (full_size(shape)) return moments.flops(shape) + 4 * shape.elements();
    const matrix_shape low = projected_shape(shape, rank);
    const index_t products =
        2 + (feeds_back() ? 2 : 0) + (full_term == full_rank_term::residual ? 1 : 0);
    const index_t change = projector.flops(shape, rank) +
                           2 * rank * basis_shape(shape, rank).elements() +
                           4 * rank * low.elements() + 3 * shape.elements();
    return 2 * products * rank * shape.elements() + moments.flops(low) + 12 * shape.elements() +
           change / std::max(periods.parameters, std::int64_t{1});
  }

  // All exact, as sites compare them bit by bit.
  [[nodiscard]] constexpr std::array<mfsdp::state_spec, 7> states(matrix_shape shape) const {
    const bool full = full_size(shape);
    const index_t low = full ? shape.elements() : projected_shape(shape, rank).elements();
    return {{{"basis", full ? 0 : basis_shape(shape, rank).elements(), true},
             {"first_moment", low, true},
             {"second_moment", Moments::has_second ? low : 0, true},
             {"anchor", has_anchor(shape) ? shape.elements() : 0, true},
             {"error", !full && feeds_back() ? shape.elements() : 0, true},
             {"decay_sum", decays_from_anchor(shape) ? 1 : 0, true},
             {"figures", full ? 0 : static_cast<index_t>(figure::count), true}}};
  }

  [[nodiscard]] constexpr index_t workspace_size(matrix_shape shape) const {
    const auto part = [](index_t elements) { return mfsdp::detail::workspace_part(elements); };
    const index_t whole = part(shape.elements());
    if (full_size(shape)) return 2 * whole + moments.workspace_size(shape);
    const matrix_shape low = projected_shape(shape, rank);
    const index_t step =
        std::max(moments.workspace_size(low), 2 * part(std::max(shape.rows, shape.cols)));
    const index_t search =
        std::max(projector.workspace_size(shape, rank), svd{}.workspace_size(shape, rank));
    const index_t change = part(basis_shape(shape, rank).elements()) + part(rank * rank) +
                           std::max(search, rotation_workspace(low, rank));
    return 2 * whole + 2 * part(low.elements()) + std::max(step, change);
  }

  template <mfsdp::DecomposingBackend B, class T>
  void start(B& backend, const state_array<T>& states, matrix_view<T> parameter,
             const mfsdp::update_context<T>& context) const {
    if (full_size(parameter.shape())) return;
    if (has_anchor(parameter.shape())) backend.copy(parameter.flat(), states[anchor]);
    const matrix_view<T> b(states[basis].data(), basis_shape(parameter.shape(), rank));
    const basis_draw draw{.item = context.item, .step = 0};
    random_projection{}.basis(backend, {}, draw, {}, b);
    if constexpr (!P::needs_signal) {
      const scratch<T> s = cut(parameter.shape(), context.workspace);
      find_basis(backend, projector, states, {}, draw, s);
      backend.copy(s.new_basis.flat(), b.flat());
    }
  }

  [[nodiscard]] constexpr std::array<bool, 8> exchanges(matrix_shape shape,
                                                        mfsdp::exchange_round round) const {
    std::array<bool, 8> flags{};
    if (round.round == 0) {
      flags[1 + anchor] = has_anchor(shape) && first == first_basis::gradient && round.step == 1;
      return flags;
    }
    flags[0] = periods.parameters_due(round.step, round.item);
    flags[1 + decay_sum] = flags[0] && decays_from_anchor(shape);
    if (variant == basis_source::global || full_size(shape)) {
      flags[1 + first_moment] = periods.first_moment_due(round.step, round.item);
      flags[1 + second_moment] =
          Moments::has_second && periods.second_moment_due(round.step, round.item);
    }
    return flags;
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
    const matrix_shape shape = parameter.shape();
    if (round == 0) {
      // The mean first gradient, in the memory of the anchor.
      const scratch<T> s = cut(shape, context.workspace);
      find_basis(backend, svd{}, states, {states[anchor].data(), shape}, draw_of(context), s);
      backend.copy(s.new_basis.flat(), states[basis]);
      backend.copy(parameter.flat(), states[anchor]);
      return;
    }
    if (full_size(shape) || variant == basis_source::local ||
        !periods.parameters_due(context.model_step, context.item)) {
      return;
    }
    const scratch<T> s = cut(shape, context.workspace);
    if (has_anchor(shape)) {
      T decayed = 0;
      if (decays_from_anchor(shape)) {
        backend.copy(std::span<const T>(states[decay_sum]), std::span<T>(&decayed, 1));
        backend.fill(states[decay_sum], T(0));
      }
      backend.transform(
          [decayed](auto& delta, const auto& x, const auto& a) { delta = (x - a) + decayed * a; },
          s.gradient.flat(), std::span<const T>(parameter.flat()),
          std::span<const T>(states[anchor]));
      backend.copy(parameter.flat(), states[anchor]);
    }
    find_basis(backend, projector, states, s.gradient, draw_of(context), s);
    change_basis(backend, states, context.model_step, s);
  }

  template <mfsdp::DecomposingBackend B, class T>
  void update(B& backend, const state_array<T>& states, matrix_view<T> parameter,
              std::type_identity_t<matrix_view<const T>> gradient,
              const mfsdp::update_context<T>& context) const {
    static_assert(sizeof(contract::check_basis<P, B>) > 0);
    assert(std::ssize(context.workspace) >= workspace_size(parameter.shape()));
    const matrix_shape shape = parameter.shape();
    if (shape.elements() == 0) return;
    if (full_size(shape)) return update_full_size(backend, states, parameter, gradient, context);

    const scratch<T> s = cut(shape, context.workspace);
    const matrix_view<T> b(states[basis].data(), basis_shape(shape, rank));
    const matrix_view<T> e(states[error].data(), shape);
    detail::clip<B, T>(backend, clip, gradient.flat(), s.gradient.flat());
    const bool opens_round = periods.parameters_due(context.model_step - 1, context.item);
    const bool ends_round = periods.parameters_due(context.model_step, context.item);
    if (variant == basis_source::local) own_basis(backend, states, opens_round, context, s);

    project<B, T>(backend, T(1), b, s.gradient, T(0), s.low);
    const bool residual = full_term == full_rank_term::residual && omega < 1;
    const bool inside = full_term == full_rank_term::projected;
    if (residual) {
      backend.copy(s.gradient.flat(), s.other.flat());
      lift<B, T>(backend, T(-1), b, s.low, T(1), s.other);
    }
    const double captured = std::sqrt(backend.sum_of_squares(s.low.flat()));
    const double whole = ends_round ? std::sqrt(backend.sum_of_squares(s.gradient.flat())) : 0;
    if (feeds_back()) {
      detail::feed_back<B, T>(backend, error_rule() == error_feedback::window && opens_round,
                              error_rule() == error_feedback::decayed ? feedback_decay : 1, b,
                              s.gradient, s.low, e, s.denominator);
    }

    const double fresh = (1 - omega) / mu;
    const subspace_step<T> step{s.low, moment(states[first_moment], s.low.shape()),
                                moment(states[second_moment], s.low.shape()), s.denominator,
                                captured};
    moments.take(backend, context.step, inside ? step_mix{omega, fresh} : step_mix{}, step, s.rest);

    // The full-rank term goes where its source is not.
    const matrix_view<T> source = residual ? s.other : s.gradient;
    const matrix_view<T> direction = residual ? s.gradient : s.other;
    const bool outside = !inside && omega < 1;
    if (outside) moments.divide(backend, fresh, step, source, direction, s.rest);
    const double low_weight = inside ? 1 : omega;
    if (ends_round) {
      const double full = outside ? std::sqrt(backend.sum_of_squares(direction.flat())) : 0;
      const double low = low_weight * std::sqrt(backend.sum_of_squares(s.low.flat()));
      detail::change_figures(backend, states[figures], [&](auto& f) {
        f[figure::ratio] = static_cast<T>(low > 0 ? full / low : 0);
        f[figure::captured] =
            static_cast<T>(whole > 0 ? (captured / whole) * (captured / whole) : 0);
      });
    }
    lift<B, T>(backend, static_cast<T>(low_weight), b, s.low, static_cast<T>(outside ? 1 : 0),
               direction);

    const double rate = learning_rate * context.learning_rate_scale;
    const T by = static_cast<T>(rate * moments.scale(shape));
    if (decays_from_anchor(shape)) {
      const T lose = static_cast<T>(rate * weight_decay);
      backend.transform([lose](auto& sum) { sum = sum + lose; }, states[decay_sum]);
      backend.transform(
          [lose, by](auto& x, const auto& a, const auto& u) { x = x - lose * a - by * u; },
          parameter.flat(), std::span<const T>(states[anchor]),
          std::span<const T>(direction.flat()));
    } else {
      take_step(backend, rate * weight_decay, by, parameter, direction);
    }
  }

 private:
  // The workspace of every function: `rest` of update, `new_basis` and what follows of a change of
  // basis.
  template <class T>
  struct scratch {
    matrix_view<T> gradient, other, low, denominator;
    std::span<T> rest;
    matrix_view<T> new_basis, rotation;
    std::span<T> search;
  };

  template <class T>
  [[nodiscard]] scratch<T> cut(matrix_shape shape, std::span<T> workspace) const {
    mfsdp::detail::workspace_cutter<T> cutter(workspace);
    scratch<T> s;
    s.gradient = cutter.take(shape);
    s.other = cutter.take(shape);
    s.low = cutter.take(projected_shape(shape, rank));
    s.denominator = cutter.take(projected_shape(shape, rank));
    s.rest = cutter.rest();
    s.new_basis = cutter.take(basis_shape(shape, rank));
    s.rotation = cutter.take(matrix_shape{rank, rank});
    s.search = cutter.rest();
    return s;
  }

  template <class T>
  [[nodiscard]] static matrix_view<T> moment(std::span<T> state, matrix_shape shape) {
    return state.empty() ? matrix_view<T>() : matrix_view<T>(state.data(), shape);
  }

  [[nodiscard]] constexpr error_feedback error_rule() const {
    return feedback.value_or(variant == basis_source::global ? error_feedback::none
                                                             : error_feedback::full);
  }
  [[nodiscard]] constexpr bool feeds_back() const { return error_rule() != error_feedback::none; }
  [[nodiscard]] constexpr bool has_anchor(matrix_shape shape) const {
    return variant == basis_source::global && P::needs_signal && !full_size(shape);
  }
  [[nodiscard]] constexpr bool decays_from_anchor(matrix_shape shape) const {
    return has_anchor(shape) && weight_decay > 0 && decay_from == decay_source::anchor;
  }

  template <class T>
  [[nodiscard]] static basis_draw draw_of(const mfsdp::update_context<T>& context) {
    return {.item = context.item, .step = context.model_step};
  }

  // s.new_basis <- the basis of a signal; the old one if the signal is not finite.
  template <class B, class Q, class T>
  void find_basis(B& backend, const Q& from, const state_array<T>& states,
                  std::type_identity_t<matrix_view<const T>> signal, basis_draw draw,
                  const scratch<T>& s) const {
    const matrix_view<const T> old(states[basis].data(), s.new_basis.shape());
    if (!Q::needs_signal) {
      from.basis(backend, matrix_view<const T>(), draw, old, s.new_basis, s.search);
    } else if (std::isfinite(backend.sum_of_squares(signal.flat()))) {
      from.basis(backend, signal, draw, old, s.new_basis, s.search);
    } else {
      backend.copy(old.flat(), s.new_basis.flat());
    }
  }

  // The basis becomes s.new_basis, with the moments after t steps.
  template <class B, class T>
  void change_basis(B& backend, const state_array<T>& states, std::int64_t t,
                    const scratch<T>& s) const {
    const matrix_view<const T> old(states[basis].data(), s.new_basis.shape());
    rotation<B, T>(backend, s.new_basis, old, s.rotation);
    moments.rotate(backend, side_of(s.gradient.shape()), s.rotation, t,
                   moment(states[first_moment], s.low.shape()),
                   moment(states[second_moment], s.low.shape()), s.search);
    backend.copy(s.new_basis.flat(), states[basis]);
    const double kept = backend.sum_of_squares(s.rotation.flat()) / static_cast<double>(rank);
    detail::change_figures(backend, states[figures], [&](auto& f) {
      f[figure::movement] = static_cast<T>(std::max(0.0, 1 - kept));
      f[figure::still] = 1 - kept < still_movement ? f[figure::still] + 1 : T(0);
    });
  }

  // The local form: a basis of this site's own gradient and error.
  template <class B, class T>
  void own_basis(B& backend, const state_array<T>& states, bool opens_round,
                 const mfsdp::update_context<T>& context, const scratch<T>& s) const {
    const bool is_first = context.step == 1;
    if (is_first ? !(P::needs_signal && first == first_basis::gradient) : !opens_round) return;
    backend.copy(s.gradient.flat(), s.other.flat());
    if (feeds_back()) {
      backend.transform([](auto& a, const auto& e) { a = a + e; }, s.other.flat(),
                        std::span<const T>(states[error]));
    }
    if (is_first) {  // no moments to rotate yet
      find_basis(backend, svd{}, states, s.other, draw_of(context), s);
      backend.copy(s.new_basis.flat(), states[basis]);
    } else {
      find_basis(backend, projector, states, s.other, draw_of(context), s);
      change_basis(backend, states, context.step - 1, s);
    }
  }

  template <class B, class T>
  void update_full_size(B& backend, const state_array<T>& states, matrix_view<T> parameter,
                        matrix_view<const T> gradient,
                        const mfsdp::update_context<T>& context) const {
    mfsdp::detail::workspace_cutter<T> cutter(context.workspace);
    const matrix_view<T> g = cutter.take(parameter.shape());
    const matrix_view<T> denominator = cutter.take(parameter.shape());
    detail::clip<B, T>(backend, clip, gradient.flat(), g.flat());
    moments.take(backend, context.step, {},
                 subspace_step<T>{g, moment(states[first_moment], g.shape()),
                                  moment(states[second_moment], g.shape()), denominator},
                 cutter.rest());
    const double rate = learning_rate * context.learning_rate_scale;
    take_step(backend, rate * weight_decay, static_cast<T>(rate * moments.scale(g.shape())),
              parameter, g);
  }

  template <class B, class T>
  static void take_step(B& backend, double decay, T by, matrix_view<T> x, matrix_view<T> u) {
    const T keep = static_cast<T>(1 - decay);
    backend.transform([keep, by](auto& w, const auto& d) { w = keep * w - by * d; }, x.flat(),
                      std::span<const T>(u.flat()));
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
