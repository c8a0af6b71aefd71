// Training on several sites: through the runtime, and by a plain loop over sites that uses nothing
// of it. Every rank of a site has a part of the site's gradient, which is their sum in rank order.
#pragma once

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "support/toy_training.hpp"

namespace toy {

struct site_settings {
  std::vector<int> ranks{1, 1};  // of each site, where the runtime trains
  std::vector<int> parts{2, 2};  // of each site's gradient: one for each rank, or all for the only
  int replicas = 1;              // of each shard group of a site, the parts in their order
  int steps = 5;
  double max_norm = 0;  // 0: no clipping; not for the plain loop
  mfsdp::model_options options{};
  // What a site's gradient of this step is multiplied by, from this element of each tensor on.
  std::size_t scaled_from = 0;
  double (*scale)(int site, int step) = [](int, int) { return 1.0; };
  // Whether a site is there in a step, for the plain loop: if not, it counts in no mean. One that
  // comes (back) has taken everything from the lowest site that was there in the step before.
  std::function<bool(int site, int step)> present = [](int, int) { return true; };
};

// One part's share of a site's gradient.
inline float site_derivative(float weight, std::size_t k, std::size_t position, int site, int part,
                             int step, const site_settings& how) {
  const float d = derivative(weight, k, position, 3 * site + part, step, 0);
  return k < how.scaled_from ? d : static_cast<float>(how.scale(site, step)) * d;
}

// A schedule.
inline double rate_scale(int step) {
  return 1.0 / (step + 1);
}

template <class O>
inline constexpr bool updates_from_mean = requires { requires O::updates_from_mean; };

// The parameters of each site at the end.
using site_outcome = std::vector<std::map<std::string, std::vector<float>>>;

// One step of a rank. Parts follow one another in the order of ranks, and of micro-batches.
template <class Model>
mfsdp::step_result step_site(Model& model, const site_settings& how, int step) {
  const auto& units = model.plan().spec.units();
  const int parts = how.parts[static_cast<std::size_t>(model.site())];
  const int own = parts / model.ranks();
  for (int micro = 0; micro < own; ++micro) {
    for (const std::size_t unit : model.forward_order()) {
      (void)model.acquire(unit, mfsdp::pass::forward);
    }
    for (const std::size_t unit : model.backward_order()) {
      const auto weights = model.acquire(unit, mfsdp::pass::backward);
      const auto gradients = model.gradients(unit);
      for (std::size_t i = 0; i < units[unit].tensors.size(); ++i) {
        const auto gradient = gradients[i];
        for (std::size_t k = 0; k < gradient.flat().size(); ++k) {
          auto& element = gradient.flat()[k];
          const std::remove_reference_t<decltype(element)> d(
              site_derivative(static_cast<float>(weights[i].flat()[k]), k, i, model.site(),
                              model.rank() * own + micro, step, how));
          element = gradient.accumulate ? element + d : d;
        }
      }
      gradients.reduce();
    }
  }
  if (how.max_norm > 0) model.clip(how.max_norm);
  return model.step(rate_scale(step));
}

template <class Model>
void train_site(Model& model, const site_settings& how) {
  for (int step = 0; step < how.steps; ++step) step_site(model, how, step);
}

// A mesh of all axes.
template <class World>
auto axes_of_sites(World world, const site_settings& how) {
  auto axes = mfsdp::make_sites(world, how.ranks);
  const int shards = axes.shard.size() / how.replicas;
  return mfsdp::mesh{axes.shard.split(axes.shard.rank() / shards),
                     axes.shard.split(axes.shard.rank() % shards),
                     world.split(axes.shard.rank() / shards)};
}

// Trains on a thread_world; `inspect(model)` runs on every rank at the end.
template <class Placement, class Rules, class Inspect, class Precision = mfsdp::precision<>>
site_outcome run_sites(const mfsdp::model_spec& spec, Placement placement, Rules rules,
                       const site_settings& how, Inspect&& inspect, Precision types = {}) {
  site_outcome result(how.ranks.size());
  int all = 0;
  for (const int ranks : how.ranks) all += ranks;
  mfsdp::thread_world{all}.run([&](auto comm) {
    auto axes = axes_of_sites(comm, how);
    mfsdp::sharded_model model{spec, axes, placement, rules, types, how.options};
    model.initialize(initialize);
    train_site(model, how);
    auto parameters = read_parameters(model);
    inspect(model);
    if (model.rank() == 0) result[static_cast<std::size_t>(model.site())] = std::move(parameters);
  });
  return result;
}

template <class Placement, class Rules>
site_outcome run_sites(const mfsdp::model_spec& spec, Placement placement, Rules rules,
                       const site_settings& how) {
  return run_sites(spec, placement, rules, how, [](auto&) {});
}

// The reference: every site has full copies, one after the other.
template <class Rules>
site_outcome run_plain_sites(const mfsdp::model_spec& spec, const Rules& rules,
                             const site_settings& how) {
  using mfsdp::index_t;
  struct part : plain_part {
    std::vector<std::vector<mfsdp::host_buffer<float>>> states{};  // by site and state
    std::vector<mfsdp::host_buffer<float>> weights{};              // by site
    std::vector<std::int64_t> updates{};                           // by site
  };
  const std::size_t sites = how.ranks.size();
  const auto& tensors = spec.tensors();
  mfsdp::cpu_backend backend;
  const auto with_rule = [&](const part& p, auto f) {
    mfsdp::detail::with_member(mfsdp::optimizer_members(rules),
                               mfsdp::optimizer_route(rules, tensors[p.tensor]), f);
  };
  using values = std::vector<std::vector<float>>;  // by tensor
  std::vector<values> weights(sites);
  for (values& all : weights) {
    for (const auto& tensor : tensors) {
      all.emplace_back(static_cast<std::size_t>(tensor.elements()));
      initialize(tensor, all.back(), 0);
    }
  }
  // Memory as aligned as the runtime's, since kernels of products depend on it.
  std::vector<float> memory(1 << 20);
  const auto misaligned = reinterpret_cast<std::uintptr_t>(memory.data()) / 4 % 16;
  const std::span<float> workspace = std::span(memory).subspan((16 - misaligned) % 16);
  const auto call = [&](part& p, std::size_t site, int step, const auto& rule, auto f) {
    mfsdp::state_spans<std::remove_cvref_t<decltype(rule)>, float> states;
    for (std::size_t k = 0; k < states.size(); ++k) states[k] = p.states[site][k].span();
    f(states, mfsdp::matrix_view<float>(p.weights[site].span().data(), p.shape),
      mfsdp::update_context<float>{p.updates[site], rate_scale(step), workspace, step + 1, p.item});
  };

  std::vector<part> parts;
  for (const plain_part& each : plain_parts(spec)) {
    part& p = parts.emplace_back(part{each});
    p.updates.assign(sites, 0);
    p.states.resize(sites);
    with_rule(p, [&](const auto& rule) {
      for (std::size_t s = 0; s < sites; ++s) {
        for (const mfsdp::state_spec& state : rule.states(p.shape)) {
          p.states[s].emplace_back(state.elements);
          std::ranges::fill(p.states[s].back().span(), 0.0f);
        }
        p.weights.emplace_back(p.shape.elements());
        std::ranges::copy(mfsdp::slice(std::span<const float>(weights[s][p.tensor]),
                                       static_cast<index_t>(p.offset), p.shape.elements()),
                          p.weights.back().span().begin());
        call(p, s, -1, rule, [&](const auto& states, auto parameter, auto context) {
          if constexpr (requires { rule.start(backend, states, parameter, context); }) {
            context.learning_rate_scale = 1;
            rule.start(backend, states, parameter, context);
          }
        });
      }
    });
  }

  for (int step = 0; step < how.steps; ++step) {
    std::vector<values> gradients(sites);
    for (std::size_t s = 0; s < sites; ++s) {
      const auto add = [](values& sum, values&& term) {
        if (sum.empty()) {
          sum = std::move(term);
          return;
        }
        for (std::size_t t = 0; t < sum.size(); ++t) {
          for (std::size_t k = 0; k < sum[t].size(); ++k) sum[t][k] += term[t][k];
        }
      };
      values of_replica;
      for (int share = 0; share < how.parts[s]; ++share) {
        values own(tensors.size());
        for (std::size_t u = spec.units().size(); u-- > 0;) {
          const auto& references = spec.units()[u].tensors;
          for (std::size_t i = 0; i < references.size(); ++i) {
            const auto& w = weights[s][references[i].tensor];
            auto& g = own[references[i].tensor];
            const bool first = g.empty();
            g.resize(w.size());
            for (std::size_t k = 0; k < w.size(); ++k) {
              const float d = site_derivative(w[k], k, i, static_cast<int>(s), share, step, how);
              g[k] = first ? d : g[k] + d;
            }
          }
        }
        add(of_replica, std::move(own));
        if ((share + 1) % (how.parts[s] / how.replicas) > 0) continue;
        add(gradients[s], std::exchange(of_replica, {}));
      }
    }
    for (part& p : parts) {
      with_rule(p, [&]<class O>(const O& rule) {
        std::vector<mfsdp::host_buffer<float>> own;
        for (std::size_t s = 0; s < sites; ++s) {
          own.emplace_back(p.shape.elements());
          const std::span<const float> all = gradients[s][p.tensor];
          std::ranges::copy(mfsdp::slice(all, static_cast<index_t>(p.offset), p.shape.elements()),
                            own.back().span().begin());
        }
        const auto gradient_of = [&](std::size_t s) {
          return mfsdp::matrix_view<const float>(own[s].span().data(), p.shape);
        };
        const auto present = [&](std::size_t s) { return how.present(static_cast<int>(s), step); };
        const auto usable = [&](std::size_t s) {
          return std::isfinite(backend.sum_of_squares(gradient_of(s).flat()));
        };
        const auto counts = [&](std::size_t s) { return present(s) && usable(s); };
        bool heard = true;  // a matrix of which no site has a usable gradient is left out
        if constexpr (mfsdp::PeriodicOptimizer<O>) {
          if (O::whole_matrix && O::rounds_before_update > 0) {
            heard = false;
            for (std::size_t s = 0; s < sites; ++s) heard = heard || counts(s);
          }
        }
        const auto exchange = [&](int round, bool before) {
          if constexpr (mfsdp::PeriodicOptimizer<O>) {
            const auto exchanged = rule.exchanges(p.shape, {step + 1, p.item, round});
            if (std::ranges::find(exchanged, true) == exchanged.end()) return;
            for (std::size_t s = 0; s < sites; ++s) {
              if (before && !usable(s)) continue;
              call(p, s, step, rule, [&](const auto& states, auto parameter, auto context) {
                rule.contribute(backend, states, parameter,
                                before ? gradient_of(s) : mfsdp::matrix_view<const float>(),
                                context, round);
              });
            }
            for (std::size_t e = 0; e < exchanged.size(); ++e) {
              if (!exchanged[e]) continue;
              const auto spot = [&](std::size_t s) {
                return e == 0 ? p.weights[s].span() : p.states[s][e - 1].span();
              };
              for (std::size_t k = 0; k < spot(0).size(); ++k) {
                float sum = 0;
                int count = 0;
                for (std::size_t s = 0; s < sites; ++s) {
                  if (before ? !counts(s) : !present(s)) continue;
                  sum = count == 0 ? spot(s)[k] : sum + spot(s)[k];
                  ++count;
                }
                if (count == 0 && e == 0) continue;
                for (std::size_t s = 0; s < sites; ++s) {
                  spot(s)[k] = sum / static_cast<float>(std::max(count, 1));
                }
              }
            }
            for (std::size_t s = 0; s < sites; ++s) {
              call(p, s, step, rule, [&](const auto& states, auto parameter, auto context) {
                rule.adopt(backend, states, parameter, context, round);
              });
            }
          }
        };
        if constexpr (mfsdp::PeriodicOptimizer<O>) {
          for (int round = 0; heard && round < O::rounds_before_update; ++round) {
            exchange(round, true);
          }
        }
        for (std::size_t s = 0; heard && s < sites; ++s) {
          if (!updates_from_mean<O> && !usable(s)) continue;
          ++p.updates[s];
          call(p, s, step, rule, [&](const auto& states, auto parameter, auto context) {
            rule.update(backend, states, parameter, gradient_of(s), context);
          });
        }
        if constexpr (mfsdp::PeriodicOptimizer<O>) {
          for (int round = 0; round < O::rounds_after_update; ++round) {
            exchange(O::rounds_before_update + round, false);
          }
        }
        for (std::size_t s = 0; s < sites; ++s) {
          if (present(s) || !how.present(static_cast<int>(s), step + 1)) continue;
          std::size_t giver = 0;
          while (!present(giver)) ++giver;
          std::ranges::copy(p.weights[giver].span(), p.weights[s].span().begin());
          for (std::size_t k = 0; k < p.states[s].size(); ++k) {
            std::ranges::copy(p.states[giver][k].span(), p.states[s][k].span().begin());
          }
          p.updates[s] = p.updates[giver];
          call(p, s, step, rule, [&](const auto& states, auto parameter, auto context) {
            if constexpr (requires { rule.join(backend, states, parameter, context); }) {
              rule.join(backend, states, parameter, context);
            }
          });
        }
        for (std::size_t s = 0; s < sites; ++s) {
          std::ranges::copy(p.weights[s].span(),
                            weights[s][p.tensor].begin() + static_cast<index_t>(p.offset));
        }
      });
    }
  }

  site_outcome result;
  for (const values& all : weights) {
    auto& named = result.emplace_back();
    for (std::size_t t = 0; t < tensors.size(); ++t) named[tensors[t].name] = all[t];
  }
  return result;
}

}  // namespace toy
