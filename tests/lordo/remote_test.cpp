// Sites in memory that the host cannot touch train as those in that of the host, bit for bit.
#include <doctest/doctest.h>

#include "conformance/projector.hpp"
#include "lordo/lordo.hpp"
#include "support/every_rule.hpp"
#include "support/remote_training.hpp"

namespace remote_sites_test {

namespace {

constexpr lordo::sync_periods every_second{.parameters = 2};

// One rule of each kind.
const mfsdp_test::every_rule rules{
    lordo::local_steps{.inner = mfsdp::adamw{}, .periods = every_second},
    lordo::low_rank_adam<lordo::svd>{.rank = 4,
                                     .omega = 0.6,
                                     .clip = {.rule = lordo::clip_rule::norm},
                                     .feedback = lordo::error_feedback::window,
                                     .weight_decay = 0.1,
                                     .periods = every_second},
    lordo::low_rank_muon<lordo::random_projection>{
        .rank = 4, .variant = lordo::basis_source::local, .periods = every_second},
    lordo::local_steps{.inner = mfsdp::muon{},
                       .periods = every_second,
                       .outer = lordo::outer_nesterov{},
                       .exchange = lordo::exchange_low_rank{.rank = 4}},
    lordo::averaged{.inner = mfsdp::muon{}, .exchange = lordo::exchange_low_rank{.rank = 4}},
    lordo::ldadam<>{.rank = 4},
    lordo::galore<>{.rank = 4, .refresh = 2}};

mfsdp::model_spec two_sides() {
  mfsdp::model_spec spec;
  spec.unit("block").vector("norm", 17).matrix("wide", 12, 23).matrix("tall", 21, 10);
  spec.unit("head").vector("norm", 9).matrix("narrow", 3, 19);
  return spec;
}

}  // namespace

TEST_CASE("every rule that meets other sites trains as on eigen_backend") {
  for (std::size_t which = 0; which < decltype(rules)::count; ++which) {
    CAPTURE(which);
    const auto model_on = [&](auto comm, auto memory) {
      const int ranks_of_first = comm.size() / 2;
      return mfsdp::sharded_model{
          two_sides(),
          mfsdp::make_sites(comm, {ranks_of_first, comm.size() - ranks_of_first}),
          mfsdp::owner_placement{},
          rules.choose(which),
          mfsdp::model_options{},
          memory};
    };
    for (const int ranks : {2, 3}) {
      CAPTURE(ranks);
      const mfsdp_test::host_training how{.steps = 5, .micro_batches = 1};
      CHECK(mfsdp_test::trained_in<mfsdp_test::remote_backend<>>(ranks, how, model_on) ==
            mfsdp_test::trained_in<mfsdp::eigen_backend>(ranks, how, model_on));
    }
  }
}

TEST_CASE("memory out of the host's reach is enough for every projector") {
  mfsdp_test::remote_backend<> backend;
  const auto check = [&](const auto& projector) {
    mfsdp_test::projector_conformance_on<float>(projector, backend, {12, 30}, 5);
    mfsdp_test::projector_conformance_on<float>(projector, backend, {30, 12}, 5);
  };
  check(lordo::svd{});
  check(lordo::power_step{});
  check(lordo::random_projection{});
}

}  // namespace remote_sites_test
