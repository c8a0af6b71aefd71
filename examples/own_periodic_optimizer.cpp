// A PeriodicOptimizer of one's own: momentum, steps alone, and now and then the mean of the sites.
#include <mfsdp/mfsdp.hpp>

// [begin local_momentum]
struct local_momentum {
  double learning_rate = 0.05;
  std::int64_t period = 4;  // steps between two meetings

  static constexpr std::string_view name = "local_momentum";
  static constexpr bool whole_matrix = false;  // any piece of a tensor will do
  static constexpr int rounds_before_update = 0;
  static constexpr int rounds_after_update = 1;

  mfsdp::index_t flops(mfsdp::matrix_shape shape) const { return 4 * shape.elements(); }
  std::array<mfsdp::state_spec, 1> states(mfsdp::matrix_shape shape) const {
    return {{{.name = "momentum", .elements = shape.elements(), .exact = true}}};
  }
  mfsdp::index_t workspace_size(mfsdp::matrix_shape) const { return 0; }

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

  // The parameter at every meeting, the momentum at every second one.
  std::array<bool, 2> exchanges(mfsdp::matrix_shape, mfsdp::exchange_round now) const {
    return {now.step % period == 0, now.step % (2 * period) == 0};
  }
  // They are averaged where they are: there is nothing to prepare and nothing to do with the means.
  template <class B, class T>
  void contribute(B&, const std::array<std::span<T>, 1>&, mfsdp::matrix_view<T>,
                  std::type_identity_t<mfsdp::matrix_view<const T>>,
                  const mfsdp::update_context<T>&, int) const {}
  template <class B, class T>
  void adopt(B&, const std::array<std::span<T>, 1>&, mfsdp::matrix_view<T>,
             const mfsdp::update_context<T>&, int) const {}
};
// [end local_momentum]

int main() {
  mfsdp::model_spec spec;
  spec.unit("unit").matrix("weight", 32, 32).vector("bias", 32);
  mfsdp::thread_world{3}.run([&](auto world) {
    mfsdp::sharded_model model{spec, mfsdp::make_sites(world, {2, 1}), mfsdp::owner_placement{},
                               local_momentum{}};
    model.initialize([](const mfsdp::tensor_spec&, std::span<float> values, mfsdp::index_t) {
      std::ranges::fill(values, 1.0f);
    });
    for (int step = 1; step <= 8; ++step) {
      for (auto unit : model.backward_order()) {
        auto weights = model.acquire(unit, mfsdp::pass::backward);
        auto gradients = model.gradients(unit);
        for (std::size_t i = 0; i < gradients.pointers().size(); ++i) {
          auto g = gradients[i].flat();
          for (std::size_t k = 0; k < g.size(); ++k) {  // towards the number of the site
            g[k] = (weights[i].flat()[k] - float(model.site())) / float(model.ranks());
          }
        }
        gradients.reduce();
      }
      model.step();
      const auto weights = model.acquire(0, mfsdp::pass::evaluate);
      if (world.rank() == 0 && step % 2 == 0) {
        fmt::print("step {}: site 0 has {:.3f}, bytes sent to site 1 {}\n", step,
                   weights["weight"].flat()[0], model.moved(mfsdp::phase::sync).sent);
      }
    }
  });
}
