// local_steps: any optimizer, alone for some steps and then averaged over the sites.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "lordo/optimizer/exchange.hpp"
#include "lordo/optimizer/outer.hpp"
#include "lordo/optimizer/wrapped.hpp"
#include "lordo/periods.hpp"
#include "mfsdp/concepts.hpp"
#include "mfsdp/workspace.hpp"

namespace lordo::inline MFSDP_ABI {

namespace detail {

struct subtract {
  MFSDP_HOST_DEVICE void operator()(auto& x, const auto& y) const { x = x - y; }
};

struct add_difference {
  MFSDP_HOST_DEVICE void operator()(auto& to, const auto& x, const auto& from) const {
    to = to + (x - from);
  }
};

}  // namespace detail

// `local_steps{.inner = mfsdp::muon{}, .periods = {.parameters = 32}}`: every site steps by itself
// under the rule of `inner`. At a sync, after the step,
//
//   D <- mean over the sites of X - X_a      by `exchange`, whole or by factors of low rank
//   X_a <- outer step by D                   by `outer`, a plain average or with momentum
//   X <- X_a                                 equal bits on all sites
//
// where X_a is X at the last sync. A plain average sent whole needs no X_a: the X are averaged.
// Moments of the inner rule are averaged after the step at periods of their own: states whose name
// ends in "momentum" or "first_moment" at that of the first moment, in "second_moment" at that of
// the second, unless the rule also keeps a basis (soap), which differs from site to site. Other
// states stay with their site.
//
// Local AdamW, local Muon: the defaults. DiLoCo, MuLoCo: outer_nesterov, and periods of 0 for the
// moments, which stay with their site there.
// With exchange_low_rank a sync sends r (rows + cols) numbers in two rounds, and moments stay with
// their site unless their periods are given. A rule that takes pieces, and a matrix with a side of
// at most r, are sent whole.
//
// Sends a sync: rows x cols numbers (or as above), and the elements of each moment at its period.
// Keeps, beside the states of the inner rule: X_a if an outer momentum or the exchange needs it,
// and the states of those two. Workspace: that of the inner rule, or one matrix if it is less. A
// site whose gradient was unusable takes part in the sync with what it has.
template <class Inner, class Outer = outer_average, class Exchange = exchange_full>
struct local_steps {
  static_assert(sizeof(contract::check_inner<Inner>) > 0);

 private:
  static constexpr bool compresses = Exchange::low_rank && Inner::whole_matrix;
  static constexpr bool anchored = compresses || Outer::needs_anchor;
  static constexpr std::size_t inner_states = detail::state_count<Inner>;
  static constexpr std::size_t outer_states = detail::state_count<Outer>;
  static constexpr std::size_t anchor_at = inner_states;
  static constexpr std::size_t outer_at = inner_states + (anchored ? 1 : 0);
  static constexpr std::size_t exchange_at = outer_at + outer_states;
  static constexpr std::size_t all_states =
      exchange_at + (compresses ? exchange_low_rank::state_count : 0);
  template <class T>
  using spans = std::array<std::span<T>, all_states>;
  template <class B>
  static constexpr bool exchanges_on =
      mfsdp::Backend<B> && (!compresses || mfsdp::DecomposingBackend<B>);

 public:
  Inner inner{};
  sync_periods periods{};  // of moments, with a low-rank exchange: never unless given
  Outer outer{};
  Exchange exchange{};

  static constexpr std::string_view name = detail::prefixed_name<"local ", Inner>;
  static constexpr bool whole_matrix = Inner::whole_matrix;
  static constexpr bool squares_gradient = requires { requires Inner::squares_gradient; };
  static constexpr int rounds_before_update = 0;
  static constexpr int rounds_after_update = compresses ? 2 : 1;

  void check() const {
    if constexpr (mfsdp::ChecksOptions<Inner>) inner.check();
    periods.check(name);
    outer.check(name);
    exchange.check(name);
  }
  [[nodiscard]] std::string options() const {
    return fmt::format("local ({}) {} {} {}", mfsdp::detail::options_of(inner), settled().options(),
                       outer.options(), exchange.options());
  }
  [[nodiscard]] constexpr mfsdp::index_t flops(mfsdp::matrix_shape shape) const {
    mfsdp::index_t sync = 0;
    if constexpr (anchored) sync += 6 * shape.elements();
    if constexpr (compresses) sync += exchange.flops(shape);
    return inner.flops(shape) + detail::in_a_step(sync, periods.parameters);
  }
  [[nodiscard]] constexpr std::array<mfsdp::state_spec, all_states> states(
      mfsdp::matrix_shape shape) const {
    std::array<mfsdp::state_spec, anchored ? 1 : 0> anchor{};
    if constexpr (anchored) {
      const bool used = Outer::needs_anchor || factors(shape);
      anchor[0] = {"anchor", used ? shape.elements() : 0, true};
    }
    const auto local =
        detail::joined(detail::exact_states(inner, shape), anchor, outer.states(shape));
    if constexpr (compresses) {
      return detail::joined(local, exchange.states(shape));
    } else {
      return local;
    }
  }
  [[nodiscard]] constexpr mfsdp::index_t workspace_size(mfsdp::matrix_shape shape) const {
    return std::max(inner.workspace_size(shape),
                    factors(shape) ? mfsdp::detail::workspace_part(shape.elements()) : 0);
  }

  [[nodiscard]] constexpr std::array<bool, 1 + all_states> exchanges(
      mfsdp::matrix_shape shape, mfsdp::exchange_round round) const {
    std::array<bool, 1 + all_states> sent{};
    const bool sync = periods.parameters_due(round.step, round.item);
    if (round.round == 0) {
      sent[0] = sync && !factors(shape);
      const auto specs = inner.states(shape);
      for (std::size_t i = 0; i < inner_states; ++i) {
        sent[1 + i] = specs[i].elements > 0 && moment_due(specs, specs[i].name, round);
      }
    }
    if constexpr (compresses) {
      sent[1 + exchange_at + Exchange::sent(round.round)] = sync && factors(shape);
    }
    return sent;
  }

  template <class B, class T>
    requires(anchored && exchanges_on<B>)
  void start(B& backend, const spans<T>& states, mfsdp::matrix_view<T> parameter,
             const mfsdp::update_context<T>& context) const {
    if (states[anchor_at].empty()) return;
    backend.copy(parameter.flat(), states[anchor_at]);
    if constexpr (compresses) {
      if (factors(parameter.shape())) {
        exchange.start(backend, exchange_part(states), parameter.shape(), context.item);
      }
    }
  }

  // A site that joins starts from the anchor, with no feedback.
  template <mfsdp::Backend B, class T>
    requires anchored
  void join(B& backend, const spans<T>& states, mfsdp::matrix_view<T> parameter,
            const mfsdp::update_context<T>&) const {
    if (states[anchor_at].empty()) return;
    backend.copy(std::span<const T>(states[anchor_at]), parameter.flat());
    if constexpr (compresses) backend.fill(states[exchange_at + Exchange::residual], T(0));
  }

  template <class B, class T>
    requires mfsdp::UpdatesOn<Inner, B>
  void update(B& backend, const spans<T>& states, mfsdp::matrix_view<T> parameter,
              std::type_identity_t<mfsdp::matrix_view<const T>> gradient,
              const mfsdp::update_context<T>& context) const {
    inner.update(backend, detail::part<0, inner_states>(states), parameter, gradient, context);
  }

  template <class B, class T>
    requires exchanges_on<B>
  void contribute(B& backend, const spans<T>& states, mfsdp::matrix_view<T> parameter,
                  std::type_identity_t<mfsdp::matrix_view<const T>>,
                  const mfsdp::update_context<T>& context, int round) const {
    if constexpr (compresses) {
      if (!syncs(context) || !factors(parameter.shape())) return;
      exchange.contribute(backend, exchange_part(states), parameter.shape(), context.workspace,
                          round, [&](std::span<T> a) {
                            backend.transform(detail::add_difference{}, a, parameter.flat(),
                                              states[anchor_at]);
                          });
    }
  }

  template <class B, class T>
    requires exchanges_on<B>
  void adopt(B& backend, const spans<T>& states, mfsdp::matrix_view<T> parameter,
             const mfsdp::update_context<T>& context, int round) const {
    if constexpr (anchored) {
      if (!syncs(context) || states[anchor_at].empty()) return;
      const std::span<T> anchor = states[anchor_at];
      mfsdp::matrix_view<T> delta = parameter;
      if constexpr (compresses) {
        if (factors(parameter.shape())) {
          exchange.adopt(backend, exchange_part(states), parameter.shape(), round);
          if (round == 0) return;
          delta = mfsdp::matrix_view<T>(context.workspace.data(), parameter.shape());
          exchange.result(backend, exchange_part(states), delta);
        }
      }
      if (delta.data() == parameter.data()) {
        backend.transform(detail::subtract{}, delta.flat(), anchor);
      }
      outer.step(backend, detail::part<outer_at, outer_states>(states), anchor, delta.flat());
      backend.copy(anchor, parameter.flat());
    }
  }

 private:
  [[nodiscard]] constexpr bool factors(mfsdp::matrix_shape shape) const {
    return compresses && exchange.factors(shape);
  }
  // The periods with nothing left open.
  [[nodiscard]] constexpr sync_periods settled() const {
    const std::int64_t otherwise = Exchange::low_rank ? 0 : periods.parameters;
    sync_periods all = periods;
    all.first_moment = periods.first_moment.value_or(otherwise);
    all.second_moment = periods.second_moment.value_or(otherwise);
    return all;
  }
  // Whether a state of the inner rule is averaged after this step.
  [[nodiscard]] constexpr bool moment_due(const std::array<mfsdp::state_spec, inner_states>& all,
                                          std::string_view state,
                                          mfsdp::exchange_round round) const {
    if (state.ends_with("momentum") || state.ends_with("first_moment")) {
      return settled().first_moment_due(round.step, round.item);
    }
    const bool own_basis = std::ranges::any_of(
        all, [](const mfsdp::state_spec& s) { return s.name.ends_with("basis"); });
    return state.ends_with("second_moment") && !own_basis &&
           settled().second_moment_due(round.step, round.item);
  }
  template <class T>
  [[nodiscard]] bool syncs(const mfsdp::update_context<T>& context) const {
    return periods.parameters_due(context.model_step, context.item);
  }
  template <class T>
  [[nodiscard]] static auto exchange_part(const spans<T>& states) {
    return detail::part<exchange_at, exchange_low_rank::state_count>(states);
  }
};

}  // namespace lordo::inline MFSDP_ABI
