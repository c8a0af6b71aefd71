// The first program: a model of three blocks, sharded over four ranks, a step on made-up gradients.
// [begin program]
#include <mfsdp/mfsdp.hpp>

int main() {
  mfsdp::model_spec spec;
  for (int layer = 0; layer < 3; ++layer) {
    spec.unit(fmt::format("block.{}", layer))
        .matrix("attention.qkv", 3 * 64, 64, {.row_groups = 3})
        .matrix("attention.out", 64, 64)
        .matrix("mlp.up", 256, 64)
        .matrix("mlp.down", 64, 256)
        .vector("norm", 64);
  }

  mfsdp::thread_world{4}.run([&](auto comm) {
    mfsdp::sharded_model model{
        spec, comm, mfsdp::owner_placement{},
        mfsdp::mixed{mfsdp::muon{.learning_rate = 0.02}, mfsdp::adamw{.learning_rate = 3e-4}}};
    // Called for each part of a tensor ("block.0.mlp.up") on this rank; `first` counts its elements
    // in row-major order.
    model.initialize([](const mfsdp::tensor_spec&, std::span<float> values, mfsdp::index_t first) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1.0f / float(first + i + 1);
    });

    for (auto unit : model.forward_order()) {
      auto weights = model.acquire(unit, mfsdp::pass::forward);
      // Your forward: weights["mlp.up"].data(), .rows(), .cols()
    }
    for (auto unit : model.backward_order()) {
      auto weights = model.acquire(unit, mfsdp::pass::backward);
      auto gradients = model.gradients(unit);
      // Your backward writes every element of gradients["mlp.up"].flat() and the others, or adds to
      // them after this:
      gradients.zero();
      gradients["mlp.up"].flat()[0] = weights["mlp.up"].flat()[0];
      gradients.reduce();
    }
    model.clip(1.0);                                    // by the global norm
    model.step(/*learning rate x*/ 0.5f);               // local: moves nothing
    const double loss = model.sum(0.25 * comm.rank());  // over all ranks

    if (comm.rank() == 0) {
      fmt::print("{}", mfsdp::describe(model.plan()));
      fmt::print("loss {}\nbytes received: forward {}, backward {}, step {}\n", loss,
                 model.moved(mfsdp::phase::forward).received,
                 model.moved(mfsdp::phase::backward).received,
                 model.moved(mfsdp::phase::step).received);
    }
  });
}
// [end program]
