// Checkpoints of sites, and of the rules that know other sites, in the middle of their periods.
#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <numeric>

#include "lordo/lordo.hpp"
#include "mfsdp/checkpoint.hpp"
#include "support/checkpoint_files.hpp"
#include "support/checkpoint_models.hpp"
#include "support/checkpoint_values.hpp"
#include "support/site_training.hpp"

namespace sites_test {

namespace {

using checkpoint_files::refusal_of;
using checkpoint_files::temporary_folder;
using checkpoint_values::everything;

constexpr lordo::sync_periods every_third{.parameters = 3};

const std::vector<std::string> periodic_names{"adam", "muon", "local", "mean", "ldadam", "galore"};

auto periodic_rules() {
  using namespace mfsdp;
  using namespace lordo;
  return parameter_groups{
      for_names("adam.w.*", low_rank_adam<>{.rank = 3, .omega = 0.6, .periods = every_third}),
      for_names("muon.w.*", low_rank_muon<>{.rank = 3, .periods = every_third}),
      for_names("local.w.*", local_steps{.inner = muon{},
                                         .periods = {.parameters = 3, .first_moment = 0},
                                         .outer = outer_nesterov{},
                                         .exchange = exchange_low_rank{.rank = 2}}),
      for_names("mean.w.*", averaged{.inner = muon{}}),
      for_names("ldadam.w.*", ldadam<>{.rank = 3}),
      for_names("galore.w.*", galore<>{.rank = 3, .refresh = 2}),
      for_rest(local_steps{.inner = adamw{}, .periods = every_third})};
}

// Calls body(model) on every rank of these sites; one type of model for all tests here.
template <class Body>
void on_sites(const std::vector<int>& ranks, Body&& body) {
  mfsdp::thread_world{std::accumulate(ranks.begin(), ranks.end(), 0)}.run([&](auto comm) {
    mfsdp::sharded_model model{checkpoint_models::spec_of(periodic_names),
                               mfsdp::make_sites(comm, ranks), mfsdp::owner_placement{},
                               periodic_rules(),
                               mfsdp::model_options{.timeout = std::chrono::seconds(20)}};
    body(model);
  });
}

// From the step that the model has reached on.
template <class Model>
void train_sites_until(Model& model, int steps) {
  const toy::site_settings how{
      .ranks = {}, .parts = std::vector<int>(static_cast<std::size_t>(model.sites()), 2)};
  for (int step = static_cast<int>(model.counts().steps); step < steps; ++step) {
    toy::step_site(model, how, step);
  }
}

using by_site = std::vector<everything>;

void check_equal(const by_site& a, const by_site& b) {
  for (std::size_t site = 0; site < a.size(); ++site) {
    CAPTURE(site);
    CHECK(a[site] == b[site]);
  }
}

// Trains from the start, saves in the middle of a period and at its end, and goes on from there.
void save_sites(const std::string& root, const std::vector<int>& ranks, by_site& saved,
                by_site& ended) {
  on_sites(ranks, [&](auto& model) {
    const auto site = static_cast<std::size_t>(model.site());
    model.initialize(toy::initialize);
    train_sites_until(model, 4);
    mfsdp::save(model, root);
    train_sites_until(model, 5);
    const std::string folder = mfsdp::save(model, root);
    CHECK(folder == fmt::format("{}/site-{}/step-000000000005", root, site));
    saved[site].add(model);
    train_sites_until(model, 8);
    ended[site].add(model);
  });
}

}  // namespace

TEST_CASE("rules that know other sites: every pair of world sizes") {
  const std::vector<int> worlds{1, 2, 3, 4, 7, 8};
  for (const int from : worlds) {
    CAPTURE(from);
    const temporary_folder root;
    on_sites({from}, [&](auto& model) {
      checkpoint_values::set_values(model, from);
      mfsdp::save(model, root.path());
    });
    for (const int to : worlds) {
      CAPTURE(to);
      std::atomic<mfsdp::index_t> wrong = 0;
      on_sites({to}, [&](auto& model) {
        mfsdp::load(model, root.path());
        wrong += checkpoint_values::count_wrong(model, from);
      });
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("sites go on bit for bit in the middle of a period, each from its own") {
  const temporary_folder root;
  by_site saved(2);
  by_site ended(2);
  save_sites(root.path(), {2, 1}, saved, ended);
  by_site resumed(2);
  on_sites({2, 1}, [&](auto& model) {
    const mfsdp::loaded at = mfsdp::load(model, root.path());
    CHECK(at.step == 5);
    CHECK(!at.joined);
    train_sites_until(model, 8);
    resumed[static_cast<std::size_t>(model.site())].add(model);
  });
  check_equal(resumed, ended);

  // With other numbers of ranks: as models that were set alike.
  by_site expected(2);
  by_site other(2);
  on_sites({1, 2}, [&](auto& model) {
    const auto site = static_cast<std::size_t>(model.site());
    saved[site].put(model);
    train_sites_until(model, 8);
    expected[site].add(model);
  });
  on_sites({1, 2}, [&](auto& model) {
    mfsdp::load(model, root.path());
    train_sites_until(model, 8);
    other[static_cast<std::size_t>(model.site())].add(model);
  });
  check_equal(other, expected);
}

TEST_CASE("fewer sites go on without the last, more with what the first has as one that joins") {
  const temporary_folder root;
  by_site saved(3);
  by_site ended(3);
  save_sites(root.path(), {1, 1, 1}, saved, ended);
  const auto go_on = [&](bool from_checkpoint, int sites, int of_own) {
    by_site ends(static_cast<std::size_t>(sites));
    on_sites(std::vector<int>(static_cast<std::size_t>(sites), 1), [&](auto& model) {
      const auto site = static_cast<std::size_t>(model.site());
      const bool joins = model.site() >= of_own;
      if (from_checkpoint) {
        CHECK(mfsdp::load(model, root.path()).joined == joins);
      } else {
        saved[joins ? 0 : site].put(model, joins);
      }
      train_sites_until(model, 8);
      ends[site].add(model);
    });
    return ends;
  };
  check_equal(go_on(true, 2, 2), go_on(false, 2, 2));
  std::filesystem::remove_all(root / "site-2");
  check_equal(go_on(true, 3, 2), go_on(false, 3, 2));
  check_equal(go_on(true, 1, 1), go_on(false, 1, 1));
}

TEST_CASE("the latest step that all sites have; what is newer is put aside") {
  const temporary_folder root;
  by_site saved(2);
  by_site ended(2);
  save_sites(root.path(), {1, 1}, saved, ended);
  std::filesystem::remove_all(root / "site-1/step-000000000005");
  on_sites({1, 1}, [&](auto& model) {
    CHECK(mfsdp::load(model, root.path()).step == 4);
    train_sites_until(model, 8);
    by_site resumed(2);
    const auto site = static_cast<std::size_t>(model.site());
    resumed[site].add(model);
    CHECK(resumed[site] == ended[site]);
  });
  CHECK(std::filesystem::exists(root / "site-0/.step-000000000005.abandoned"));
  CHECK(mfsdp::latest_checkpoint(root.path()) == 4);
  on_sites({1, 1}, [&](auto& model) {
    mfsdp::load(model, root.path());
    train_sites_until(model, 5);
    mfsdp::save(model, root.path());
    const std::string text =
        refusal_of([&] { return mfsdp::save(model, root.path(), {.keep_last = 1}); });
    CHECK(text.find("keep at least 2") != std::string::npos);
  });
  CHECK(!std::filesystem::exists(root / "site-0/.step-000000000005.abandoned"));

  for (const char* const step : {"/step-000000000004", "/step-000000000005"}) {
    std::filesystem::remove_all(root / "site-0" + step);
  }
  std::filesystem::create_directories(root / "site-0/step-000000000003");
  on_sites({1, 1}, [&](auto& model) {
    const std::string text = refusal_of([&] { return mfsdp::load(model, root.path()); });
    CHECK(text.find("none of the same step") != std::string::npos);
  });
}

TEST_CASE("a site that cannot load stops the others, too") {
  const temporary_folder root;
  by_site saved(2);
  by_site ended(2);
  save_sites(root.path(), {1, 2}, saved, ended);
  std::filesystem::remove(root / "site-1/step-000000000005/manifest.json");
  on_sites({1, 2}, [&](auto& model) {
    const std::string text = refusal_of([&] { return mfsdp::load(model, root.path()); });
    CHECK(
        text.find(model.site() == 1 ? "manifest.json'" : "site 1 could not load its checkpoint") !=
        std::string::npos);
  });
}

}  // namespace sites_test
