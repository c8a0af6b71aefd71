// A short training run whose rank 1 dies or throws in a phase of its second step:
//   mpi_failures <acquire|reduce|clip|step|between> <kill|throw>
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <string>

#include "mfsdp/collective/mpi.hpp"
#include "mfsdp/mfsdp.hpp"

namespace {

void train(mfsdp::mpi_collective comm, const std::string& phase, const std::string& how) {
  const auto strike = [&](int step, std::string_view here) {
    if (comm.rank() != 1 || step != 1 || here != phase) return;
    if (how == "kill") std::raise(SIGKILL);
    throw std::runtime_error("no more disk");
  };

  mfsdp::model_spec spec;
  for (int layer = 0; layer < 3; ++layer) {
    spec.unit("block." + std::to_string(layer))
        .matrix("up", 400, 200)
        .matrix("down", 200, 400)
        .vector("norm", 200);
  }
  mfsdp::sharded_model model{spec, comm, mfsdp::owner_placement{},
                             mfsdp::mixed{mfsdp::muon{}, mfsdp::adamw{}},
                             mfsdp::model_options{.timeout = std::chrono::seconds(3)}};
  model.initialize([](const mfsdp::tensor_spec&, std::span<float> values, mfsdp::index_t) {
    std::ranges::fill(values, 0.5f);
  });
  for (int step = 0; step < 3; ++step) {
    for (const auto unit : model.forward_order()) {
      if (unit == 1) strike(step, "acquire");
      const auto w = model.acquire(unit, mfsdp::pass::forward);
    }
    for (const auto unit : model.backward_order()) {
      const auto w = model.acquire(unit, mfsdp::pass::backward);
      const auto g = model.gradients(unit);
      g.zero();
      if (unit == 1) strike(step, "reduce");
      g.reduce();
    }
    strike(step, "clip");
    model.clip(1.0);
    strike(step, "step");
    model.step();
    strike(step, "between");
  }
}

}  // namespace

int main(int, char** argv) {
  try {
    mfsdp::mpi_world world({.timeout = std::chrono::seconds(5)});
    world.run([&](auto comm) { train(comm, argv[1], argv[2]); });
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
  }
  return 0;  // the library sees to it that this is no success
}
