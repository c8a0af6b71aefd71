// A run that goes on from a checkpoint is the run that never stopped.
#include <doctest/doctest.h>

#include <filesystem>

#include "mfsdp/checkpoint.hpp"
#include "support/checkpoint_files.hpp"
#include "support/checkpoint_models.hpp"
#include "support/checkpoint_values.hpp"
#include "support/site_training.hpp"

namespace resume_test {

namespace {

using checkpoint_files::refusal_of;
using checkpoint_files::temporary_folder;
using checkpoint_values::everything;

// One type of model for all tests here: every optimizer, on owners.
template <class Body>
void on_trainers(int ranks, Body&& body) {
  mfsdp::thread_world{ranks}.run([&](auto comm) {
    mfsdp::sharded_model model{checkpoint_models::spec_of(checkpoint_models::plain_names), comm,
                               mfsdp::owner_placement{},
                               checkpoint_models::plain_rules([](auto rule) { return rule; })};
    body(model);
  });
}

// Steps from the one that the model has reached on, the gradients of 12 parts.
template <class Model>
void train_until(Model& model, int steps) {
  const toy::site_settings how{.ranks = {model.ranks()}, .parts = {12}, .max_norm = 0.7};
  for (int step = static_cast<int>(model.persistence().counts().steps); step < steps; ++step) {
    toy::step_site(model, how, step);
  }
}

}  // namespace

TEST_CASE("at the same number of ranks a run goes on bit for bit") {
  for (const int at : {0, 1, 4}) {  // before the first step, too
    CAPTURE(at);
    const temporary_folder root;
    everything expected;
    on_trainers(3, [&](auto& model) {
      model.initialize(toy::initialize);
      train_until(model, at);
      mfsdp::save(model, root.path(), {.trainer = "position 17"});
      train_until(model, 6);
      expected.add(model);
    });
    everything resumed;
    on_trainers(3, [&](auto& model) {
      const mfsdp::loaded loaded = mfsdp::load(model, root.path());
      if (model.rank() == 0) {
        CHECK(loaded.step == at);
        CHECK(loaded.trainer == "position 17");
        CHECK(loaded.path == fmt::format("{}/step-{:012}", root.path(), at));
      }
      train_until(model, 6);
      resumed.add(model);
    });
    CHECK(resumed == expected);
  }
}

TEST_CASE("at another number of ranks it is as if a run of that size had got there") {
  const temporary_folder root;
  everything saved;
  on_trainers(4, [&](auto& model) {
    model.initialize(toy::initialize);
    train_until(model, 3);
    mfsdp::save(model, root.path());
    saved.add(model);
  });
  for (const int ranks : {1, 3, 6}) {
    CAPTURE(ranks);
    everything expected;
    everything resumed;
    on_trainers(ranks, [&](auto& model) {
      saved.put(model);
      train_until(model, 6);
      expected.add(model);
    });
    on_trainers(ranks, [&](auto& model) {
      mfsdp::load(model, root.path());
      train_until(model, 6);
      resumed.add(model);
    });
    CHECK(resumed == expected);
  }
}

TEST_CASE("the latest counts, also for a model that has been trained, and the last ones stay") {
  const temporary_folder root;
  everything expected;
  everything again;
  on_trainers(2, [&](auto& model) {
    model.initialize(toy::initialize);
    mfsdp::background_saver saver(root.path());
    for (int step = 1; step <= 5; ++step) {
      train_until(model, step);
      saver.save(model, {.keep_last = 3});
    }
    CHECK(saver.wait() == root / "step-000000000005");
    expected.add(model);
    train_until(model, 7);
    CHECK(mfsdp::load(model, root.path()).step == 5);
    again.add(model);
    CHECK(mfsdp::latest_checkpoint(model, root.path()) == 5);
  });
  CHECK(again == expected);
  std::vector<std::int64_t> steps;
  for (const auto& [step, path] : mfsdp::detail::checkpoints_in(root.path())) steps.push_back(step);
  CHECK(steps == std::vector<std::int64_t>{3, 4, 5});
  // What the last one has taken the name of is unlinked while the next is written.
  CHECK(std::filesystem::exists(root / ".step-000000000002.removed"));
  CHECK(mfsdp::detail::folders_in(root.path()).size() == 4);
  on_trainers(2, [&](auto& model) {
    mfsdp::load(model, root.path());
    train_until(model, 6);
    mfsdp::save(model, root.path(), {.keep_last = 0});
  });
  CHECK(mfsdp::detail::folders_in(root.path()).size() == 4);
  CHECK(!std::filesystem::exists(root / ".step-000000000002.removed"));
}

TEST_CASE("going back on purpose puts what is newer aside, and saving goes on") {
  const temporary_folder root;
  everything first;
  everything second;
  on_trainers(2, [&](auto& model) {
    model.initialize(toy::initialize);
    for (int step = 1; step <= 4; ++step) {
      train_until(model, step);
      mfsdp::save(model, root.path(), {.keep_last = 0});
    }
    first.add(model);
    const std::string text =
        refusal_of([&] { return mfsdp::load(model, root.path(), {.step = 9}); });
    CHECK(text.find("no checkpoint of step 9; there are steps 1, 2, 3, 4") != std::string::npos);
    for (int time = 0; time < 2; ++time) {  // what was put aside before stays
      const mfsdp::loaded at = mfsdp::load(model, root.path(), {.step = 2});
      CHECK(at.step == 2);
      CHECK(at.abandoned ==
            (time == 0 ? std::vector<std::int64_t>{3, 4} : std::vector<std::int64_t>{4}));
      train_until(model, 4);
      mfsdp::save(model, root.path(), {.keep_last = 0});
    }
    second.add(model);
    CHECK(mfsdp::load(model, root.path()).abandoned.empty());
  });
  CHECK(second == first);
  for (const char* const name : {".step-000000000003.abandoned", ".step-000000000004.abandoned",
                                 ".step-000000000004.abandoned-2", "step-000000000004"}) {
    CAPTURE(name);
    CHECK(std::filesystem::exists(root / name + "/manifest.json"));
  }
}

}  // namespace resume_test
