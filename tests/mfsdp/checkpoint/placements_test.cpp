// Checkpoints do not know placements: what owners saved loads where matrices are cut by rows, with
// states that every rank holds, or where everything is everywhere, and the other way.
#include <doctest/doctest.h>

#include <atomic>

#include "mfsdp/checkpoint.hpp"
#include "support/checkpoint_files.hpp"
#include "support/checkpoint_models.hpp"
#include "support/checkpoint_values.hpp"

namespace placements_test {

namespace {

constexpr auto as_it_is = [](auto rule) { return rule; };
constexpr auto with_gathers = []<class O>(O rule) {
  if constexpr (O::whole_matrix) {
    return mfsdp::gathered{rule};
  } else {
    return rule;
  }
};

// Calls body(model) on every rank.
template <class Placement, class Body>
void on_placement(int ranks, Placement placement, Body&& body) {
  mfsdp::thread_world{ranks}.run([&](auto comm) {
    const auto spec = checkpoint_models::spec_of({"muon", "soap", "sgd"});
    const auto train = [&](auto cut) {
      mfsdp::sharded_model model{spec, comm, placement, checkpoint_models::few_rules(cut)};
      body(model);
    };
    if constexpr (Placement::whole_matrices) {
      train(as_it_is);
    } else {
      train(with_gathers);
    }
  });
}

template <class From, class... To>
void check_placements(From from, To... to) {
  constexpr int saved_by = 3;
  const checkpoint_files::temporary_folder root;
  on_placement(saved_by, from, [&](auto& model) {
    checkpoint_values::set_values(model, 4);
    mfsdp::save(model, root.path());
  });
  const auto check = [&](auto where, int ranks) {
    CAPTURE(where.name);
    CAPTURE(ranks);
    std::atomic<mfsdp::index_t> wrong = 0;
    on_placement(ranks, where, [&](auto& model) {
      const mfsdp::loaded at = mfsdp::load(model, root.path());
      wrong += checkpoint_values::count_wrong(model, 4);
      wrong += at.changed_options.empty() ? 0 : 1;
      if (where.replicated) {  // every rank reads everything, and no more than that
        std::int64_t held = 0;
        model.persistence().for_each_held([&](auto, auto values) { held += std::ssize(values); });
        wrong += at.bytes_read == held * 4 ? 0 : 1;
      }
    });
    CHECK(wrong == 0);
  };
  for (const int ranks : {1, 2, 5}) (check(to, ranks), ...);
}

}  // namespace

TEST_CASE("what owners save loads by rows and as full copies") {
  check_placements(mfsdp::owner_placement{}, mfsdp::row_placement{}, mfsdp::replicated_placement{});
}

TEST_CASE("what rows save loads on owners and as full copies") {
  check_placements(mfsdp::row_placement{}, mfsdp::owner_placement{}, mfsdp::row_placement{},
                   mfsdp::replicated_placement{});
}

TEST_CASE("what full copies save loads on owners and by rows") {
  check_placements(mfsdp::replicated_placement{}, mfsdp::owner_placement{}, mfsdp::row_placement{},
                   mfsdp::replicated_placement{});
}

}  // namespace placements_test
