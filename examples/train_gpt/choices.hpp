// From names to types: the one place that knows every optimizer and placement of the trainer.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>

#include "training.hpp"

namespace train_gpt {

inline constexpr std::string_view optimizer_names = "muon, muon:<preset>, soap, shampoo, adamw";

using every_placement =
    std::tuple<mfsdp::owner_placement, mfsdp::row_placement, mfsdp::replicated_placement>;

// Each combination of types is compiled once for a kind of world, here; SOAP and Shampoo on owners
// only, and an engine with few placements, to keep that short. Errors: std::invalid_argument for
// names that are none or do not go together, or if the sequences cannot be shared out.
template <class Placements = every_placement, class World>
outcome train(World&& world, const settings& how, const text& data, const progress& report = {}) {
  if (how.sequences % world.size() != 0) {
    throw std::invalid_argument(std::to_string(how.sequences) +
                                " sequences a step cannot be shared out evenly over " +
                                std::to_string(world.size()) + " ranks");
  }
  const mfsdp::adamw elementwise{
      .learning_rate = how.elementwise_rate, .beta2 = 0.99, .weight_decay = 0.1};
  const auto at_rate = [&](auto rule) {
    if (how.matrix_rate) rule.learning_rate = *how.matrix_rate;
    return rule;
  };
  const auto on_owners = [&](const auto& rule) {
    if (how.placement != "owner") {
      throw std::invalid_argument(how.optimizer + " runs with the placement owner here, not " +
                                  how.placement);
    }
    return train_as(world, how, data, mfsdp::owner_placement{},
                    mfsdp::mixed{at_rate(rule), elementwise}, report);
  };
  if (how.optimizer == "soap") return on_owners(mfsdp::soap::current_gradient());
  if (how.optimizer == "shampoo") {
    return on_owners(mfsdp::shampoo{.learning_rate = 3e-3,
                                    .beta2 = 0.99,
                                    .frequency = 10,
                                    .graft = mfsdp::adam_graft{.beta2 = 0.99, .epsilon = 1e-8}});
  }

  constexpr std::string_view preset = "muon:";
  const bool by_preset = how.optimizer.starts_with(preset);
  if (!by_preset && how.optimizer != "muon" && how.optimizer != "adamw") {
    throw std::invalid_argument("no optimizer '" + how.optimizer + "'; there are " +
                                std::string(optimizer_names));
  }
  const mfsdp::muon matrix =
      at_rate(by_preset ? mfsdp::muon_preset(how.optimizer.substr(preset.size())) : mfsdp::muon{});
  const auto place = [&]<class Placement>(const Placement& placement) {
    if (how.optimizer == "adamw") return train_as(world, how, data, placement, elementwise, report);
    if constexpr (Placement::whole_matrices) {
      return train_as(world, how, data, placement, mfsdp::mixed{matrix, elementwise}, report);
    } else {
      return train_as(world, how, data, placement,
                      mfsdp::mixed{mfsdp::gathered{matrix}, elementwise}, report);
    }
  };
  outcome result;
  std::string names;
  const auto placed = [&](const auto& placement) {
    names += (names.empty() ? "" : ", ") + std::string(placement.name);
    if (how.placement != placement.name) return false;
    result = place(placement);
    return true;
  };
  if (!std::apply([&](const auto&... each) { return (placed(each) || ...); }, Placements{})) {
    throw std::invalid_argument("no placement '" + how.placement + "' on this engine; it has " +
                                names);
  }
  return result;
}

}  // namespace train_gpt
