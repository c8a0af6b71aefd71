// Checkpoints of processes: saved by some of them, loaded by others, and exchanged with threads.
#include "mfsdp/checkpoint.hpp"

#include <doctest/doctest.h>

#include <filesystem>

#include "mfsdp/collective/mpi.hpp"
#include "support/checkpoint_models.hpp"
#include "support/checkpoint_values.hpp"

namespace {

mfsdp::mpi_world job({.timeout = std::chrono::seconds(30)});

template <class Comm>
auto make_model(const Comm& comm) {
  const auto as_it_is = [](auto rule) { return rule; };
  return mfsdp::sharded_model{checkpoint_models::spec_of({"muon", "soap", "sgd"}), comm,
                              mfsdp::owner_placement{}, checkpoint_models::few_rules(as_it_is)};
}

// Calls body(model) on the first processes; the others wait.
template <class Body>
void on_processes(int ranks, Body&& body) {
  job.run([&](auto comm) {
    const bool takes_part = comm.rank() < ranks;
    auto some = comm.split(takes_part ? 0 : 1);
    if (takes_part) {
      auto model = make_model(some);
      body(model);
    }
  });
  MPI_Barrier(MPI_COMM_WORLD);
}

// One folder for all processes, empty at first.
std::string fresh_folder() {
  const std::string folder =
      (std::filesystem::temp_directory_path() / fmt::format("mfsdp-mpi-{}", job.size())).string();
  if (job.rank() == 0) std::filesystem::remove_all(folder);
  MPI_Barrier(MPI_COMM_WORLD);
  return folder;
}

}  // namespace

TEST_CASE("what some processes save others load, bit for bit") {
  for (int from = 1; from <= job.size(); ++from) {
    CAPTURE(from);
    const std::string root = fresh_folder();
    on_processes(from, [&](auto& model) {
      checkpoint_values::set_values(model, from);
      mfsdp::background_saver saver(root);
      saver.save(model, {.trainer = "from processes"});
      CHECK(saver.wait() == root + "/step-000000000007");
    });
    for (int to = 1; to <= job.size(); ++to) {
      CAPTURE(to);
      on_processes(to, [&](auto& model) {
        CHECK(mfsdp::load(model, root).trainer == "from processes");
        CHECK(checkpoint_values::count_wrong(model, from) == 0);
      });
    }
    if (job.rank() == 0) {
      mfsdp::thread_world{3}.run([&](auto comm) {
        auto model = make_model(comm);
        mfsdp::load(model, root);
        CHECK(checkpoint_values::count_wrong(model, from) == 0);
        checkpoint_values::set_values(model, 50, 8);
        mfsdp::save(model, root, {.trainer = "from threads"});
      });
    }
    MPI_Barrier(MPI_COMM_WORLD);
    on_processes(job.size(), [&](auto& model) {
      CHECK(mfsdp::load(model, root).trainer == "from threads");
      CHECK(checkpoint_values::count_wrong(model, 50, 8) == 0);
    });
    (void)fresh_folder();
  }
}

TEST_CASE("an error of one process is that of all") {
  const std::string root = fresh_folder();
  on_processes(job.size(), [&](auto& model) {
    checkpoint_values::set_values(model, 1);
    mfsdp::save(model, root);
    const int last = job.size() - 1;
    const std::string path = fmt::format("{}/step-000000000007/states-{:05}-of-{:05}.safetensors",
                                         root, last, job.size());
    (void)model.sum(0);
    if (job.rank() == 0) std::filesystem::resize_file(path, 100);
    (void)model.sum(0);
    try {
      mfsdp::load(model, root);
      FAIL("loaded");
    } catch (const mfsdp::checkpoint_error& fault) {
      CHECK(std::string(fault.what()).find(path) != std::string::npos);
    }
  });
  (void)fresh_folder();
}
