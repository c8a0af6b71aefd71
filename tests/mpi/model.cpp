// sharded_model over processes; each checks its own rank against a plain loop over all ranks.
#include <doctest/doctest.h>

#include <cstdlib>
#include <optional>

#include "mfsdp/collective/mpi.hpp"
#include "support/local_momentum.hpp"
#include "support/site_training.hpp"

namespace {

mfsdp::mpi_world job({.timeout = std::chrono::seconds(30)});

template <class Placement, class Rules>
void train_as(Placement placement, Rules rules, const mfsdp::message_options& options) {
  const mfsdp::model_spec spec = toy::odd_spec();
  const toy::settings how{.ranks = job.size()};
  const toy::outcome plain = toy::run_plain(spec, toy::optimizers(), how);
  std::vector<double> losses;
  std::vector<double> norms;
  std::map<std::string, std::vector<float>> parameters;
  std::int64_t step_traffic = 0;
  mfsdp::mpi_world(MPI_COMM_WORLD, options).run([&](auto comm) {
    mfsdp::sharded_model model{spec, comm, placement, rules};
    model.initialize(toy::initialize);
    toy::train(model, how, losses, norms);
    parameters = toy::read_parameters(model);
    const mfsdp::traffic& step = model.moved(mfsdp::phase::step);
    step_traffic = step.collectives + step.sent + step.received;
  });
  for (std::size_t step = 0; step < losses.size(); ++step) {
    CHECK(losses[step] == plain.losses[step * static_cast<std::size_t>(job.size()) +
                                       static_cast<std::size_t>(job.rank())]);
  }
  CHECK(parameters == plain.parameters);
  if constexpr (Placement::whole_matrices) {
    CHECK(norms == plain.norms);  // rows are not cut where its blocks are
    CHECK(step_traffic == 0);
  }
}

// Owner placement over a collective or a mesh.
template <class Axes>
void train_on(const Axes& axes, const toy::settings& how) {
  const toy::outcome plain = toy::run_plain(toy::odd_spec(), toy::optimizers(), how);
  mfsdp::sharded_model model{toy::odd_spec(), axes, mfsdp::owner_placement{}, toy::optimizers()};
  model.initialize(toy::initialize);
  std::vector<double> losses;
  std::vector<double> norms;
  toy::train(model, how, losses, norms);
  CHECK(norms == plain.norms);
  CHECK(toy::read_parameters(model) == plain.parameters);
  CHECK(model.moved(mfsdp::phase::step) == mfsdp::traffic{});
}

}  // namespace

TEST_CASE("training over processes equals a plain loop bit for bit") {
  using mfsdp::travel;
  const mfsdp::mixed gathering{mfsdp::gathered{toy::optimizers().matrix},
                               toy::optimizers().elementwise};
  for (const bool around : {false, true}) {
    CAPTURE(around);
    mfsdp::message_options options{.parcel_bytes = 4096};
    if (around) {
      options.gathers = travel::ring;
      options.sums = travel::chain;
    }
    train_as(mfsdp::owner_placement{}, toy::optimizers(), options);
    train_as(mfsdp::replicated_placement{}, toy::optimizers(), options);
    train_as(mfsdp::row_placement{}, gathering, options);
  }
}

TEST_CASE("a mesh of processes equals a plain loop bit for bit") {
  for (const int shard_ranks : {1, 2, job.size()}) {
    if (job.size() % shard_ranks != 0) continue;
    for (const double max_norm : {0.0, 0.5}) {
      CAPTURE(shard_ranks);
      CAPTURE(max_norm);
      const toy::settings how{.ranks = job.size(),
                              .replicas = job.size() / shard_ranks,
                              .micro_batches = 3,
                              .max_norm = max_norm};
      job.run([&](auto comm) { train_on(mfsdp::make_mesh(comm, shard_ranks), how); });
    }
  }
}

TEST_CASE("sites of processes equal a plain loop over sites bit for bit") {
  if (job.size() == 1) return;
  using mfsdp_test::local_momentum;
  const mfsdp::mixed rules{local_momentum<true>{}, local_momentum<false>{}};
  for (const int first : {1, job.size() / 2, job.size() - 1}) {
    CAPTURE(first);
    const std::vector<int> ranks{first, job.size() - first};
    const toy::site_settings how{.ranks = ranks, .parts = ranks};
    const auto expected = toy::run_plain_sites(toy::odd_spec(), rules, how);
    job.run([&](auto comm) {
      mfsdp::sharded_model model{toy::odd_spec(), mfsdp::make_sites(comm, ranks),
                                 mfsdp::owner_placement{}, rules};
      model.initialize(toy::initialize);
      toy::train_site(model, how);
      CHECK(toy::read_parameters(model) == expected[static_cast<std::size_t>(model.site())]);
      CHECK(model.moved(mfsdp::phase::step) == mfsdp::traffic{});
    });
  }
}

TEST_CASE("processes with different plans are told so before anything else moves") {
  if (job.size() == 1) return;
  std::int64_t sent = 0;
  std::string what;
  job.run([&](auto comm) {
    mfsdp::model_spec spec;
    spec.unit("unit").matrix("weight", comm.rank() == 1 ? 8 : 4, 4);
    try {
      mfsdp::sharded_model model{spec, comm, mfsdp::owner_placement{}, toy::optimizers().matrix};
    } catch (const mfsdp::plan_error& e) {
      what = e.what();
    }
    sent = comm.bytes_sent();
  });
  CHECK(what.find("different plans (") != std::string::npos);
  CHECK(sent <= 40 * (job.size() - 1));  // five hashes
}

TEST_CASE("groups that are parts of the job train side by side") {
  if (job.size() < 3) return;
  job.run([&](auto all) {
    const int color = all.rank() == 0 ? 0 : 1;
    auto comm = all.split(color);
    train_on(comm, {.ranks = comm.size()});
  });
}

TEST_CASE("a view of a caller's communicator leaves that as it is") {
  MPI_Comm mine = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &mine);
  {
    mfsdp::mpi_collective comm{mfsdp::mpi_communicator{mine}};
    const std::vector<float> shard{static_cast<float>(comm.rank())};
    std::vector<float> full(static_cast<std::size_t>(comm.size()));
    std::vector<mfsdp::piece> pieces;
    for (int r = 0; r < comm.size(); ++r) pieces.push_back({r, r, 0, 1});
    auto request = comm.start_all_gather(std::span<const float>(shard), std::span<float>(full),
                                         pieces, "ranks");
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    request.wait(until);
    request.drain(until);
    for (int r = 0; r < comm.size(); ++r) CHECK(full[static_cast<std::size_t>(r)] == r);
  }
  int sum = 0;
  const int one = 1;
  MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, mine);
  CHECK(sum == job.size());
  MPI_Comm_free(&mine);
}

TEST_CASE("where a rank runs") {
  CHECK(job.node() == 0);
  CHECK(job.local_rank() == job.rank());
}
