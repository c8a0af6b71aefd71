// averaged: any optimizer on the mean gradient of all sites; data parallelism in every step.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "lordo/optimizer/exchange.hpp"
#include "lordo/optimizer/wrapped.hpp"
#include "mfsdp/concepts.hpp"
#include "mfsdp/kernel.hpp"
#include "mfsdp/workspace.hpp"

namespace lordo::inline MFSDP_ABI {

// `averaged{mfsdp::adamw{}}`: the gradient is averaged over the sites before every update, and the
// rule of `inner` steps on the mean. Parameters and states start equal and stay equal to the last
// bit, so nothing else is sent. With batches of equal size the rule is that of one site with the
// batch of all of them; of unequal batches the mean is not weighted, and sharded_model::clip scales
// the gradient of each site by its own norm, before the mean.
//
// Sends rows x cols numbers a step. Keeps, beside the states of the inner rule, the mean gradient:
// one number a weight, which is the price of an exchange that knows states only.
// With exchange_low_rank (`averaged{.inner = mfsdp::muon{}, .exchange = {...}}`) it is PowerSGD:
// r (rows + cols) numbers a step, in two rounds; kept are the states of the exchange instead of the
// mean, which then takes one matrix of workspace. A rule that takes pieces, and a matrix with a
// side of at most r, are sent whole.
//
// A site whose gradient is unusable steps on the mean of the others.
template <class Inner, class Exchange = exchange_full>
struct averaged {
  static_assert(sizeof(contract::check_inner<Inner>) > 0);

 private:
  static constexpr bool compresses = Exchange::low_rank && Inner::whole_matrix;
  static constexpr std::size_t inner_states = detail::state_count<Inner>;
  static constexpr std::size_t gradient_at = inner_states;
  static constexpr std::size_t exchange_at = inner_states + 1;
  static constexpr std::size_t all_states =
      exchange_at + (compresses ? exchange_low_rank::state_count : 0);
  template <class T>
  using spans = std::array<std::span<T>, all_states>;
  template <class B>
  static constexpr bool exchanges_on =
      mfsdp::Backend<B> && (!compresses || mfsdp::DecomposingBackend<B>);

 public:
  Inner inner{};
  Exchange exchange{};

  static constexpr std::string_view name = detail::prefixed_name<"averaged ", Inner>;
  static constexpr bool whole_matrix = Inner::whole_matrix;
  static constexpr bool squares_gradient = requires { requires Inner::squares_gradient; };
  static constexpr bool updates_from_mean = true;
  static constexpr int rounds_before_update = compresses ? 2 : 1;
  static constexpr int rounds_after_update = 0;

  void check() const {
    if constexpr (mfsdp::ChecksOptions<Inner>) inner.check();
    exchange.check(name);
  }
  [[nodiscard]] std::string options() const {
    return fmt::format("averaged ({}) {}", mfsdp::detail::options_of(inner), exchange.options());
  }
  [[nodiscard]] constexpr mfsdp::index_t flops(mfsdp::matrix_shape shape) const {
    return inner.flops(shape) + (compresses ? exchange.flops(shape) : 0);
  }
  [[nodiscard]] constexpr std::array<mfsdp::state_spec, all_states> states(
      mfsdp::matrix_shape shape) const {
    const std::array<mfsdp::state_spec, 1> mean{
        {{"mean_gradient", factors(shape) ? 0 : shape.elements(), true}}};
    if constexpr (compresses) {
      return detail::joined(detail::exact_states(inner, shape), mean, exchange.states(shape));
    } else {
      return detail::joined(detail::exact_states(inner, shape), mean);
    }
  }
  [[nodiscard]] constexpr mfsdp::index_t workspace_size(mfsdp::matrix_shape shape) const {
    return inner.workspace_size(shape) +
           (factors(shape) ? mfsdp::detail::workspace_part(shape.elements()) : 0);
  }

  [[nodiscard]] constexpr std::array<bool, 1 + all_states> exchanges(
      mfsdp::matrix_shape shape, mfsdp::exchange_round round) const {
    std::array<bool, 1 + all_states> sent{};
    sent[1 + gradient_at] = round.round == 0 && !factors(shape);
    if constexpr (compresses) {
      sent[1 + exchange_at + Exchange::sent(round.round)] = factors(shape);
    }
    return sent;
  }

  template <class B, class T>
    requires(compresses && exchanges_on<B>)
  void start(B& backend, const spans<T>& states, mfsdp::matrix_view<T> parameter,
             const mfsdp::update_context<T>& context) const {
    if (factors(parameter.shape())) {
      exchange.start(backend, exchange_part(states), parameter.shape(), context.item);
    }
  }

  // A site that joins has left nothing out yet.
  template <mfsdp::Backend B, class T>
    requires compresses
  void join(B& backend, const spans<T>& states, mfsdp::matrix_view<T>,
            const mfsdp::update_context<T>&) const {
    backend.fill(states[exchange_at + Exchange::residual], T(0));
  }

  template <class B, class T>
    requires exchanges_on<B>
  void contribute(B& backend, const spans<T>& states, mfsdp::matrix_view<T> parameter,
                  std::type_identity_t<mfsdp::matrix_view<const T>> gradient,
                  const mfsdp::update_context<T>& context, int round) const {
    if constexpr (compresses) {
      if (factors(parameter.shape())) {
        exchange.contribute(
            backend, exchange_part(states), parameter.shape(), context.workspace, round,
            [&](std::span<T> a) { backend.transform(mfsdp::detail::add{}, a, gradient.flat()); });
        return;
      }
    }
    backend.copy(gradient.flat(), states[gradient_at]);
  }

  template <class B, class T>
    requires exchanges_on<B>
  void adopt(B& backend, const spans<T>& states, mfsdp::matrix_view<T> parameter,
             const mfsdp::update_context<T>&, int round) const {
    if constexpr (compresses) {
      if (factors(parameter.shape())) {
        exchange.adopt(backend, exchange_part(states), parameter.shape(), round);
      }
    }
  }

  template <class B, class T>
    requires mfsdp::UpdatesOn<Inner, B>
  void update(B& backend, const spans<T>& states, mfsdp::matrix_view<T> parameter,
              std::type_identity_t<mfsdp::matrix_view<const T>>,
              const mfsdp::update_context<T>& context) const {
    mfsdp::detail::workspace_cutter<T> workspace(context.workspace);
    mfsdp::matrix_view<T> mean(states[gradient_at].data(), parameter.shape());
    if constexpr (compresses) {
      if (factors(parameter.shape())) {
        mean = workspace.take(parameter.shape());
        exchange.result(backend, exchange_part(states), mean);
      }
    }
    mfsdp::update_context<T> local = context;
    local.workspace = workspace.rest();
    inner.update(backend, detail::part<0, inner_states>(states), parameter,
                 mfsdp::matrix_view<const T>(mean), local);
  }

 private:
  [[nodiscard]] constexpr bool factors(mfsdp::matrix_shape shape) const {
    return compresses && exchange.factors(shape);
  }
  template <class T>
  [[nodiscard]] static auto exchange_part(const spans<T>& states) {
    return detail::part<exchange_at, exchange_low_rank::state_count>(states);
  }
};

}  // namespace lordo::inline MFSDP_ABI
