// Newcomers whose model stores several types, and calls in a wrong state.
#include <doctest/doctest.h>

#include <functional>
#include <latch>
#include <string>
#include <vector>

#include "support/elastic_training.hpp"

namespace newcomer_test {

using namespace mfsdp;
using namespace std::chrono_literals;
using toy::arrivals, toy::mentions, toy::message_of, toy::patient, toy::timed;

namespace {

const toy::anchored_momentum<false> rule;
using types = precision<bfloat16, float>;

}  // namespace

TEST_CASE("parameters in 16 bits and frozen ones come over, too") {
  const timed in_time;
  elastic_world world{2, {.founders = 1, .round_timeout = patient}};
  std::latch ready{1};
  arrivals run;
  const auto model_of = [](const elastic_collective& axis) {
    return sharded_model{toy::odd_spec(), toy::site_of(axis), owner_placement{}, rule, types{}};
  };
  const auto failures = world.run([&](elastic_collective axis) {
    auto model = model_of(axis);
    model.initialize(toy::initialize);
    run.train(model, 0, [&](int step) {
      if (step != 2) return;
      world.join([&](elastic_collective self) {
        auto fresh = model_of(self);
        ready.count_down();
        run.train_newcomer(fresh);
      });
      ready.wait();
    });
  });
  for (const member_failure& failure : failures) FAIL_CHECK(failure.what);
  REQUIRE(run.outcome.ends.size() == 2);
  CHECK(std::ranges::count(run.outcome.ends[1].at("block.1.down"), 0.0f) < 10);  // frozen
  CHECK(run.outcome.ends[0] == run.outcome.ends[1]);
}

TEST_CASE("calls in a wrong state, and sites of several ranks, are refused") {
  const timed in_time;
  elastic_world world{2, {.founders = 1, .round_timeout = patient}};
  std::latch done{1};
  const auto failures = world.run([&](elastic_collective axis) {
    sharded_model model{toy::odd_spec(), toy::site_of(axis), owner_placement{}, rule, types{}};
    CHECK(mentions(message_of<usage_error>([&] { (void)model.join(); }), "is no newcomer"));
    model.initialize(toy::initialize);
    for (int step = 0; step < 2; ++step) toy::step_site(model, toy::single_ranks(2, 2), step);
    world.join([&](elastic_collective self) {
      sharded_model fresh{toy::odd_spec(), toy::site_of(self), owner_placement{}, rule, types{}};
      for (const auto& call : std::vector<std::function<void()>>{
               [&] { fresh.initialize(toy::initialize); },
               [&] { (void)fresh.acquire(0, pass::forward); },
               [&] { (void)fresh.step(); },
           }) {
        CHECK(mentions(message_of<usage_error>(call), "has not joined them: call join"));
      }
      done.count_down();
    });
    done.wait();
    const auto refusal = [&](int ranks, const model_options& options) {
      return message_of<spec_error>([&] {
        thread_world{ranks}.run([&](auto inside) {
          const mesh axes{inside, self{}, axis};
          sharded_model unfit{toy::odd_spec(), axes, owner_placement{}, rule, options};
        });
      });
    };
    CHECK(mentions(refusal(2, {}),
                   "an elastic site axis has sites of one rank each, but this one has 2"));
    CHECK(mentions(refusal(1, {.timeout = patient}),
                   "model_options.timeout is 30000 ms, but sites wait up to 30000 ms"));
  });
  for (const member_failure& failure : failures) FAIL_CHECK(failure.what);
}

}  // namespace newcomer_test
