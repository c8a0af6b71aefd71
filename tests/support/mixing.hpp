// The cells of {owner, rows, replicated} x {rules} on any engine: one site against a plain loop.
#pragma once

#include <doctest/doctest.h>

#include <string>

#include "lordo/lordo.hpp"
#include "support/every_rule.hpp"
#include "support/site_training.hpp"

namespace mfsdp_test {

// Matrices of both sides, one with a side within the rank.
inline mfsdp::model_spec mixing_spec() {
  mfsdp::model_spec spec;
  spec.unit("embedding").elementwise("tokens", {31, 17}).vector("scale", 1);
  spec.unit("block")
      .vector("norm", 17)
      .matrix("qkv", 3 * 16, 17, {.row_groups = 3})
      .matrix("up", 41, 16)
      .matrix("narrow", 3, 19);
  spec.unit("head").vector("norm", 17).tied("output", "embedding.tokens");
  return spec;
}

inline constexpr lordo::sync_periods mixing_periods{.parameters = 2};

template <class P>
lordo::low_rank_adam<P> mixing_rule() {
  return {.rank = 4, .learning_rate = 3e-3, .omega = 0.6, .periods = mixing_periods};
}

// Legal where matrices stay whole.
inline const every_rule whole_rules{
    mfsdp::adamw{},
    mfsdp::muon{},
    mfsdp::shampoo{.frequency = 2},
    mfsdp::soap{.frequency = 2},
    mfsdp::adamw{.learning_rate = 2e-3},
    mixing_rule<lordo::svd>(),
    mixing_rule<lordo::power_step>(),
    mixing_rule<lordo::random_projection>(),
    lordo::low_rank_muon<>{.rank = 4, .periods = mixing_periods},
    lordo::local_steps{.inner = mfsdp::muon{}, .periods = mixing_periods},
    lordo::ldadam<>{.rank = 4},
    lordo::galore<>{.rank = 4, .refresh = 2}};

// Legal where they are cut; the reference is that of the rules without `gathered`.
inline const every_rule cut_rules{
    mfsdp::adamw{}, mfsdp::gathered{mfsdp::muon{}}, mfsdp::gathered{mfsdp::shampoo{.frequency = 2}},
    mfsdp::gathered{mfsdp::soap{.frequency = 2}}, mfsdp::adamw{.learning_rate = 2e-3}};

// Trains one site on all ranks of a collective, and expects the parameters of a plain loop.
template <class Comm, class Placement, class Rules, class Reference>
void check_cells(const Comm& comm, Placement placement, const Rules& rules,
                 const Reference& reference) {
  for (std::size_t which = 0; which < Rules::count; ++which) {
    const std::string name(Rules::names[which]);
    CAPTURE(name);
    CAPTURE(Placement::name);
    const toy::site_settings how{.ranks = {comm.size()}, .parts = {comm.size()}, .steps = 4};
    const auto expected = toy::run_plain_sites(mixing_spec(), reference.choose(which), how);
    mfsdp::sharded_model model{mixing_spec(), comm, placement, rules.choose(which)};
    model.initialize(toy::initialize);
    toy::train_site(model, how);
    CHECK(toy::read_parameters(model) == expected[0]);
    CHECK((model.moved(mfsdp::phase::step) == mfsdp::traffic{} || !Placement::whole_matrices));
    CHECK(model.moved(mfsdp::phase::sync) == mfsdp::traffic{});
  }
}

template <class Comm>
void check_every_cell(const Comm& comm) {
  check_cells(comm, mfsdp::owner_placement{}, whole_rules, whole_rules);
  check_cells(comm, mfsdp::replicated_placement{}, whole_rules, whole_rules);
  check_cells(comm, mfsdp::row_placement{}, cut_rules, whole_rules);
}

// Rules that know other sites.
inline const every_rule site_rules{
    lordo::local_steps{.inner = mfsdp::adamw{}, .periods = mixing_periods},
    mixing_rule<lordo::svd>(),
    mixing_rule<lordo::power_step>(),
    mixing_rule<lordo::random_projection>(),
    lordo::low_rank_adam<lordo::svd>{
        .rank = 4, .variant = lordo::basis_source::local, .periods = mixing_periods},
    lordo::low_rank_muon<>{.rank = 4, .weight_decay = 0.1, .periods = mixing_periods},
    lordo::local_steps{.inner = mfsdp::muon{}, .periods = {.parameters = 2, .stagger = 1}},
    lordo::local_steps{.inner = mfsdp::muon{},
                       .periods = {.parameters = 2, .first_moment = 0},
                       .outer = lordo::outer_nesterov{},
                       .exchange = lordo::exchange_low_rank{.rank = 4}},
    lordo::averaged{.inner = mfsdp::muon{}},
    lordo::ldadam<>{.rank = 4},
    lordo::galore<>{.rank = 4, .refresh = 2}};

// Sites of these numbers of ranks on a collective: the bits of a plain loop over sites.
template <class Comm>
void check_sites(const Comm& comm, const std::vector<int>& ranks) {
  for (std::size_t which = 0; which < site_rules.count; ++which) {
    const std::string name(site_rules.names[which]);
    CAPTURE(name);
    const auto rules = site_rules.choose(which);
    const toy::site_settings how{.ranks = ranks, .parts = ranks, .steps = 4};
    const auto expected = toy::run_plain_sites(mixing_spec(), rules, how);
    mfsdp::sharded_model model{mixing_spec(), mfsdp::make_sites(comm, ranks),
                               mfsdp::owner_placement{}, rules};
    model.initialize(toy::initialize);
    toy::train_site(model, how);
    const auto site = static_cast<std::size_t>(model.site());
    CHECK(toy::read_parameters(model) == expected[site]);
    CHECK(model.moved(mfsdp::phase::step) == mfsdp::traffic{});
    CHECK(((model.moved(mfsdp::phase::sync).sent > 0) || ranks.size() == 1 ||
           model.plan().ranks > 1));
  }
}

}  // namespace mfsdp_test
