// Sites that train apart and meet now and then: the bits of a plain loop, whatever the number of
// ranks of each site, and what moves between them.
#include <doctest/doctest.h>

#include <atomic>
#include <string>

#include "support/local_momentum.hpp"
#include "support/mean_gradient.hpp"
#include "support/site_training.hpp"

namespace sites_test {

using namespace mfsdp;
using mfsdp_test::local_momentum, mfsdp_test::mean_gradient;

namespace {

static_assert(PeriodicOptimizer<local_momentum<true>> && PeriodicOptimizer<mean_gradient<true>>);
static_assert(!PeriodicOptimizer<adamw>);

const mixed local_rules{local_momentum<true>{}, local_momentum<false>{}};
const mixed mean_rules{mean_gradient<true>{}, local_momentum<false>{.period = 1}};

// Matrices by a list of owners, other tensors in blocks of 1024 elements, dealt in turn.
struct dealt_placement {
  int first = 0;

  static constexpr std::string_view name = "dealt";
  static constexpr bool whole_matrices = true;
  static constexpr bool replicated = false;

  [[nodiscard]] std::vector<std::vector<segment>> place(std::span<const placement_item> items,
                                                        int ranks) const {
    std::vector<std::vector<segment>> all;
    int next = first;
    for (const placement_item& item : items) {
      auto& segments = all.emplace_back();
      const index_t elements = item.elements();
      const index_t block = item.divisible ? index_t{block_elements} : elements;
      for (index_t at = 0; at < elements; at += block, ++next) {
        const index_t count = std::min(block, elements - at);
        if (!segments.empty() && ranks == 1) {
          segments.back().count += count;
        } else {
          segments.push_back({next % ranks, at, count});
        }
      }
    }
    return all;
  }
};

// Sites of one, of equal and of unequal numbers of ranks.
const std::vector<std::vector<int>> worlds{{1}, {1, 1}, {2, 2}, {3, 2}, {1, 3, 2}, {5, 1}};

// A single rank does the work of three.
toy::site_settings settings_of(const std::vector<int>& ranks) {
  toy::site_settings how{.ranks = ranks, .parts = ranks};
  std::ranges::replace(how.parts, 1, 3);
  return how;
}

}  // namespace

TEST_CASE("sites of any number of ranks equal a plain loop over sites bit for bit") {
  const auto check = [](const auto& rules) {
    for (const auto& ranks : worlds) {
      CAPTURE(ranks.size());
      CAPTURE(ranks.front());
      const auto how = settings_of(ranks);
      const auto expected = toy::run_plain_sites(toy::odd_spec(), rules, how);
      CHECK(toy::run_sites(toy::odd_spec(), owner_placement{}, rules, how) == expected);
      auto single = how;
      std::ranges::fill(single.ranks, 1);
      CHECK(toy::run_sites(toy::odd_spec(), owner_placement{}, rules, single) == expected);
      if (std::ranges::count(ranks, ranks.front()) == std::ssize(ranks)) {
        CHECK(toy::run_sites(toy::odd_spec(), replicated_placement{}, rules, how) == expected);
      }
    }
  };
  check(local_rules);
  check(mean_rules);
}

TEST_CASE("what sites share may be cut into another number of pieces on each of them") {
  for (const std::vector<int>& ranks : {std::vector{1, 2}, {1, 3}, {3, 2, 1}}) {
    const auto how = settings_of(ranks);
    CHECK(toy::run_sites(toy::odd_spec(), dealt_placement{}, local_rules, how) ==
          toy::run_plain_sites(toy::odd_spec(), local_rules, how));
  }
}

TEST_CASE("sites differ between two meetings and are equal after one") {
  toy::site_settings how = settings_of({2, 3});
  how.steps = 3;
  auto ends = toy::run_sites(toy::odd_spec(), owner_placement{}, local_rules, how);
  CHECK(ends[0] != ends[1]);
  how.steps = 4;
  ends = toy::run_sites(toy::odd_spec(), owner_placement{}, local_rules, how);
  CHECK(ends[0] == ends[1]);
}

TEST_CASE("what sites exchange is counted apart, and is no more than they must") {
  for (const auto& ranks : worlds) {
    CAPTURE(ranks.size());
    CAPTURE(ranks.front());
    std::atomic<std::int64_t> sent = 0;
    std::atomic<std::int64_t> received = 0;
    const toy::site_settings how = settings_of(ranks);
    toy::run_sites(toy::odd_spec(), owner_placement{}, local_rules, how, [&](auto& model) {
      CHECK(model.moved(phase::step) == traffic{});
      CHECK(model.sites() == std::ssize(ranks));
      sent += model.moved(phase::sync).sent;
      received += model.moved(phase::sync).received;
      CHECK((model.memory_in_use()[memory_kind::exchange_buffers] > 0) == (ranks.size() > 1));
    });
    index_t trainable = 0;
    const model_spec spec = toy::odd_spec();
    for (const tensor_spec& t : spec.tensors()) {
      trainable += t.options.frozen ? 0 : t.elements();
    }
    // Steps 2 and 4 exchange parameters, step 4 momentum as well; every site with each other one.
    const auto pairs = static_cast<index_t>(ranks.size() * (ranks.size() - 1));
    const index_t payload = 4 * 3 * trainable * pairs;
    CHECK(sent == received);
    CHECK(sent >= payload);
    CHECK(sent <= payload + payload / 50);
  }
}

TEST_CASE("sites that do not fit together are refused") {
  const auto message = [](const std::vector<int>& ranks, auto build) {
    int all = 0;
    for (const int r : ranks) all += r;
    std::string what;
    try {
      thread_world{all}.run([&](auto comm) { build(make_sites(comm, ranks)); });
    } catch (const error& e) {
      what = e.what();
    }
    return what;
  };
  CHECK(message({1, 1}, [](auto mesh) {
          model_spec spec;
          spec.unit("unit").matrix("weight", 4 + mesh.site.rank(), 4);
          sharded_model model{spec, mesh, owner_placement{}, local_momentum<true>{}};
        }).find(": they differ in the model") != std::string::npos);
  CHECK(message({1, 1}, [](auto mesh) {
          model_spec spec;
          spec.unit("unit").matrix("weight", 4, 4);
          const local_momentum<true> rule{.period = 2 + mesh.site.rank()};
          sharded_model model{spec, mesh, owner_placement{}, rule};
        }).find("they differ in the optimizers") != std::string::npos);
  CHECK(message({2, 1}, [](auto mesh) {
          model_spec spec;
          spec.unit("unit").matrix("weight", 4, 4);
          sharded_model model{spec, mesh, replicated_placement{}, local_momentum<true>{}};
        }).find("equally many ranks") != std::string::npos);
  // One rank would hold the same with both placements.
  CHECK(message({2, 2}, [](auto mesh) {
          model_spec spec;
          spec.unit("unit").matrix("weight", 4, 4).matrix("other", 4, 4);
          const dealt_placement placement{.first = mesh.site.rank() / 2};
          sharded_model model{spec, mesh, placement, local_momentum<true>{}};
        }).find("they differ in the placement") != std::string::npos);
  // The other sign and the other frozen values have equal sums of squares.
  for (const char* spoiled : {"unit.weight", "unit.frozen"}) {
    const std::string what = message({1, 2}, [&](auto mesh) {
      model_spec spec;
      spec.unit("unit").matrix("weight", 4, 4).elementwise("frozen", {3000}, {.frozen = true});
      sharded_model model{spec, mesh, owner_placement{}, local_momentum<true>{}};
      model.initialize([&](const tensor_spec& tensor, std::span<float> values, index_t) {
        std::ranges::fill(values, 1.0f);
        if (tensor.name == spoiled && model.site() == 1) values.back() = -1.0f;
      });
      toy::reduce_zeros(model);
      model.step();
    });
    INFO(what);
    CHECK(what.find(fmt::format("'{}' starts with other values", spoiled)) != std::string::npos);
  }
  // A site axis that joins one rank of each site.
  std::string what;
  try {
    thread_world{4}.run([&](auto comm) {
      model_spec spec;
      spec.unit("unit").matrix("weight", 4, 4);
      const mesh axes{comm.split(comm.rank() / 2), self{}, comm.split(comm.rank() % 2)};
      sharded_model model{spec, axes, owner_placement{}, local_momentum<true>{}};
    });
  } catch (const error& e) {
    what = e.what();
  }
  CHECK(what.find("see make_sites") != std::string::npos);
  CHECK(message({2, 1}, [](auto mesh) {
          (void)make_sites(mesh.site, {1, 1});
        }).find("2 ranks together, the world has 3") != std::string::npos);
}

}  // namespace sites_test
