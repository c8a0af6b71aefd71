// Checkpoints of sites that come and go: founders load, those who come later join.
#include <doctest/doctest.h>

#include <latch>

#include "mfsdp/checkpoint.hpp"
#include "support/checkpoint_files.hpp"
#include "support/checkpoint_values.hpp"
#include "support/elastic_training.hpp"

namespace elastic_test {

namespace {

auto elastic_model(const mfsdp::elastic_collective& axis) {
  return mfsdp::sharded_model{toy::odd_spec(), toy::site_of(axis), mfsdp::owner_placement{},
                              toy::anchored_rules()};
}

template <class Model>
void train_seats_until(Model& model, int steps) {
  for (int step = static_cast<int>(model.persistence().counts().steps); step < steps; ++step) {
    toy::step_site(model, toy::single_ranks(3, steps), step);
  }
}

void run_founders(
    const std::function<void(mfsdp::elastic_world&, mfsdp::elastic_collective)>& body) {
  mfsdp::elastic_world world{3, {.founders = 2, .round_timeout = std::chrono::seconds(30)}};
  const auto failures = world.run([&](mfsdp::elastic_collective axis) { body(world, axis); });
  for (const mfsdp::member_failure& failure : failures) FAIL_CHECK(failure.what);
}

}  // namespace

TEST_CASE("founders on an elastic axis go on bit for bit, beside a free seat") {
  const toy::timed in_time;
  const checkpoint_files::temporary_folder root;
  std::vector<checkpoint_values::everything> ended(2);
  run_founders([&](auto&, const auto& axis) {
    auto model = elastic_model(axis);
    model.initialize(toy::initialize);
    train_seats_until(model, 3);  // in the middle of a period
    mfsdp::save(model, root.path());
    train_seats_until(model, 7);
    ended[static_cast<std::size_t>(model.site())].add(model);
  });
  std::vector<checkpoint_values::everything> resumed(2);
  run_founders([&](auto&, const auto& axis) {
    auto model = elastic_model(axis);
    CHECK(mfsdp::load(model, root.path()).step == 3);
    train_seats_until(model, 7);
    resumed[static_cast<std::size_t>(model.site())].add(model);
  });
  for (std::size_t site = 0; site < 2; ++site) CHECK(resumed[site] == ended[site]);
}

TEST_CASE("who comes to others that have loaded joins, and may not load") {
  const toy::timed in_time;
  const checkpoint_files::temporary_folder root;
  run_founders([&](auto&, const auto& axis) {
    auto model = elastic_model(axis);
    model.initialize(toy::initialize);
    train_seats_until(model, 2);
    mfsdp::save(model, root.path());
  });
  std::latch ready{1};
  std::atomic<int> joined = 0;
  run_founders([&](auto& world, const auto& axis) {
    auto model = elastic_model(axis);
    mfsdp::load(model, root.path());
    train_seats_until(model, 3);
    if (model.site() == 0) {
      world.join([&](mfsdp::elastic_collective self) {
        auto fresh = elastic_model(self);
        CHECK_THROWS_AS(mfsdp::load(fresh, root.path()), mfsdp::usage_error);
        ready.count_down();
        CHECK(fresh.join() == 4);
        ++joined;
      });
    }
    ready.wait();
    train_seats_until(model, 4);
  });
  CHECK(joined == 1);
}

}  // namespace elastic_test
