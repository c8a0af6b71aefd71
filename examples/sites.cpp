// Two sites of two owners each, on data of their own: every step is local to a site, and every
// fourth the sites meet.
// snippet: program
#include <lordo/lordo.hpp>
#include <mfsdp/mfsdp.hpp>

int main() {
  mfsdp::model_spec spec;
  for (int layer = 0; layer < 2; ++layer) {
    spec.unit(fmt::format("block.{}", layer))
        .matrix("up", 256, 64)
        .matrix("down", 64, 256)
        .vector("norm", 64);
  }

  mfsdp::thread_world{4}.run([&](auto world) {
    const lordo::sync_periods meet{.parameters = 4};
    mfsdp::sharded_model model{
        spec, mfsdp::make_sites(world, {2, 2}), mfsdp::owner_placement{},
        mfsdp::mixed{lordo::low_rank_adam<>{.rank = 8, .learning_rate = 2e-3, .periods = meet},
                     lordo::local_steps{.inner = mfsdp::adamw{}, .periods = meet}}};
    model.initialize([](const mfsdp::tensor_spec&, std::span<float> values, mfsdp::index_t first) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = 0.1f * std::sin(float(first) + float(i));
      }
    });

    for (int step = 1; step <= 8; ++step) {
      for (auto unit : model.backward_order()) {
        auto weights = model.acquire(unit, mfsdp::pass::backward);
        auto gradients = model.gradients(unit);
        // Your backward, on the data of this rank of this site. Here each site pulls elsewhere.
        for (std::size_t i = 0; i < gradients.pointers().size(); ++i) {
          auto g = gradients[i].flat();
          for (std::size_t k = 0; k < g.size(); ++k) {
            g[k] = weights[i].flat()[k] - std::cos(float(k % 97 + i) + float(model.site()));
          }
        }
        gradients.reduce();
      }
      model.step();
      if (world.rank() == 0) {
        fmt::print("step {}: sent within the site {} bytes in step, to the other site {} in all\n",
                   step, model.moved(mfsdp::phase::step).sent,
                   model.moved(mfsdp::phase::sync).sent);
      }
    }
    if (world.rank() == 0) fmt::print("{}", lordo::to_text(lordo::describe_bases(model)));
  });
}
// snippet: end
