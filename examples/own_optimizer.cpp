// An optimizer of one's own: docs/concepts/optimizer.md. Drops it into the trainer of train_gpt, on
// owners and on full copies, and compares the losses.
#include <array>
#include <cmath>
#include <cstdio>
#include <span>
#include <string_view>
#include <vector>

#include "train_gpt/training.hpp"

using mfsdp::index_t, mfsdp::matrix_shape, mfsdp::matrix_view;

// [begin normalized_momentum]
// M <- mu M + G;  W <- W - lr M / |M|, where |M| is the 2-norm of the whole matrix.
struct normalized_momentum {
  double learning_rate = 0.1;
  double momentum = 0.9;

  static constexpr std::string_view name = "normalized_momentum";
  static constexpr bool whole_matrix = true;  // a norm of a piece would be another one

  index_t flops(matrix_shape shape) const { return 6 * shape.elements(); }
  std::array<mfsdp::state_spec, 1> states(matrix_shape shape) const {
    return {{{"momentum", shape.elements()}}};
  }
  index_t workspace_size(matrix_shape) const { return 0; }

  template <mfsdp::Backend B, class T>
  void update(B& backend, const std::array<std::span<T>, 1>& state, matrix_view<T> parameter,
              matrix_view<const T> gradient, const mfsdp::update_context<T>& context) const {
    const T keep = static_cast<T>(momentum);
    backend.transform([keep](auto& m, const auto& g) { m = keep * m + g; }, state[0],
                      gradient.flat());

    const std::span<const T> m = state[0];
    const double norm = std::sqrt(backend.sum_of_squares(m));
    const double rate = learning_rate * context.learning_rate_scale;
    const T step = static_cast<T>(rate / (norm + 1e-12));
    backend.transform([step](auto& w, const auto& d) { w = w - step * d; }, parameter.flat(), m);
  }
};
// [end normalized_momentum]

int main() {
  train_gpt::settings how{.steps = 30,
                          .sequences = 6,
                          .shape = {.layers = 1, .heads = 2, .width = 32, .context = 32},
                          .warmup = 5};
  const train_gpt::text data(train_gpt::synthetic_text(1 << 16, 1), how.shape.context);
  how.shape.vocabulary = data.vocabulary();
  mfsdp::thread_world world{3};
  const auto losses = [&](auto placement) {
    return train_gpt::train_as(world, how, data, placement,
                               mfsdp::mixed{normalized_momentum{}, mfsdp::adamw{}}, {})
        .losses;
  };

  const std::vector<double> owned = losses(mfsdp::owner_placement{});
  fmt::print("loss after {} steps: {:.1f} nats per byte, {:.1f} at the start\n", owned.size(),
             owned.back(), owned.front());
  fmt::print("owners and full copies: {} losses\n",
             owned == losses(mfsdp::replicated_placement{}) ? "equal" : "different");
}
