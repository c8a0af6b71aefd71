// Sites that come to others in the middle of training, and those that were dropped and come back.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <string>
#include <vector>

#include "support/elastic_training.hpp"

namespace join_test {

using namespace mfsdp;
using namespace std::chrono_literals;
using toy::arrivals, toy::mentions, toy::message_of, toy::patient, toy::timed;

namespace {

auto make_model(const elastic_collective& axis, toy::watched_collective::watcher watch = {},
                int rows = 0) {
  model_spec spec = toy::odd_spec();
  if (rows > 0) spec.unit("more").matrix("weight", rows, 2);
  return sharded_model{spec, toy::site_of(axis, std::move(watch)), owner_placement{},
                       toy::anchored_rules()};
}

}  // namespace

TEST_CASE("sites that come take part from their first step on, with the bits of a plain loop") {
  const timed in_time;
  // Before a meeting of momentum alone, half way between two of parameters; before one of those.
  for (const auto& [newcomers, at] : {std::pair{1, 2}, {2, 2}, {1, 3}, {2, 3}}) {
    CAPTURE(newcomers);
    CAPTURE(at);
    elastic_world world{4, {.founders = 2, .round_timeout = patient}};
    arrivals run{.awaited = static_cast<std::size_t>(newcomers)};
    std::latch ready{newcomers};
    const auto failures = world.run([&](elastic_collective axis) {
      auto model = make_model(axis);
      model.initialize(toy::initialize);
      run.train(model, 0, [&](int step) {
        if (step != at) return;
        for (int i = 0; model.site() == 0 && i < newcomers; ++i) {
          const int seat = world.join([&](elastic_collective self) {
            auto fresh = make_model(self);
            ready.count_down();
            run.train_newcomer(fresh);
          });
          CHECK(seat == 2 + i);
        }
        ready.wait();
      });
    });
    for (const member_failure& failure : failures) FAIL_CHECK(failure.what);
    REQUIRE(std::ssize(run.first_step) == newcomers);
    CHECK(std::ssize(run.outcome.ends) == 2 + newcomers);

    toy::site_settings how = toy::single_ranks(4, run.steps);
    how.present = [&](int site, int step) {
      return site < 2 || (run.first_step.contains(site) && step >= run.first_step.at(site));
    };
    const auto expected = toy::run_plain_sites(toy::odd_spec(), toy::anchored_rules(), how);
    for (const auto& [seat, parameters] : run.outcome.ends) {
      CAPTURE(seat);
      CHECK(parameters == expected[static_cast<std::size_t>(seat)]);
      CHECK(parameters == run.outcome.ends.at(0));
    }
  }
}

TEST_CASE("a site that was dropped comes back and ends with the bits of the others") {
  const timed in_time;
  elastic_world world{3, {.round_timeout = 500ms}};
  arrivals run;
  std::latch dropped{1};
  std::latch back{1};
  const auto failures = world.run([&](elastic_collective axis) {
    auto model = make_model(axis);
    model.initialize(toy::initialize);
    std::string what;
    what = message_of<member_dropped>([&] {
      run.train(model, 0, [&](int step) {
        // Parameters meet after step 1 and step 3, momentum after step 2.
        if (step == 3 && model.site() == 1) dropped.wait();
        if (step == 4 && model.site() == 0) dropped.count_down();
        if (step == 4) back.wait();
      });
    });
    if (model.site() != 1) return;
    CHECK(mentions(what, "it may join again"));
    // What is left of it is good for nothing else.
    CHECK_THROWS_AS((void)model.step(), usage_error);
    const int seat = world.join([&](elastic_collective again) {
      auto fresh = make_model(again);
      back.count_down();
      run.train_newcomer(fresh);
    });
    CHECK(seat == 1);
  });
  for (const member_failure& failure : failures) FAIL_CHECK(failure.what);
  REQUIRE(run.outcome.ends.size() == 3);
  toy::site_settings how = toy::single_ranks(3, run.steps);
  how.present = [&](int site, int step) {
    return site != 1 || step < 3 || step >= run.first_step.at(1);
  };
  const auto expected = toy::run_plain_sites(toy::odd_spec(), toy::anchored_rules(), how);
  for (const auto& [seat, parameters] : run.outcome.ends) {
    CHECK(parameters == expected[static_cast<std::size_t>(seat)]);
    CHECK(parameters == run.outcome.ends.at(0));
  }
}

TEST_CASE("a newcomer has all states of the others after a meeting, and none of their feedback") {
  const timed in_time;
  elastic_world world{2, {.founders = 1, .round_timeout = patient}};
  std::latch ready{1};
  std::atomic<int> compared = 0;
  std::mutex mutex;
  std::map<std::string, std::vector<float>> of_giver;
  std::latch taken{1};
  const auto states_of = [](auto& model) {
    std::map<std::string, std::vector<float>> all;
    model.persistence().for_each_held([&](const held_part& part, std::span<const float> values) {
      const model_array& array = model.persistence().arrays()[part.array];
      if (!array.is_state()) return;
      auto& of = all[std::string(array.state) + " " + model.plan().items[part.item].name];
      of.insert(of.end(), values.begin(), values.end());
    });
    return all;
  };
  const auto failures = world.run([&](elastic_collective axis) {
    auto model = make_model(axis);
    model.initialize(toy::initialize);
    const auto how = toy::single_ranks(2, 0);
    for (int step = 0;; ++step) {
      if (step == 2) {
        world.join([&](elastic_collective self) {
          auto fresh = make_model(self);
          ready.count_down();
          const auto steps = fresh.join();
          taken.wait();
          const std::unique_lock guard(mutex);
          CHECK(steps > 2);
          CHECK(toy::read_parameters(fresh).at("embedding.tokens").size() == 61 * 37);
          for (const auto& [name, values] : states_of(fresh)) {
            CAPTURE(name);
            const bool own = name.starts_with("feedback");
            if (own) CHECK(std::ranges::count(values, 0.0f) == std::ssize(values));
            CHECK((values == of_giver.at(name)) == (!own || values.empty()));
            ++compared;
          }
        });
        ready.wait();
      }
      if (!toy::step_site(model, how, step).joined.empty()) break;
    }
    const std::unique_lock guard(mutex);
    of_giver = states_of(model);
    taken.count_down();
  });
  for (const member_failure& failure : failures) FAIL_CHECK(failure.what);
  CHECK(compared > 30);
}

TEST_CASE("a newcomer with another model is told so alone, before it has joined") {
  const timed in_time;
  elastic_world world{3, {.founders = 2, .round_timeout = patient}};
  std::string told;
  std::latch refused{1};
  arrivals run{.awaited = 0};
  const auto failures = world.run([&](elastic_collective axis) {
    auto model = make_model(axis);
    model.initialize(toy::initialize);
    run.train(model, 0, [&](int step) {
      if (step != 3) return;
      if (model.site() == 0) {
        world.join([&](elastic_collective self) {
          told = message_of<plan_error>([&] { (void)make_model(self, {}, 4); });
          refused.count_down();
        });
      }
      refused.wait();
    });
  });
  CHECK(failures.empty());
  CHECK(mentions(told, "site 0 trains something else than site 2"));
  CHECK(run.outcome.ends.size() == 2);
  CHECK(run.outcome.ends[0] == run.outcome.ends[1]);
}

TEST_CASE("if the site that hands over vanishes, the newcomer is told, and may try again") {
  const timed in_time;
  for (const int message : {1, 2}) {  // counts; parameters and states
    elastic_world world{4, {.founders = 2, .round_timeout = patient}};
    arrivals run{.awaited = 2};  // the first, too, had been let in
    std::latch ready{1};
    std::string told;
    const auto failures = world.run([&](elastic_collective axis) {
      int messages = 0;
      auto model = make_model(axis, [&](std::string_view label) {
        if (axis.rank() == 0 && label == "hand-over" && ++messages == message) {
          throw std::runtime_error("gone");
        }
      });
      model.initialize(toy::initialize);
      run.train(model, 0, [&](int step) {
        if (step != 3) return;
        if (model.site() == 0) {
          world.join([&](elastic_collective self) {
            {
              auto fresh = make_model(self);
              ready.count_down();
              told = message_of<collective_error>([&] { run.train_newcomer(fresh); });
              CHECK_THROWS_AS((void)fresh.acquire(0, pass::forward), usage_error);
            }
            CHECK(world.join([&](elastic_collective again) {
              auto fresh = make_model(again);
              run.train_newcomer(fresh);
            }) == 0);
          });
        }
        ready.wait();
      });
    });
    REQUIRE(failures.size() == 1);
    CHECK(failures[0].what == "gone");
    CHECK(mentions(told, "site 0 vanished while it handed over to site 2"));
    CHECK(run.outcome.ends.size() == 2);
    CHECK(run.outcome.ends.at(0) == run.outcome.ends.at(1));
  }
}

}  // namespace join_test
