// Training on a mesh of processes equals a plain loop bit for bit; each process checks its own
// rank.
#include <doctest/doctest.h>

#include <vector>

#include "mfsdp/collective/mpi.hpp"
#include "support/toy_training.hpp"

namespace {

// MPI starts once in a process.
mfsdp::mpi_world job;

}  // namespace

TEST_CASE("training on a mesh of processes equals a plain loop bit for bit") {
  for (const int shard_ranks : {1, 2, job.size()}) {
    for (const double max_norm : {0.0, 0.5}) {
      CAPTURE(shard_ranks);
      CAPTURE(max_norm);
      const toy::settings how{.ranks = job.size(),
                              .replicas = job.size() / shard_ranks,
                              .micro_batches = 3,
                              .max_norm = max_norm};
      const auto expected = toy::run_plain(toy::odd_spec(), toy::optimizers(), how);
      job.run([&](auto comm) {
        mfsdp::sharded_model model{toy::odd_spec(), mfsdp::make_mesh(comm, shard_ranks),
                                   mfsdp::owner_placement{}, toy::optimizers()};
        model.initialize(toy::initialize);
        std::vector<double> losses;
        std::vector<double> norms;
        toy::train(model, how, losses, norms);
        CHECK(norms == expected.norms);
        CHECK(toy::read_parameters(model) == expected.parameters);
        CHECK(model.moved(mfsdp::phase::step) == mfsdp::traffic{});
      });
    }
  }
}
