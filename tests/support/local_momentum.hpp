// A PeriodicOptimizer in its shortest form.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"

namespace mfsdp_test {

// Momentum; parameters are averaged each `period` steps, and momentum every second time.
template <bool Whole>
struct local_momentum {
  double learning_rate = 0.05;
  int period = 2;

  static constexpr std::string_view name = "local_momentum";
  static constexpr bool whole_matrix = Whole;
  static constexpr int rounds_before_update = 0;
  static constexpr int rounds_after_update = 1;

  [[nodiscard]] std::string options() const { return fmt::format("{} {}", learning_rate, period); }
  [[nodiscard]] mfsdp::index_t flops(mfsdp::matrix_shape shape) const {
    return 4 * shape.elements();
  }
  [[nodiscard]] std::array<mfsdp::state_spec, 1> states(mfsdp::matrix_shape shape) const {
    return {{{"momentum", shape.elements(), true}}};
  }
  [[nodiscard]] mfsdp::index_t workspace_size(mfsdp::matrix_shape) const { return 0; }
  [[nodiscard]] std::array<bool, 2> exchanges(mfsdp::matrix_shape,
                                              mfsdp::exchange_round now) const {
    const bool due = now.step % period == 0;
    return {due, due && now.step % (2 * period) == 0};
  }
  template <mfsdp::Backend B, class T>
  void update(B& backend, const std::array<std::span<T>, 1>& state, mfsdp::matrix_view<T> parameter,
              std::type_identity_t<mfsdp::matrix_view<const T>> gradient,
              const mfsdp::update_context<T>& context) const {
    const T rate = static_cast<T>(learning_rate * context.learning_rate_scale);
    backend.transform(
        [rate](auto& w, auto& m, const auto& g) {
          m = T(0.9) * m + g;
          w = w - rate * m;
        },
        parameter.flat(), state[0], gradient.flat());
  }
  template <mfsdp::Backend B, class T>
  void contribute(B&, const std::array<std::span<T>, 1>&, mfsdp::matrix_view<T>,
                  std::type_identity_t<mfsdp::matrix_view<const T>>,
                  const mfsdp::update_context<T>&, int) const {}
  template <mfsdp::Backend B, class T>
  void adopt(B&, const std::array<std::span<T>, 1>&, mfsdp::matrix_view<T>,
             const mfsdp::update_context<T>&, int) const {}
};

}  // namespace mfsdp_test
