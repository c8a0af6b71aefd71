// A short training run whose rank 1 dies or throws in a phase of its second step:
//   mpi_failures <acquire|reduce|clip|step|between|sync> <kill|throw> [around|mesh|sites]
// around: by ring and chain. mesh: two replicas of two. sites: two sites of two, that meet after
// every step; sync is in that meeting.
#include <csignal>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>

#include "mfsdp/collective/mpi.hpp"
#include "mfsdp/mfsdp.hpp"
#include "support/local_momentum.hpp"

namespace {

// Says when it is about to meet the other sites.
template <bool Whole>
struct struck_in_meeting : mfsdp_test::local_momentum<Whole> {
  std::function<void()> meets{};

  template <class... Rest>
  void contribute(Rest&&...) const {
    meets();
  }
};

template <class Axes>
void train(Axes axes, int rank, const std::string& phase, const std::string& how) {
  const auto strike = [&](int step, std::string_view here) {
    if (rank != 1 || step != 1 || here != phase) return;
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
  int step = 0;
  const auto rules = [&] {
    if constexpr (std::same_as<decltype(axes.site), mfsdp::self>) {
      return mfsdp::mixed{mfsdp::muon{}, mfsdp::adamw{}};
    } else {
      const std::function<void()> meets = [&] { strike(step, "sync"); };
      return mfsdp::mixed{struck_in_meeting<true>{{.period = 1}, meets},
                          struck_in_meeting<false>{{.period = 1}, meets}};
    }
  }();
  mfsdp::sharded_model model{spec, axes, mfsdp::owner_placement{}, rules,
                             mfsdp::model_options{.timeout = std::chrono::seconds(3)}};
  model.initialize([](const mfsdp::tensor_spec&, std::span<float> values, mfsdp::index_t) {
    std::ranges::fill(values, 0.5f);
  });
  for (; step < 3; ++step) {
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

int main(int argc, char** argv) {
  const std::string shape = argc > 3 ? argv[3] : "";
  try {
    mfsdp::message_options options{.timeout = std::chrono::seconds(5)};
    if (shape == "around") {
      options.gathers = mfsdp::travel::ring;
      options.sums = mfsdp::travel::chain;
    }
    mfsdp::mpi_world world(options);
    world.run([&](auto comm) {
      const auto run = [&](const auto& axes) { train(axes, comm.rank(), argv[1], argv[2]); };
      if (shape == "mesh") {
        run(mfsdp::make_mesh(comm, 2));
      } else if (shape == "sites") {
        run(mfsdp::make_sites(comm, {2, 2}));
      } else {
        run(mfsdp::mesh{comm});
      }
    });
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
  }
  return 0;  // the library sees to it that this is no success
}
