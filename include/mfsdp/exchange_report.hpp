// What sites exchange and keep, from shapes alone: no model is built and nothing moves.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "mfsdp/concepts.hpp"
#include "mfsdp/plan.hpp"
#include "mfsdp/planner.hpp"

namespace mfsdp::inline MFSDP_ABI {

// Of one site, in numbers (4 bytes each).
struct exchange_load {
  double exchanged = 0;  // contributed to means over the sites
  index_t parameters = 0;
  std::map<std::string, index_t, std::less<>> states;  // by name
};

// The load of steps `first` to `last` under these optimizers, those that are no PeriodicOptimizer
// exchanging nothing. It asks the same exchanges() as
// sharded_model does, which sends one number more for each part in a message. An all-reduce over S
// sites moves 2 (S - 1) / S times as much over each site's link if it is a ring.
// Cost: one question for each item, round and step.
template <class Optimizers>
[[nodiscard]] exchange_load exchange_load_of(const plan& p, const Optimizers& optimizers,
                                             std::int64_t first, std::int64_t last) {
  exchange_load load;
  const auto members = optimizer_members(optimizers);
  for (std::size_t i = 0; i < p.items.size(); ++i) {
    const placement_item& item = p.items[i];
    const int optimizer = p.tensors[item.tensor].optimizer;
    load.parameters += item.elements();
    if (optimizer < 0) continue;
    detail::with_member(members, static_cast<std::size_t>(optimizer), [&]<class O>(const O& rule) {
      const matrix_shape shape = O::whole_matrix ? item.shape : matrix_shape{1, item.elements()};
      const auto states = rule.states(shape);
      for (const state_spec& state : states) load.states[std::string(state.name)] += state.elements;
      if constexpr (PeriodicOptimizer<O>) {
        constexpr int rounds = O::rounds_before_update + O::rounds_after_update;
        for (std::int64_t step = first; step <= last; ++step) {
          for (int round = 0; round < rounds; ++round) {
            const auto exchanged = rule.exchanges(shape, {step, i, round});
            if (exchanged[0]) load.exchanged += static_cast<double>(shape.elements());
            for (std::size_t k = 0; k < states.size(); ++k) {
              if (exchanged[k + 1]) load.exchanged += static_cast<double>(states[k].elements);
            }
          }
        }
      }
    });
  }
  return load;
}

}  // namespace mfsdp::inline MFSDP_ABI
