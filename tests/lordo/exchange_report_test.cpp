// What is counted from shapes alone: as many numbers as a run moves, and the ratios that low rank
// and few meetings are for.
#include "mfsdp/exchange_report.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "support/mixing.hpp"

namespace exchange_report_test {

using namespace mfsdp;

TEST_CASE("a report from shapes is what a run exchanges, but for the counts of sites") {
  using mfsdp_test::site_rules;
  const model_spec spec = mfsdp_test::mixing_spec();
  for (std::size_t which = 0; which < site_rules.count; ++which) {
    const std::string name(site_rules.names[which]);
    CAPTURE(name);
    const auto rules = site_rules.choose(which);
    const toy::site_settings how{.ranks = {1, 1}, .parts = {1, 1}, .steps = 4};
    const exchange_load load =
        exchange_load_of(make_plan(spec, 1, owner_placement{}, rules), rules, 1, how.steps);
    thread_world{2}.run([&](auto comm) {
      sharded_model model{spec, make_sites(comm, how.ranks), owner_placement{}, rules};
      model.initialize(toy::initialize);
      toy::train_site(model, how);
      const double sent = static_cast<double>(model.moved(phase::sync).sent) / 4;
      CHECK(sent >= load.exchanged);
      CHECK(sent <= 1.05 * load.exchanged);  // the model is tiny
      index_t kept = 0;
      model.persistence().for_each_held([&](const held_part& part, auto values) {
        if (model.persistence().arrays()[part.array].is_state()) kept += std::ssize(values);
      });
      index_t reported = 0;
      for (const auto& [state, elements] : load.states) reported += elements;
      CHECK(kept == reported);
    });
  }
}

TEST_CASE("galore neither sends nor keeps a gradient for a projector that reads none") {
  model_spec spec;
  spec.unit("block").matrix("up", 48, 16);
  const auto load = [&](const auto& rule) {
    return exchange_load_of(make_plan(spec, 1, owner_placement{}, rule), rule, 1, 4);
  };
  const exchange_load reads = load(lordo::galore<>{.rank = 4, .refresh = 2});
  const exchange_load blind =
      load(lordo::galore<lordo::random_projection>{.rank = 4, .refresh = 2});
  CHECK(reads.exchanged == 2 * 48 * 16 + 2 * 4 * 48);
  CHECK(blind.exchanged == 4 * 4 * 48);
  CHECK(reads.states.at("mean_gradient") == 48 * 16);
  CHECK(blind.states.at("mean_gradient") == 0);
}

TEST_CASE("rules of one site exchange nothing") {
  const mixed rules{muon{}, adamw{}};
  const plan p = make_plan(mfsdp_test::mixing_spec(), 1, owner_placement{}, rules);
  CHECK(exchange_load_of(p, rules, 1, 100).exchanged == 0);
}

// 12 layers of width 2048 with a vocabulary of 50,368: about the size that the paper calls 720M.
TEST_CASE("at 720M, rank 256 and a period of 32: an eighth of low-rank DDP, a twentieth of DDP") {
  model_spec spec;
  spec.unit("embedding").elementwise("tokens", {50368, 2048});
  for (int layer = 0; layer < 12; ++layer) {
    spec.unit(fmt::format("block.{}", layer))
        .vector("norm1", 2048)
        .matrix("qkv", 3 * 2048, 2048, {.row_groups = 3})
        .matrix("out", 2048, 2048)
        .vector("norm2", 2048)
        .matrix("up", 8192, 2048)
        .matrix("down", 2048, 8192);
  }
  spec.unit("head").vector("norm", 2048);
  const auto load = [&](const auto& matrix, const auto& rest) {
    const mixed rules{matrix, rest};
    return exchange_load_of(make_plan(spec, 1, owner_placement{}, rules), rules, 33, 64);
  };
  const lordo::local_steps<adamw> rest{
      .periods = {.parameters = 32, .first_moment = 0, .second_moment = 0}};
  const exchange_load ddp = load(lordo::averaged<adamw>{}, lordo::averaged<adamw>{});
  const exchange_load low =
      load(lordo::averaged<muon, lordo::exchange_low_rank>{.exchange = {.rank = 256}},
           lordo::averaged<adamw>{});
  const exchange_load ours =
      load(lordo::low_rank_adam<>{.rank = 256, .periods = {.parameters = 32}}, rest);
  const double matrices = 12.0 * (4 * 2048 * 2048 + 2 * 2048 * 8192);
  const double longer = 12.0 * 256 * (4 * 2048 + 2 * 8192);
  const double others = static_cast<double>(ddp.parameters) - matrices;
  CHECK(ddp.exchanged == 32 * (matrices + others));
  CHECK(low.exchanged == 32 * (longer + 12.0 * 256 * 6 * 2048 + others));
  CHECK(ours.exchanged == matrices + 2 * longer + others);
  CHECK(ddp.exchanged / ours.exchanged >= 20);
  CHECK(low.exchanged / ours.exchanged >= 8);
  const double moments =
      static_cast<double>(ours.states.at("first_moment") + ours.states.at("second_moment")) -
      2 * others;
  CHECK(2 * matrices / moments == 8);
}

}  // namespace exchange_report_test
