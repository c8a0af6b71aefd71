// An optimizer of one's own: docs/concepts/optimizer.md. Trains on owners and on full copies, and
// compares the losses.
#include <array>
#include <cmath>
#include <cstdio>
#include <span>
#include <string_view>
#include <vector>

#include "mfsdp/mfsdp.hpp"

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

// The loss of rank r is |w - r|^2 / 2 over all parameters; returns the sum over ranks of each step.
template <class Placement>
std::vector<double> train(Placement placement) {
  mfsdp::model_spec spec;
  spec.unit("first").matrix("weight", 6, 4).vector("bias", 6);
  spec.unit("second").matrix("weight", 2, 6).vector("bias", 2);

  std::vector<double> losses;
  mfsdp::thread_world{3}.run([&](auto comm) {
    mfsdp::sharded_model model{spec, comm, placement,
                               mfsdp::mixed{normalized_momentum{}, mfsdp::adamw{}}};
    model.initialize([](const auto&, std::span<float> values, index_t first) {
      for (float& value : values) value = static_cast<float>(first++ % 5);
    });
    for (int step = 0; step < 5; ++step) {
      double loss = 0;
      for (const std::size_t unit : model.backward_order()) {
        const auto weights = model.acquire(unit, mfsdp::pass::backward);
        const auto gradients = model.gradients(unit);
        for (std::size_t i = 0; i < 2; ++i) {
          for (std::size_t k = 0; k < weights[i].flat().size(); ++k) {
            const float distance = weights[i].flat()[k] - static_cast<float>(comm.rank());
            gradients[i].flat()[k] = distance;
            loss += 0.5 * static_cast<double>(distance * distance);
          }
        }
        gradients.reduce();
      }
      model.step();
      const double total = model.sum(loss);
      if (comm.rank() == 0) losses.push_back(total);
    }
  });
  return losses;
}

int main() {
  const std::vector<double> losses = train(mfsdp::owner_placement{});
  for (const double loss : losses) std::printf("loss %.4f\n", loss);
  const bool equal = losses == train(mfsdp::replicated_placement{});
  std::printf("owners and full copies: %s losses\n", equal ? "equal" : "different");
}
