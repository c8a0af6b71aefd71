// Checkpoints of sites, and of the rules that know other sites, in the middle of their periods.
#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <set>

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
  for (int step = static_cast<int>(model.persistence().counts().steps); step < steps; ++step) {
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
}

TEST_CASE(
    "one site goes on from the folder of one of several, and several from one that is named") {
  const temporary_folder root;
  by_site saved(2);
  by_site ended(2);
  save_sites(root.path(), {1, 1}, saved, ended);
  on_sites({1}, [&](auto& model) {
    for (const bool look : {true, false}) {
      const std::string text = refusal_of([&] {
        if (!look) return mfsdp::load(model, root.path()).step;
        return mfsdp::latest_checkpoint(model, root.path()).value_or(0);
      });
      CHECK(text.find("of a run of several sites, and this one has one: name the folder of one of "
                      "them, '" +
                      root / "site-") != std::string::npos);
    }
    CHECK(mfsdp::load(model, root / "site-0").step == 5);
    by_site resumed(1);
    resumed[0].add(model);
    CHECK(resumed[0] == saved[0]);
  });

  const temporary_folder alone;
  on_sites({1}, [&](auto& model) {
    mfsdp::load(model, root / "site-0");
    mfsdp::save(model, alone.path());
  });
  const auto load_two = [&] {
    std::mutex guard;
    std::set<std::string> texts;
    on_sites({1, 1}, [&](auto& model) {
      const std::string text = refusal_of([&] {
        const mfsdp::loaded at = mfsdp::load(model, alone.path());
        CHECK(at.joined == (model.site() == 1));
        return at.step;
      });
      const std::scoped_lock lock(guard);
      texts.insert(text);
    });
    CHECK(texts.size() == 1);
    return *texts.begin();
  };
  CHECK(load_two().find("move them to '" + alone / "site-0'") != std::string::npos);
  std::filesystem::create_directory(alone / "site-0");
  std::filesystem::rename(alone / "step-000000000005", alone / "site-0/step-000000000005");
  CHECK(load_two().empty());
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
  const std::string aside = root / "site-0/.step-000000000005.abandoned";
  CHECK(std::filesystem::exists(aside));
  on_sites({1, 1}, [&](auto& model) {
    CHECK(mfsdp::latest_checkpoint(model, root.path()) == 4);
    mfsdp::load(model, root.path());
    train_sites_until(model, 5);
    mfsdp::save(model, root.path());
    const std::string text =
        refusal_of([&] { return mfsdp::save(model, root.path(), {.keep_last = 1}); });
    CHECK(text.find("keep at least 2") != std::string::npos);
  });
  CHECK(std::filesystem::exists(aside));
}

TEST_CASE("sites that are further apart do not go back unless told to") {
  const temporary_folder root;
  on_sites({1, 2}, [&](auto& model) {
    model.initialize(toy::initialize);
    for (int step = 1; step <= 4; ++step) {
      train_sites_until(model, step);
      mfsdp::save(model, root.path(), {.keep_last = 0});
    }
  });
  for (const char* const step : {"/step-000000000003", "/step-000000000004"}) {
    std::filesystem::remove_all(root / "site-1" + step);
  }
  on_sites({1, 2}, [&](auto& model) {
    const std::string text = refusal_of([&] { return mfsdp::load(model, root.path()); });
    CHECK(text.find("site 0: 1, 2, 3, 4; site 1: 1, 2;") != std::string::npos);
    CHECK(text.find("(load_options.step = 2), or move the folder of the site that is behind away, "
                    "so that it joins") != std::string::npos);
    CHECK(mfsdp::latest_checkpoint(model, root.path()) == 4);
    const mfsdp::loaded at = mfsdp::load(model, root.path(), {.step = 2});
    CHECK(at.step == 2);
    CHECK(at.abandoned.size() == (model.site() == 0 ? 2 : 0));
  });
  std::filesystem::remove_all(root / "site-0");
  std::filesystem::create_directories(root / "site-0/step-000000000003");
  checkpoint_files::put_bytes(root / "site-0/step-000000000003/manifest.json", "{}");
  on_sites({1, 2}, [&](auto& model) {
    const std::string text = refusal_of([&] { return mfsdp::load(model, root.path()); });
    CHECK(text.find("They have none in common: move") != std::string::npos);
  });
}

TEST_CASE("a site that cannot put aside stops all before any has values") {
  const temporary_folder root;
  by_site saved(2);
  by_site ended(2);
  save_sites(root.path(), {1, 1}, saved, ended);
  std::filesystem::remove_all(root / "site-1/step-000000000005");
  std::filesystem::permissions(root.path(), std::filesystem::perms(0755));
  std::filesystem::permissions(root / "site-0", std::filesystem::perms(0555));
  on_sites({1, 1}, [&](auto& model) {
    const checkpoint_files::without_privileges meanwhile;
    const std::string text = refusal_of([&] { return mfsdp::load(model, root.path()); });
    CHECK(text.find("site 0: cannot create '" + root / "site-0/.lock") != std::string::npos);
    CHECK_THROWS_AS((void)model.acquire(0, mfsdp::pass::forward), mfsdp::usage_error);
  });
  std::filesystem::permissions(root / "site-0", std::filesystem::perms(0755));
}

TEST_CASE("a site that cannot load stops the others, too") {
  const temporary_folder root;
  by_site saved(2);
  by_site ended(2);
  save_sites(root.path(), {1, 2}, saved, ended);
  std::filesystem::resize_file(root / "site-1/step-000000000005/manifest.json", 10);
  on_sites({1, 2}, [&](auto& model) {
    const std::string text = refusal_of([&] { return mfsdp::load(model, root.path()); });
    CHECK(text.find("site 1: " + root / "site-1/step-000000000005/manifest.json") !=
          std::string::npos);
    CHECK(text.find("away to go on from step 4") != std::string::npos);
  });
}

TEST_CASE("a model whose step an exception ended half way refuses to load, at once") {
  const temporary_folder root;
  on_sites({1, 1}, [&](auto& model) {
    model.initialize(toy::initialize);
    mfsdp::save(model, root.path());
    model.initialize([&](const mfsdp::tensor_spec&, std::span<float> values, mfsdp::index_t) {
      for (float& value : values) value = static_cast<float>(model.site());
    });
    CHECK_THROWS(train_sites_until(model, 1));  // sites begin with equal values
    std::string text;
    try {
      mfsdp::load(model, root.path());
    } catch (const mfsdp::usage_error& refused) {
      text = refused.what();
    }
    CHECK(text.find("half way") != std::string::npos);
  });
}

}  // namespace sites_test
