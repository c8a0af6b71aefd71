// A PeriodicOptimizer that meets before its update.
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <type_traits>

#include "mfsdp/concepts.hpp"

namespace mfsdp_test {

// Steps along the mean of the sites' gradients, in every step, then meets in two rounds: the first
// halves the distance from a second state to the parameter, the second averages it.
template <bool Whole>
struct mean_gradient {
  double learning_rate = 0.05;
  int meeting = 0;  // the round before the update in which gradients are averaged

  static constexpr std::string_view name = "mean_gradient";
  static constexpr bool whole_matrix = Whole;
  static constexpr bool updates_from_mean = true;
  static constexpr int rounds_before_update = 2;
  static constexpr int rounds_after_update = 2;

  [[nodiscard]] mfsdp::index_t flops(mfsdp::matrix_shape shape) const {
    return 4 * shape.elements();
  }
  [[nodiscard]] std::array<mfsdp::state_spec, 2> states(mfsdp::matrix_shape shape) const {
    return {{{"gradient", shape.elements(), true}, {"slow", shape.elements(), true}}};
  }
  [[nodiscard]] mfsdp::index_t workspace_size(mfsdp::matrix_shape shape) const {
    return shape.elements();
  }
  [[nodiscard]] std::array<bool, 3> exchanges(mfsdp::matrix_shape,
                                              mfsdp::exchange_round now) const {
    return {false, now.round == meeting, now.round > 1 && now.step % 3 == 0};
  }
  template <mfsdp::Backend B, class T>
  void start(B& backend, const std::array<std::span<T>, 2>& state, mfsdp::matrix_view<T> parameter,
             const mfsdp::update_context<T>&) const {
    backend.copy(parameter.flat(), state[1]);
  }
  template <mfsdp::Backend B, class T>
  void update(B& backend, const std::array<std::span<T>, 2>& state, mfsdp::matrix_view<T> parameter,
              std::type_identity_t<mfsdp::matrix_view<const T>>,
              const mfsdp::update_context<T>& context) const {
    const T rate = static_cast<T>(learning_rate * context.learning_rate_scale);
    backend.transform([rate](auto& w, const auto& g) { w = w - rate * g; }, parameter.flat(),
                      std::span<const T>(state[0]));
  }
  template <mfsdp::Backend B, class T>
  void contribute(B& backend, const std::array<std::span<T>, 2>& state,
                  mfsdp::matrix_view<T> parameter,
                  std::type_identity_t<mfsdp::matrix_view<const T>> gradient,
                  const mfsdp::update_context<T>&, int round) const {
    if (round == meeting) backend.copy(gradient.flat(), state[0]);
    if (round == 2) {
      backend.transform([](auto& s, const auto& w) { s = T(0.5) * (s + w); }, state[1],
                        std::span<const T>(parameter.flat()));
    }
  }
  template <mfsdp::Backend B, class T>
  void adopt(B& backend, const std::array<std::span<T>, 2>& state, mfsdp::matrix_view<T> parameter,
             const mfsdp::update_context<T>&, int round) const {
    if (round == 3) backend.copy(std::span<const T>(state[1]), parameter.flat());
  }
};

}  // namespace mfsdp_test
