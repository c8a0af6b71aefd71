// Sites that vanish in the middle of training: the others go on, with the bits of a plain loop in
// which the lost site does not count.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "support/elastic_training.hpp"

namespace elastic_test {

using namespace mfsdp;
using namespace std::chrono_literals;
using toy::blow, toy::patient, toy::place, toy::timed, toy::way;

static_assert(PeriodicOptimizer<toy::anchored_momentum<true>>);
static_assert(ElasticCollective<toy::watched_collective>);

namespace {

// Long enough for members that only compute; nothing may last as long as `patient`.
constexpr auto impatient = 500ms;

struct casualty {
  int site = 0;
  int step = 0;  // in which it is struck, from 0
  place where = place::forward;
  way how = way::throws;
};

bool strikes(const std::vector<casualty>& casualties, int site, int step, place where) {
  return std::ranges::any_of(casualties, [&](const casualty& c) {
    return c.site == site && c.step == step && c.where == where;
  });
}

// Trains all sites but those that are struck to the end.
void train(const model_spec& spec, const toy::site_settings& how,
           const std::vector<casualty>& casualties, toy::elastic_outcome& outcome) {
  const int sites = static_cast<int>(how.ranks.size());
  const bool sleeps =
      std::ranges::any_of(casualties, [](const casualty& c) { return c.how == way::sleeps; });
  elastic_world world{sites, {.round_timeout = sleeps ? impatient : patient}};
  blow struck(casualties.front().how);
  std::atomic<int> survivors = sites - static_cast<int>(casualties.size());
  const auto failures = world.run([&](elastic_collective axis) {
    const int site = axis.rank();
    int step = 0;
    int messages = 0;
    const auto strike = [&](place where) {
      if (strikes(casualties, site, step, where)) struck();
    };
    const std::function<void()> before_update = [&] { strike(place::update); };
    const auto watch = [&](std::string_view label) {
      if (label.starts_with("mean over sites") && ++messages == 2) strike(place::meeting);
    };
    try {
      sharded_model model{spec, toy::site_of(axis, watch), owner_placement{},
                          toy::anchored_rules(&before_update)};
      model.initialize(toy::initialize);
      for (; step < how.steps; ++step) {
        {
          const auto weights = model.acquire(0, pass::forward);
          strike(place::forward);
        }
        if (strikes(casualties, site, step, place::reduce)) {
          const auto gradients = model.gradients(model.backward_order().front());
          gradients.zero();
          struck();
          gradients.reduce();
          model.discard_gradients();
        }
        const step_result result = toy::step_site(model, how, step);
        CHECK(result.joined.empty());
        messages = 0;
      }
      CHECK(!strikes(casualties, site, step, place::forward));
      outcome.end(model);
      if (--survivors == 0) struck.release();
    } catch (const blow::early_return&) {
    } catch (const member_dropped& e) {
      outcome.drop(site, e.what());
    }
  });
  const auto threw = std::ranges::count(casualties, way::throws, &casualty::how);
  CHECK(std::ssize(failures) == threw);
  for (const member_failure& failure : failures) CHECK(failure.what == "no more disk");
}

}  // namespace

TEST_CASE("when a site vanishes the others go on, and it does not count from its lost round on") {
  const timed in_time;
  // Parameters meet after steps 1, 3 and 5, momentum after 2 and 5.
  toy::site_settings how = toy::single_ranks(3, 6);
  how.present = [](int site, int step) { return site != 1 || step < 2; };
  const auto expected = toy::run_plain_sites(toy::odd_spec(), toy::anchored_rules(), how);
  how.present = [](int, int) { return true; };
  CHECK(toy::run_plain_sites(toy::odd_spec(), toy::anchored_rules(), how)[0] != expected[0]);
  for (const place where : {place::forward, place::reduce, place::update}) {
    for (const way by : {way::throws, way::returns, way::sleeps}) {
      CAPTURE(static_cast<int>(where));
      CAPTURE(static_cast<int>(by));
      toy::elastic_outcome outcome;
      train(toy::odd_spec(), how, {{1, 2, where, by}}, outcome);
      CHECK(outcome.ends.size() == 2);
      CHECK(outcome.ends[0] == expected[0]);
      CHECK(outcome.ends[2] == expected[2]);
      CHECK(outcome.ends[0] == outcome.ends[2]);
      REQUIRE(outcome.dropped.size() == (by == way::sleeps ? 1 : 0));
      if (by == way::sleeps) {
        INFO(outcome.dropped[1]);
        CHECK(toy::contains(outcome.dropped[1], "'mean over sites, step 3'"));
        CHECK(toy::contains(outcome.dropped[1], "went on without the member on seat 1"));
        CHECK(toy::contains(outcome.dropped[1], "it may join again"));
      }
    }
  }
}

TEST_CASE("a site that vanishes between two messages counts in the first and not in the second") {
  const timed in_time;
  model_spec spec;
  spec.unit("unit").matrix("first", 512, 400).matrix("second", 300, 400);
  constexpr std::size_t message = 256 * 1024;  // elements
  constexpr std::size_t in_first = 512 * 400;
  toy::site_settings how = toy::single_ranks(3, 2);
  const auto all = toy::run_plain_sites(spec, toy::anchored_rules(), how)[0];
  how.present = [](int site, int) { return site != 1; };
  const auto rest = toy::run_plain_sites(spec, toy::anchored_rules(), how)[0];
  for (const way by : {way::throws, way::returns, way::sleeps}) {
    CAPTURE(static_cast<int>(by));
    toy::elastic_outcome outcome;
    train(spec, how, {{1, 1, place::meeting, by}}, outcome);
    CHECK(outcome.ends.size() == 2);
    CHECK(outcome.ends[0] == outcome.ends[2]);
    CHECK(outcome.ends[0].at("unit.first") == all.at("unit.first"));
    CHECK(outcome.ends[0].at("unit.first") != rest.at("unit.first"));
    auto expected = all.at("unit.second");
    const auto& after = rest.at("unit.second");
    const auto cut = static_cast<std::ptrdiff_t>(message - in_first);
    CHECK(!std::equal(after.begin() + cut, after.end(), expected.begin() + cut));
    std::copy(after.begin() + cut, after.end(), expected.begin() + cut);
    CHECK(outcome.ends[0].at("unit.second") == expected);
  }
}

TEST_CASE("two sites may vanish at once, and all but one") {
  const timed in_time;
  toy::site_settings how = toy::single_ranks(4, 6);
  how.present = [](int site, int step) {
    return site == 0 || site == 3 || step < (site == 1 ? 3 : 2);
  };
  auto expected = toy::run_plain_sites(toy::odd_spec(), toy::anchored_rules(), how);
  for (const way by : {way::throws, way::sleeps}) {
    toy::elastic_outcome outcome;
    train(toy::odd_spec(), how, {{1, 3, place::forward, by}, {2, 2, place::update, by}}, outcome);
    CHECK(outcome.ends[0] == expected[0]);
    CHECK(outcome.ends[3] == expected[3]);
    CHECK(outcome.dropped.size() == (by == way::sleeps ? 2 : 0));
  }
  how.present = [](int site, int step) { return site == 3 || step < 2 + site; };
  expected = toy::run_plain_sites(toy::odd_spec(), toy::anchored_rules(), how);
  toy::elastic_outcome outcome;
  train(toy::odd_spec(), how,
        {{0, 2, place::forward}, {1, 3, place::reduce}, {2, 4, place::update}}, outcome);
  REQUIRE(outcome.ends.size() == 1);
  CHECK(outcome.ends[3] == expected[3]);
}

TEST_CASE("a site may be missing from the start; one that starts otherwise is still found") {
  const auto run = [](double scale) {
    elastic_world world{4, {.founders = 3, .round_timeout = patient}};
    std::atomic<int> told = 0;
    std::atomic<int> sites = 0;
    const auto failures = world.run([&](elastic_collective axis) {
      sharded_model model{toy::odd_spec(), toy::site_of(axis), owner_placement{},
                          toy::anchored_rules()};
      model.initialize([&](const tensor_spec& tensor, std::span<float> values, index_t first) {
        toy::initialize(tensor, values, first);
        if (model.site() == 2) values[0] *= static_cast<float>(scale);
      });
      sites += model.sites();
      toy::reduce_zeros(model);
      try {
        model.step();
      } catch (const plan_error& e) {
        told += toy::contains(e.what(), "starts with other values on site");
      }
    });
    CHECK(failures.empty());
    CHECK(sites == 3 * 4);
    return told.load();
  };
  CHECK(run(1) == 0);
  CHECK(run(2) == 3);
}

TEST_CASE("an elastic axis costs no bytes more, and one operation without bytes for each meeting") {
  constexpr int sites = 3;
  elastic_world world{sites, {.round_timeout = patient}};
  std::atomic<int> compared = 0;
  const auto failures = world.run([&](elastic_collective axis) {
    sharded_model model{toy::odd_spec(), toy::site_of(axis), owner_placement{},
                        toy::anchored_rules()};
    model.initialize(toy::initialize);
    for (int step = 0; step < 6; ++step) toy::step_site(model, toy::single_ranks(sites, 6), step);
    index_t elements = 0;
    index_t parts = 0;
    for (const placement_item& item : model.plan().items) {
      if (model.plan().tensors[item.tensor].optimizer < 0 || item.elements() == 0) continue;
      elements += item.elements();
      ++parts;
    }
    // Parameters after steps 1, 3 and 5, momentum after steps 2 and 5; one number for each part of
    // a message; to two others.
    const index_t bytes = 4 * (5 * elements + 4 * parts) * (sites - 1);
    CHECK(model.moved(phase::sync) == traffic{2 * 4, bytes, bytes});
    ++compared;
  });
  CHECK(failures.empty());
  CHECK(compared == sites);
}

}  // namespace elastic_test
