#include <doctest/doctest.h>

#include <functional>
#include <utility>
#include <vector>

#include "mfsdp/mfsdp.hpp"
#include "support/emulated_gpus.hpp"
#include "support/toy_training.hpp"

namespace nccl_model_test {

using namespace mfsdp;
using mfsdp_test::emulated_gpus;
using mfsdp_test::tight_options;

namespace {

// As toy::run_sharded, on the ranks of an emulated machine; the trainer's memory is the host's.
template <class Axes>
toy::outcome run_on_host_memory(emulated_gpus& world, const toy::settings& how,
                                const Axes& axes_of) {
  toy::outcome result;
  std::vector<std::vector<double>> losses(static_cast<std::size_t>(how.ranks));
  world.run([&](nccl_collective comm) {
    sharded_model model{toy::odd_spec(), axes_of(comm), owner_placement{}, toy::optimizers(),
                        how.options};
    model.initialize(toy::initialize);
    std::vector<double> norms;
    toy::train(model, how, losses[static_cast<std::size_t>(comm.rank())], norms);
    auto parameters = toy::read_parameters(model);
    if (comm.rank() == 0) {
      result.norms = norms;
      result.parameters = std::move(parameters);
    }
  });
  for (std::size_t step = 0; step < losses.front().size(); ++step) {
    for (const auto& of_rank : losses) result.losses.push_back(of_rank[step]);
  }
  return result;
}

}  // namespace

TEST_CASE("a model trains over NCCL as over threads, bit for bit") {
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    toy::settings how;
    how.ranks = ranks;
    emulated_gpus world(ranks, tight_options());
    CHECK(run_on_host_memory(world, how, std::identity{}) ==
          toy::run_sharded(toy::odd_spec(), owner_placement{}, toy::optimizers(), how));
  }
}

TEST_CASE("a mesh of shard groups and replicas trains over NCCL as over threads, bit for bit") {
  toy::settings how;
  how.ranks = 4;
  const auto in_pairs = [](auto comm) { return make_mesh(comm, 2); };
  emulated_gpus world(4, tight_options());
  CHECK(run_on_host_memory(world, how, in_pairs) == toy::run_sharded(
                                                        toy::odd_spec(), owner_placement{},
                                                        toy::optimizers(), how, [](auto&) {},
                                                        precision<>{}, in_pairs));
}

}  // namespace nccl_model_test
