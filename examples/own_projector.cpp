// A projector of one's own: docs/concepts/projector.md. Trains one matrix in a few cosines at a
// time and in a basis that never changes, and compares how far they come.
#include <array>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lordo/lordo.hpp"
#include "mfsdp/mfsdp.hpp"

using mfsdp::index_t, mfsdp::matrix_shape, mfsdp::matrix_view;

// [begin cosine_projection]
// The next r of the n orthonormal cosines with every draw: no signal, no decomposition, nothing to
// send.
struct cosine_projection {
  static constexpr std::string_view name = "cosine";
  static constexpr bool needs_signal = false;

  std::string options() const { return "cosine"; }
  index_t flops(matrix_shape shape, index_t rank) const {
    return lordo::basis_shape(shape, rank).elements();
  }
  index_t workspace_size(matrix_shape, index_t) const { return 0; }

  template <class B, class T>
  void basis(B& backend, matrix_view<const T> /*signal*/, lordo::basis_draw draw,
             matrix_view<const T> /*old_basis*/, matrix_view<T> new_basis,
             std::span<T> /*workspace*/) const {
    const index_t n = new_basis.cols();
    std::vector<T> row(static_cast<std::size_t>(n));
    for (index_t i = 0; i < new_basis.rows(); ++i) {
      const index_t frequency = (draw.step + i) % n;
      const double size = std::sqrt((frequency == 0 ? 1.0 : 2.0) / static_cast<double>(n));
      for (index_t j = 0; j < n; ++j) {
        const double turn =
            std::numbers::pi * (static_cast<double>(j) + 0.5) / static_cast<double>(n);
        row[static_cast<std::size_t>(j)] =
            static_cast<T>(size * std::cos(static_cast<double>(frequency) * turn));
      }
      backend.copy(std::span<const T>(row), mfsdp::slice(new_basis.flat(), i * n, n));
    }
  }
};
// [end cosine_projection]

// The loss |X - target|^2 / 2 of a single site after 200 steps: the calls that a runtime makes.
double train(index_t period) {
  const lordo::low_rank_adam<cosine_projection> rule{
      .rank = 2, .learning_rate = 0.05, .omega = 1, .periods = {.parameters = period}};
  constexpr matrix_shape shape{8, 12};
  mfsdp::cpu_backend backend;
  std::vector<mfsdp::host_buffer<float>> memory;
  mfsdp::state_spans<lordo::low_rank_adam<cosine_projection>, float> states;
  const auto specs = rule.states(shape);
  for (std::size_t i = 0; i < states.size(); ++i) {
    states[i] = memory.emplace_back(specs[i].elements).span();
    backend.fill(states[i], 0.0f);
  }
  auto workspace = backend.allocate<float>(rule.workspace_size(shape));
  std::vector<float> weights(96), gradient(96);
  const matrix_view<float> x(weights.data(), shape);
  const matrix_view<const float> g(gradient.data(), shape);

  mfsdp::update_context<float> context{.step = 0, .workspace = workspace.span(), .model_step = 0};
  rule.start(backend, states, x, context);
  double loss = 0;
  for (int step = 1; step <= 200; ++step) {
    context.step = context.model_step = step;
    loss = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      gradient[i] = weights[i] - std::sin(static_cast<float>(i * i));
      loss += 0.5 * static_cast<double>(gradient[i] * gradient[i]);
    }
    rule.update(backend, states, x, g, context);
    // Here sites would average what exchanges() names; the mean of one is its own.
    if (rule.exchanges(shape, {step, 0, 1})[0]) rule.adopt(backend, states, x, context, 1);
  }
  return loss;
}

int main() {
  const double fixed = train(1000);
  const double moving = train(3);
  std::printf("two cosines for ever: %s\n", fixed > 10 ? "stuck" : "fitted");
  std::printf("two others every three steps: %s\n", moving < 1 ? "fitted" : "stuck");
}
