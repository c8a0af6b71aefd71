// A placement of one's own: docs/concepts/placement.md. Prints what each rank holds, and compares
// the losses with those of full copies.
#include <cstdio>
#include <span>
#include <string_view>
#include <vector>

#include "mfsdp/mfsdp.hpp"

using mfsdp::index_t;

// [begin dealt_placement]
// Matrices are dealt to ranks 0, 1, 2, ... in the order of the model; any other tensor goes to the
// rank that holds the fewest bytes so far.
struct dealt_placement {
  static constexpr std::string_view name = "dealt";
  static constexpr bool whole_matrices = true;
  static constexpr bool replicated = false;

  std::vector<std::vector<mfsdp::segment>> place(std::span<const mfsdp::placement_item> items,
                                                 int ranks) const {
    std::vector<std::vector<mfsdp::segment>> segments(items.size());
    std::vector<index_t> bytes(static_cast<std::size_t>(ranks));
    const auto give = [&](std::size_t item, int rank) {
      bytes[static_cast<std::size_t>(rank)] += items[item].resident_bytes;
      segments[item].push_back({.rank = rank, .offset = 0, .count = items[item].elements()});
    };

    int next = 0;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (items[i].divisible || items[i].elements() == 0) continue;  // nothing of an empty item
      give(i, next);
      next = (next + 1) % ranks;
    }
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (!items[i].divisible || items[i].elements() == 0) continue;
      int least = 0;
      for (int rank = 1; rank < ranks; ++rank) {
        if (bytes[static_cast<std::size_t>(rank)] < bytes[static_cast<std::size_t>(least)]) {
          least = rank;
        }
      }
      give(i, least);
    }
    return segments;
  }
};
// [end dealt_placement]

mfsdp::model_spec two_layers() {
  mfsdp::model_spec spec;
  spec.unit("first").matrix("weight", 6, 4).vector("bias", 6);
  spec.unit("second").matrix("weight", 2, 6).vector("bias", 2);
  return spec;
}

// The loss of rank r is |w - r|^2 / 2 over all parameters; returns the sum over ranks of each step.
template <class Placement>
std::vector<double> train(Placement placement) {
  std::vector<double> losses;
  mfsdp::thread_world{3}.run([&](auto comm) {
    mfsdp::sharded_model model{two_layers(), comm, placement,
                               mfsdp::mixed{mfsdp::muon{.learning_rate = 0.1}, mfsdp::adamw{}}};
    model.initialize([](const auto&, std::span<float> values, index_t first) {
      for (float& value : values) value = static_cast<float>(first++ % 5);
    });
    for (int step = 0; step < 5; ++step) {
      double loss = 0;
      for (const std::size_t unit : model.backward_order()) {
        const auto weights = model.acquire(unit, mfsdp::pass::backward);
        const auto gradients = model.gradients(unit);
        for (std::size_t i = 0; i < 2; ++i) {
          for (std::size_t k = 0; k < weights[i].flat().size(); ++k) {
            const float distance = weights[i].flat()[k] - static_cast<float>(comm.rank());
            gradients[i].flat()[k] = distance;
            loss += 0.5 * static_cast<double>(distance * distance);
          }
        }
        gradients.reduce();
      }
      model.step();
      const double total = model.sum(loss);
      if (comm.rank() == 0) losses.push_back(total);
    }
  });
  return losses;
}

int main() {
  const mfsdp::plan plan =
      make_plan(two_layers(), 3, dealt_placement{}, mfsdp::mixed{mfsdp::muon{}, mfsdp::adamw{}});
  for (const mfsdp::local_segment& segment : plan.local_segments) {
    std::printf("rank %d: %s\n", segment.rank, plan.items[segment.item].name.c_str());
  }
  const bool equal = train(dealt_placement{}) == train(mfsdp::replicated_placement{});
  std::printf("dealt and full copies: %s losses\n", equal ? "equal" : "different");
}
