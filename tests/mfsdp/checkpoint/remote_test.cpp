// Checkpoints of a model in memory that the host cannot touch.
#include <doctest/doctest.h>

#include <atomic>

#include "mfsdp/checkpoint.hpp"
#include "support/checkpoint_files.hpp"
#include "support/remote_training.hpp"

namespace remote_checkpoint_test {

namespace {

// Trains for a step, which a load must undo, and loads; whether that is what `expected` ranks had.
template <class Memory>
std::vector<std::vector<std::byte>> loaded_into(int ranks, const std::string& root) {
  std::vector<std::vector<std::byte>> all(static_cast<std::size_t>(ranks));
  mfsdp::thread_world{ranks}.run([&](auto comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    mfsdp::sharded_model model{toy::odd_spec(),          mfsdp_test::remote_collective(comm),
                               mfsdp::owner_placement{}, toy::optimizers(),
                               mfsdp::model_options{},   Memory{}};
    model.initialize(toy::initialize);
    mfsdp_test::train_from_host(model, {.steps = 1});
    const mfsdp::loaded at = mfsdp::load(model, root);
    CHECK(at.step == 2);
    all[rank] = mfsdp_test::train_from_host(model, {.steps = 1});
  });
  return all;
}

// Two steps on two ranks.
template <class Memory>
void save_to(const std::string& root) {
  mfsdp::thread_world{2}.run([&](auto comm) {
    mfsdp::sharded_model model{toy::odd_spec(),          mfsdp_test::remote_collective(comm),
                               mfsdp::owner_placement{}, toy::optimizers(),
                               mfsdp::model_options{},   Memory{}};
    model.initialize(toy::initialize);
    mfsdp_test::train_from_host(model, {.steps = 2});
    mfsdp::save(model, root);
  });
}

}  // namespace

TEST_CASE("a checkpoint goes from either kind of memory to the other, bit for bit") {
  using remote = mfsdp_test::remote_backend<>;
  const checkpoint_files::temporary_folder root;
  const std::string of_remote = root / "remote";
  const std::string of_host = root / "host";
  save_to<remote>(of_remote);
  save_to<mfsdp::eigen_backend>(of_host);
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const auto expected = loaded_into<mfsdp::eigen_backend>(ranks, of_host);
    CHECK(loaded_into<mfsdp::eigen_backend>(ranks, of_remote) == expected);
    CHECK(loaded_into<remote>(ranks, of_host) == expected);
  }
}

}  // namespace remote_checkpoint_test
