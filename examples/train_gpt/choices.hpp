// From names to types: the one place that knows every optimizer and placement of the trainer.
#pragma once

#include <stdexcept>
#include <string>

#include "training.hpp"

namespace train_gpt {

// Chooses the types by name; each combination is compiled once, here.
inline outcome train(const settings& how, const text& data, const progress& report = {}) {
  if (how.ranks < 1 || how.sequences % how.ranks != 0) {
    throw std::invalid_argument(std::to_string(how.sequences) +
                                " sequences a step cannot be shared out evenly over " +
                                std::to_string(how.ranks) + " ranks");
  }
  const mfsdp::adamw elementwise{
      .learning_rate = how.elementwise_rate, .beta2 = 0.99, .weight_decay = 0.1};
  const mfsdp::muon matrix{.learning_rate = how.matrix_rate};
  const auto place = [&](auto placement) {
    if (how.optimizer == "adamw") return train_as(how, data, placement, elementwise, report);
    if constexpr (decltype(placement)::whole_matrices) {
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
