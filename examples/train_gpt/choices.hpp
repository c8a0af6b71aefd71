// From names to types: the one place that knows every optimizer and placement of the trainer.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "training.hpp"

namespace train_gpt {

inline constexpr std::string_view optimizer_names = "muon, muon:<preset>, soap, shampoo, adamw";

// Each combination of types is compiled once, here; SOAP and Shampoo on owners only, to keep that
// short. Errors: std::invalid_argument for names that are none or do not go together, or if the
// sequences cannot be shared out.
inline outcome train(const settings& how, const text& data, const progress& report = {}) {
  if (how.ranks < 1 || how.sequences % how.ranks != 0) {
    throw std::invalid_argument(std::to_string(how.sequences) +
                                " sequences a step cannot be shared out evenly over " +
                                std::to_string(how.ranks) + " ranks");
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
    return train_as(how, data, mfsdp::owner_placement{}, mfsdp::mixed{at_rate(rule), elementwise},
                    report);
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
    if (how.optimizer == "adamw") return train_as(how, data, placement, elementwise, report);
    if constexpr (Placement::whole_matrices) {
      return train_as(how, data, placement, mfsdp::mixed{matrix, elementwise}, report);
    } else {
      return train_as(how, data, placement, mfsdp::mixed{mfsdp::gathered{matrix}, elementwise},
                      report);
    }
  };
  if (how.placement == "rows") return place(mfsdp::row_placement{});
  if (how.placement == "replicated") return place(mfsdp::replicated_placement{});
  return place(mfsdp::owner_placement{});
}

}  // namespace train_gpt
