// Experts, a convolution, and groups of tensors with their own rates: docs/parameter_groups.md.
// Prints who updates what, who owns which expert, and the losses of a few steps.
#include <cstdio>
#include <span>
#include <vector>

#include "mfsdp/mfsdp.hpp"

// [begin spec]
mfsdp::model_spec make_spec() {
  mfsdp::model_spec spec;
  spec.unit("stem").convolution("patches", {16, 3, 4, 4});  // one matrix of 16 x 48
  spec.unit("block")
      .vector("norm", 16)
      .matrix("router", 4, 16)
      .stack("gate_up", 4, 64, 16, {.row_groups = 2})  // 4 experts, 2 matrices of 32 x 16 each
      .stack("down", 4, 16, 32);
  spec.unit("head").elementwise("output", {10, 16});
  return spec;
}
// [end spec]

// [begin groups]
auto make_groups() {
  using namespace mfsdp;
  return parameter_groups{
      for_names("*.router", adamw{.learning_rate = 1e-2, .weight_decay = 0}),
      for_names("stem.*", muon{.learning_rate = 0.01}),
      for_role(tensor_role::matrix, muon{.learning_rate = 0.05}),
      for_rest(adamw{.learning_rate = 3e-2}),
  };
}
// [end groups]

// [begin schedule]
const mfsdp::cosine_schedule schedule({.steps = 6, .warmup = 2, .floor = 0.1});
// [end schedule]

int main() {
  mfsdp::thread_world{4}.run([&](auto comm) {
    mfsdp::sharded_model model{make_spec(), comm, mfsdp::owner_placement{}, make_groups()};
    model.initialize([](const auto&, std::span<float> values, mfsdp::index_t first) {
      for (float& value : values) value = 0.1f * static_cast<float>(first++ % 7 - 3);
    });
    const mfsdp::plan& plan = model.plan();
    if (comm.rank() == 0) {
      for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
        const auto optimizer = static_cast<std::size_t>(plan.tensors[t].optimizer);
        std::printf("%-14s %s\n", plan.spec.tensors()[t].name.c_str(),
                    plan.optimizers[optimizer].c_str());
      }
      for (std::size_t i = 0; i < plan.items.size(); ++i) {
        const mfsdp::placement_item& item = plan.items[i];
        if (item.name != "block.down") continue;
        std::printf("%s from element %d: rank %d\n", item.name.c_str(),
                    static_cast<int>(item.offset), plan.segments[i][0].rank);
      }
    }

    // The loss of every rank is |w|^2 / 2 over all parameters.
    for (int step = 1; step <= 6; ++step) {
      double loss = 0;
      for (const std::size_t unit : model.backward_order()) {
        const auto weights = model.acquire(unit, mfsdp::pass::backward);
        const auto gradients = model.gradients(unit);
        for (std::size_t i = 0; i < weights.pointers().size(); ++i) {
          for (std::size_t k = 0; k < weights[i].flat().size(); ++k) {
            const float w = weights[i].flat()[k];
            gradients[i].flat()[k] = w;
            loss += 0.5 * static_cast<double>(w) * w;
          }
        }
        gradients.reduce();
      }
      model.step(schedule(step));
      const double total = model.sum(loss);
      if (comm.rank() == 0)
        std::printf("step %d  rate x %.3f  loss %.1f\n", step, schedule(step), total);
    }
  });
}
