// The methods that are compared, by name.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "rules.hpp"
#include "run.hpp"

namespace train_sites {

// Sums over the matrices of a model and a rank r, in numbers.
struct sizes {
  double matrices = 0;  // p q
  double rest = 0;      // what is no matrix
  double longer = 0;    // r max(p, q)
  double shorter = 0;   // r min(p, q)

  [[nodiscard]] double all() const { return matrices + rest; }
};

struct method {
  std::string name;
  std::string title;
  double rate = 0;            // of the matrices: the best of the grid in docs/lordo_study.md
  std::vector<double> rates;  // that grid
  // Chooses among rules that have the rates, ranks and periods of the settings.
  std::function<void(const settings&, rules&)> choose;
  // Numbers that a site sends to each other one in a run, in closed form.
  std::function<double(const settings&, const sizes&)> formula;
  int sites = 4;  // or two, of two owners each
};

inline constexpr int galore_refresh = 100;

inline int factored_period(const settings& how) {
  return how.period / exchanges_a_period;
}

inline double meetings(const settings& how) {
  return static_cast<double>(how.steps) / how.period;
}

inline rules rules_of(const settings& how) {
  const mfsdp::adamw adamw{.learning_rate = how.rate, .beta2 = 0.99, .weight_decay = 0};
  const mfsdp::adamw rest{.learning_rate = how.elementwise_rate, .beta2 = 0.99, .weight_decay = 0};
  const mfsdp::muon muon{.learning_rate = how.rate};
  const lordo::sync_periods all{.parameters = how.period};
  const lordo::sync_periods parameters{
      .parameters = how.period, .first_moment = 0, .second_moment = 0};
  const lordo::outer_nesterov outer{.learning_rate = 1, .momentum = 0.5};
  rules chosen{
      .ddp_adam = {.inner = adamw},
      .ldadam = {.rank = how.rank, .learning_rate = how.rate},
      .galore = {.rank = how.rank,
                 .learning_rate = how.rate,
                 .scale = 1,
                 .refresh = galore_refresh},
      .local_adam = {.inner = adamw, .periods = all},
      .diloco = {.inner = adamw, .periods = parameters, .outer = outer},
      .low_rank_svd = {.rank = how.rank, .learning_rate = how.rate, .periods = all},
      .low_rank = {.rank = how.rank, .learning_rate = how.rate, .periods = all},
      .low_rank_random = {.rank = how.rank,
                          .learning_rate = how.rate,
                          .first = lordo::first_basis::random,
                          .periods = all},
      .low_rank_muon = {.rank = how.rank, .learning_rate = how.rate, .periods = all},
      .ddp_muon = {.inner = muon},
      .local_muon = {.inner = muon, .periods = all},
      .muloco = {.inner = muon, .periods = parameters, .outer = outer},
      .factored_muon = {.inner = muon, .periods = parameters, .exchange = {.rank = how.rank}},
      .ddp_rest = {.inner = rest},
      .local_rest = {.inner = rest, .periods = all},
      .diloco_rest = {.inner = rest, .periods = parameters, .outer = outer}};
  chosen.factored_muon.periods.parameters = factored_period(how);
  return chosen;
}

inline std::vector<method> all_methods() {
  using member = rules::member;
  const auto pair = [](member matrices, member rest = member::local_rest) {
    return [=](const settings&, rules& all) {
      all.for_matrices = matrices;
      all.for_rest = rest;
    };
  };
  const auto with_omega = [](double omega) {
    return [omega](const settings&, rules& all) { all.low_rank.omega = omega; };
  };
  // What goes over the wire: all each step; with the first gradient, parameters and moments.
  const auto each_step = [](const settings& how, const sizes& s) { return how.steps * s.all(); };
  const auto global = [](const settings& how, const sizes& s) {
    return s.matrices + meetings(how) * (s.matrices + 2 * s.longer + 3 * s.rest);
  };
  const auto parameters = [](const settings& how, const sizes& s) {
    return meetings(how) * (s.matrices + 3 * s.rest);
  };
  const std::vector<double> for_adam{1.5e-3, 3e-3, 6e-3, 12e-3};
  const std::vector<double> for_still{1.5e-3, 3e-3, 6e-3, 12e-3, 25e-3};
  const std::vector<double> for_muon{2.5e-3, 5e-3, 0.01, 0.02, 0.04, 0.08};
  return {
      {"ddp_adam", "DDP AdamW", 3e-3, for_adam, pair(member::ddp_adam, member::ddp_rest),
       each_step},
      {"lowrank_ddp", "low-rank DDP (LDAdam, error feedback)", 3e-3, for_adam,
       pair(member::ldadam, member::ddp_rest), each_step},
      {"galore_ddp", "low-rank DDP (GaLore)", 3e-3, for_still,
       pair(member::galore, member::ddp_rest),
       [](const settings& how, const sizes& s) {
         const double refreshes = (how.steps + galore_refresh - 1) / galore_refresh;
         return how.steps * s.rest + refreshes * s.matrices + (how.steps - refreshes) * s.longer;
       }},
      {"local_adam", "local AdamW", 3e-3, for_adam, pair(member::local_adam),
       [](const settings& how, const sizes& s) { return 3 * meetings(how) * s.all(); }},
      {"diloco", "DiLoCo", 3e-3, for_adam, pair(member::diloco, member::diloco_rest),
       [](const settings& how, const sizes& s) { return meetings(how) * s.all(); }},
      {"lordo_local", "LoRDO local, omega 0.5, error feedback", 3e-3, for_adam,
       [](const settings&, rules& all) {
         all.for_matrices = member::low_rank_svd;
         all.low_rank_svd.variant = lordo::basis_source::local;
       },
       parameters},
      {"lordo_global_no_qhm", "LoRDO global, omega 1 (no full-rank term)", 3e-3, for_still,
       with_omega(1), global},
      {"lordo_global", "LoRDO global, omega 0.35", 3e-3, for_adam, with_omega(0.35), global},
      {"lordo_residual", "LoRDO global, residual as full-rank term", 6e-3, for_adam,
       [](const settings&, rules& all) {
         all.low_rank.full_term = lordo::full_rank_term::residual;
       },
       global},
      {"lordo_random", "LoRDO, random basis, omega 0.8", 3e-3, for_still,
       [](const settings&, rules& all) {
         all.for_matrices = member::low_rank_random;
         all.low_rank_random.omega = 0.8;
       },
       [](const settings& how, const sizes& s) {
         return meetings(how) * (s.matrices + 2 * s.longer + 3 * s.rest);
       }},
      {"hybrid", "LoRDO global, 2 sites x 2 owners", 3e-3, for_adam, with_omega(0.35), global, 2},
      {"ddp_muon", "DDP Muon", 0.02, for_muon, pair(member::ddp_muon, member::ddp_rest), each_step},
      {"local_muon", "local Muon, momentum averaged", 0.01, for_muon, pair(member::local_muon),
       [](const settings& how, const sizes& s) {
         return meetings(how) * (2 * s.matrices + 3 * s.rest);
       }},
      {"local_muon_parameters", "local Muon, parameters only", 0.01, for_muon,
       [](const settings&, rules& all) {
         all.for_matrices = member::local_muon;
         all.local_muon.periods.first_moment = 0;
       },
       parameters},
      {"local_muon_lowrank", "local Muon, low-rank exchange, 4 a period", 5e-3, for_muon,
       pair(member::factored_muon),
       [](const settings& how, const sizes& s) {
         return how.steps / factored_period(how) * (s.longer + s.shorter) +
                3 * meetings(how) * s.rest;
       }},
      {"muloco", "MuLoCo (local Muon, outer Nesterov)", 0.01, for_muon, pair(member::muloco),
       parameters},
      {"lordo_muon", "LoRDO with Muon in the subspace", 0.04, for_muon, pair(member::low_rank_muon),
       [](const settings& how, const sizes& s) {
         return s.matrices + meetings(how) * (s.matrices + s.longer + 3 * s.rest);
       }},
  };
}

inline outcome train(const method& m, settings how, const text& data) {
  rules chosen = rules_of(how);
  m.choose(how, chosen);
  return run(how, data, chosen);
}

}  // namespace train_sites
