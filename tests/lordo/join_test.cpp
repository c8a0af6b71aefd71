// A site that joins under rules that keep something for themselves: it ends with the bits of the
// others, and starts without their feedback.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <latch>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "lordo/lordo.hpp"
#include "support/elastic_training.hpp"
#include "support/every_rule.hpp"

namespace join_test {

using namespace mfsdp;
using namespace std::chrono_literals;

namespace {

constexpr lordo::sync_periods meet{.parameters = 2};

const mfsdp_test::every_rule rules{
    lordo::local_steps{.inner = adamw{}, .periods = meet},
    lordo::low_rank_adam<>{.rank = 3,
                           .learning_rate = 0.01,
                           .feedback = lordo::error_feedback::full,
                           .weight_decay = 0.1,
                           .periods = meet},
    lordo::low_rank_adam<>{
        .rank = 3, .learning_rate = 0.01, .variant = lordo::basis_source::local, .periods = meet},
    lordo::local_steps{.inner = muon{}, .periods = meet, .exchange = lordo::exchange_low_rank{3}},
    lordo::averaged{.inner = muon{}, .exchange = lordo::exchange_low_rank{3}}};
const std::array<std::string_view, rules.count> feedback{"feedback", "feedback",
                                                         "exchange_feedback", "exchange_feedback"};

model_spec spec() {
  model_spec all;
  all.unit("block").matrix("up", 41, 16).matrix("down", 17, 23).vector("norm", 17);
  return all;
}

auto make_model(const elastic_collective& axis, std::size_t which) {
  return sharded_model{spec(), toy::site_of(axis), owner_placement{}, rules.choose(which)};
}

}  // namespace

TEST_CASE("a newcomer ends with the bits of the others, which are those of a plain loop") {
  for (std::size_t which = 0; which < rules.count; ++which) {
    CAPTURE(which);
    elastic_world world{3, {.founders = 2, .round_timeout = 30s}};
    toy::arrivals run;
    std::latch ready{1};
    const auto failures = world.run([&](elastic_collective axis) {
      auto model = make_model(axis, which);
      model.initialize(toy::initialize);
      run.train(model, 0, [&](int step) {
        if (step != 3) return;
        if (model.site() == 0) {
          world.join([&](elastic_collective self) {
            auto fresh = make_model(self, which);
            ready.count_down();
            run.train_newcomer(fresh);
          });
        }
        ready.wait();
      });
    });
    for (const member_failure& failure : failures) FAIL_CHECK(failure.what);
    REQUIRE(run.outcome.ends.size() == 3);
    toy::site_settings how = toy::single_ranks(3, run.steps);
    how.present = [&](int site, int step) { return site < 2 || step >= run.first_step.at(2); };
    const auto expected = toy::run_plain_sites(spec(), rules.choose(which), how);
    for (const auto& [seat, parameters] : run.outcome.ends) {
      CAPTURE(seat);
      CHECK(parameters == expected[static_cast<std::size_t>(seat)]);
      CHECK(parameters == run.outcome.ends.at(0));
    }
  }
}

TEST_CASE("a newcomer starts without the feedback of the site that it takes from") {
  for (std::size_t which = 0; which < rules.count; ++which) {
    CAPTURE(which);
    const auto feedback_of = [&](auto& model) {
      std::vector<float> all;
      model.persistence().for_each_held([&](const held_part& part, std::span<const float> values) {
        if (model.persistence().arrays()[part.array].state != feedback[which]) return;
        all.insert(all.end(), values.begin(), values.end());
      });
      return all;
    };
    const auto zeros = [](const std::vector<float>& x) {
      return std::ranges::count(x, 0.0f) == std::ssize(x);
    };
    elastic_world world{2, {.founders = 1, .round_timeout = 30s}};
    std::latch ready{1};
    std::latch looked{1};
    const auto failures = world.run([&](elastic_collective axis) {
      auto model = make_model(axis, which);
      model.initialize(toy::initialize);
      const auto how = toy::single_ranks(2, 0);
      for (int step = 0;; ++step) {
        if (step == 2) {
          world.join([&](elastic_collective self) {
            auto fresh = make_model(self, which);
            ready.count_down();
            CHECK(fresh.join() > 2);
            CHECK(feedback_of(fresh).size() == 41 * 16 + 17 * 23);
            CHECK(zeros(feedback_of(fresh)));
            looked.count_down();
          });
          ready.wait();
        }
        if (!toy::step_site(model, how, step).joined.empty()) break;
      }
      CHECK_FALSE(zeros(feedback_of(model)));
      looked.wait();
    });
    for (const member_failure& failure : failures) FAIL_CHECK(failure.what);
  }
}

}  // namespace join_test
