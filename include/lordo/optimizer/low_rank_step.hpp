// low_rank_step: the arithmetic of the rule low_rank, one object for each call.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "lordo/concepts.hpp"
#include "lordo/optimizer/clipping.hpp"
#include "lordo/optimizer/error_feedback.hpp"
#include "lordo/optimizer/figures.hpp"
#include "lordo/optimizer/low_rank_options.hpp"
#include "lordo/optimizer/moments.hpp"
#include "lordo/projector/find_basis.hpp"
#include "lordo/projector/random.hpp"
#include "lordo/projector/svd.hpp"
#include "lordo/subspace.hpp"
#include "mfsdp/concepts.hpp"
#include "mfsdp/kernel.hpp"
#include "mfsdp/workspace.hpp"

namespace lordo::inline MFSDP_ABI::detail {

// The change of a parameter since its anchor, but for what decay towards zero of the anchor moved.
template <class T>
struct undecayed_change {
  T decayed;
  MFSDP_HOST_DEVICE void operator()(auto& delta, const auto& x, const auto& a) const {
    delta = (x - a) + decayed * a;
  }
};

template <class T>
struct add_number {
  T number;
  MFSDP_HOST_DEVICE void operator()(auto& x) const { x = x + number; }
};

template <class T>
struct descend_with_anchor {
  T lose, by;
  MFSDP_HOST_DEVICE void operator()(auto& x, const auto& a, const auto& u) const {
    x = x - lose * a - by * u;
  }
};

// How the workspace of a rule is cut: `rest` serves an update, `new_basis` and what follows a
// change of basis, which may be part of an update that has not used `rest` yet.
template <class T>
struct low_rank_scratch {
  matrix_view<T> gradient, other, low, denominator;
  std::span<T> rest;
  matrix_view<T> new_basis, rotation;
  std::span<T> search;

  low_rank_scratch(matrix_shape shape, index_t rank, std::span<T> workspace) {
    mfsdp::detail::workspace_cutter<T> cutter(workspace);
    gradient = cutter.take(shape);
    other = cutter.take(shape);
    low = cutter.take(projected_shape(shape, rank));
    denominator = cutter.take(projected_shape(shape, rank));
    rest = cutter.rest();
    new_basis = cutter.take(basis_shape(shape, rank));
    rotation = cutter.take(matrix_shape{rank, rank});
    search = cutter.rest();
  }

  template <class Rule>
  [[nodiscard]] static constexpr index_t size(const Rule& rule, matrix_shape shape) {
    const auto part = [](index_t elements) { return mfsdp::detail::workspace_part(elements); };
    const index_t rank = rule.rank;
    const matrix_shape projected = projected_shape(shape, rank);
    const index_t step = std::max(rule.moments.workspace_size(projected),
                                  2 * part(std::max(shape.rows, shape.cols)));
    const index_t found =
        std::max(rule.projector.workspace_size(shape, rank), svd{}.workspace_size(shape, rank));
    const index_t change = part(basis_shape(shape, rank).elements()) + part(rank * rank) +
                           std::max(found, rotation_workspace(projected, rank));
    return 2 * part(shape.elements()) + 2 * part(projected.elements()) + std::max(step, change);
  }
};

// One parameter of a rule that has a basis for it.
template <class Rule, class B, class T>
class low_rank_step {
 public:
  low_rank_step(const Rule& rule, B& backend, const typename Rule::template state_array<T>& states,
                matrix_view<T> parameter, const mfsdp::update_context<T>& context)
      : rule_(rule),
        backend_(backend),
        parameter_(parameter),
        context_(context),
        scratch_(parameter.shape(), rule.rank, context.workspace),
        basis_(states[Rule::basis].data(), basis_shape(parameter.shape(), rule.rank)),
        first_(states[Rule::first_moment].data(), scratch_.low.shape()),
        anchor_(states[Rule::anchor]),
        error_(states[Rule::error].data(), parameter.shape()),
        decay_sum_(states[Rule::decay_sum]),
        figures_(states[Rule::figures]),
        round_open_(states[Rule::round_open]) {
    if (Rule::has_second_moment) second_ = {states[Rule::second_moment].data(), first_.shape()};
  }

  // Any basis, the same on all sites.
  void start() {
    start_basis(backend_, basis_.flat(), parameter_.shape(), context_.item);
    if (!rule_.projector.needs_signal) {
      find_basis(rule_.projector, {});
      adopt_basis();
    }
    if (!anchor_.empty()) backend_.copy(parameter_.flat(), anchor_);
  }

  // From the mean first gradient, which stands in the memory of the anchor.
  void take_first_basis() {
    find_basis(svd{}, {anchor_.data(), parameter_.shape()});
    adopt_basis();
    backend_.copy(parameter_.flat(), anchor_);
  }

  // From the mean pseudo-gradient, without what decay moved.
  void synchronize() {
    if (!anchor_.empty()) {
      T decayed = 0;
      if (!decay_sum_.empty()) {
        backend_.copy(std::span<const T>(decay_sum_), std::span<T>(&decayed, 1));
        backend_.fill(decay_sum_, T(0));
      }
      backend_.transform(undecayed_change<T>{decayed}, scratch_.gradient.flat(), read(parameter_),
                         std::span<const T>(anchor_));
      backend_.copy(parameter_.flat(), anchor_);
    }
    find_basis(rule_.projector, scratch_.gradient);
    change_basis(context_.model_step);
  }

  // The next update opens a round.
  void end_round() { backend_.fill(round_open_, T(0)); }

  void update(matrix_view<const T> raw, bool ends_round) {
    const bool opens_round = open_round();
    const matrix_view<T> gradient = scratch_.gradient;
    const matrix_view<T> other = scratch_.other;
    const matrix_view<T> low = scratch_.low;
    clip<B, T>(backend_, rule_.clip, raw.flat(), gradient.flat());
    if (rule_.variant == basis_source::local) take_own_basis(opens_round);

    project<B, T>(backend_, T(1), basis_, gradient, T(0), low);
    const bool measured = ends_round || Rule::divides_by_norm;
    const double captured = measured ? norm(low) : 0;
    const double whole = measured ? norm(gradient) : 0;
    const bool residual = rule_.full_term == full_rank_term::residual && rule_.omega < 1;
    if (residual) {
      backend_.copy(gradient.flat(), other.flat());
      lift<B, T>(backend_, T(-1), basis_, low, T(1), other);
    }
    const error_feedback feedback = rule_.feedback_in_use();
    if (feedback != error_feedback::none) {
      feed_back<B, T>(backend_, feedback == error_feedback::window && opens_round,
                      feedback == error_feedback::decayed ? rule_.feedback_decay : 1, basis_,
                      gradient, low, error_, scratch_.denominator);
    }

    const bool inside = rule_.full_term == full_rank_term::projected;
    const bool outside = !inside && rule_.omega < 1;
    const double fresh = (1 - rule_.omega) / rule_.mu;
    const double low_weight = inside ? 1 : rule_.omega;
    const subspace_step<T> step{low, first_, second_, scratch_.denominator, captured, whole};
    rule_.moments.take(backend_, context_.step, inside ? step_mix{rule_.omega, fresh} : step_mix{},
                       step, scratch_.rest);

    // The full-rank term goes where its source is not.
    const matrix_view<T> source = residual ? other : gradient;
    const matrix_view<T> direction = residual ? gradient : other;
    if (outside) rule_.moments.divide(backend_, fresh, step, source, direction, scratch_.rest);
    if (ends_round) {
      const double full_size = outside ? norm(direction) : 0;
      const double low_size = low_weight * norm(low);
      const double share = whole > 0 ? captured / whole : 0;
      change_figures(backend_, figures_, [&](auto& f) {
        f[figure::ratio] = static_cast<T>(low_size > 0 ? full_size / low_size : 0);
        f[figure::captured] = static_cast<T>(share * share);
      });
    }
    lift<B, T>(backend_, static_cast<T>(low_weight), basis_, low, static_cast<T>(outside ? 1 : 0),
               direction);
    take_step(direction);
  }

 private:
  // Whether this is the first update since a sync, which need not be the first step: a site leaves
  // out the steps whose gradient it cannot use. Forms that do not ask have no state for it.
  [[nodiscard]] bool open_round() {
    if (round_open_.empty()) return false;
    T open;
    backend_.copy(std::span<const T>(round_open_), std::span<T>(&open, 1));
    if (open == T(0)) backend_.fill(round_open_, T(1));
    return open == T(0);
  }
  [[nodiscard]] static std::span<const T> read(matrix_view<T> x) { return x.flat(); }
  void adopt_basis() { backend_.copy(scratch_.new_basis.flat(), basis_.flat()); }
  [[nodiscard]] double norm(matrix_view<T> x) const {
    return std::sqrt(backend_.sum_of_squares(x.flat()));
  }

  void take_step(matrix_view<T> direction) {
    const double rate = rule_.learning_rate * context_.learning_rate_scale;
    const T by = static_cast<T>(rate * rule_.moments.scale(parameter_.shape()));
    const T lose = static_cast<T>(rate * rule_.weight_decay);
    if (decay_sum_.empty()) {
      const T keep = static_cast<T>(1 - rate * rule_.weight_decay);
      backend_.transform(mfsdp::detail::descend<T>{keep, by}, parameter_.flat(), read(direction));
    } else {
      backend_.transform(add_number<T>{lose}, decay_sum_);
      backend_.transform(descend_with_anchor<T>{lose, by}, parameter_.flat(),
                         std::span<const T>(anchor_), read(direction));
    }
  }

  // The local form: a basis of this site's own gradient and error, at its first update and when a
  // round opens.
  void take_own_basis(bool opens_round) {
    const bool is_first = context_.step == 1;
    if (is_first ? !rule_.decomposes_first_gradient() : !opens_round) return;
    backend_.copy(scratch_.gradient.flat(), scratch_.other.flat());
    if (rule_.feedback_in_use() != error_feedback::none) {
      backend_.transform(mfsdp::detail::add{}, scratch_.other.flat(), read(error_));
    }
    if (is_first) {  // no moments to rotate yet
      find_basis(svd{}, scratch_.other);
      adopt_basis();
    } else {
      find_basis(rule_.projector, scratch_.other);
      change_basis(context_.step - 1);
    }
  }

  // The new basis of a signal; the old one if the signal is not finite.
  template <Projector P>
  void find_basis(const P& projector, matrix_view<const T> signal) {
    if (!P::needs_signal || std::isfinite(backend_.sum_of_squares(signal.flat()))) {
      detail::find_basis(projector, backend_, signal, basis_, scratch_.new_basis, scratch_.search,
                         context_);
    } else {
      backend_.copy(read(basis_), scratch_.new_basis.flat());
    }
  }

  // The new basis takes the place of the old one, with moments that have seen t steps.
  void change_basis(std::int64_t t) {
    const matrix_view<T> r = scratch_.rotation;
    rotation<B, T>(backend_, scratch_.new_basis, basis_, r);
    rule_.moments.rotate(backend_, side_of(parameter_.shape()), r, t, first_, second_,
                         scratch_.search);
    adopt_basis();
    const double kept = backend_.sum_of_squares(r.flat()) / static_cast<double>(rule_.rank);
    change_figures(backend_, figures_, [&](auto& f) {
      f[figure::movement] = static_cast<T>(std::max(0.0, 1 - kept));
      f[figure::still] = 1 - kept < still_movement ? f[figure::still] + 1 : T(0);
    });
  }

  const Rule& rule_;
  B& backend_;
  matrix_view<T> parameter_;
  const mfsdp::update_context<T>& context_;
  low_rank_scratch<T> scratch_;
  matrix_view<T> basis_, first_, second_;
  std::span<T> anchor_;  // empty if there is none
  matrix_view<T> error_;
  std::span<T> decay_sum_;  // empty if decay is of the parameter
  std::span<T> figures_;
  std::span<T> round_open_;
};

}  // namespace lordo::inline MFSDP_ABI::detail
