// Values that can be told apart, in every array of a model, and what a model holds of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "mfsdp/mfsdp.hpp"
#include "mfsdp/plan_text.hpp"

namespace checkpoint_values {

using mfsdp::index_t;

// "block.up", or "block.up#1 muon.momentum".
template <class Model>
std::string name_of(Model& model, std::size_t array) {
  const mfsdp::model_array& about = model.persistence().arrays()[array];
  std::string name = model.plan().spec.tensors()[about.tensor].name;
  if (!about.is_state()) return name;
  const mfsdp::placement_item& item = model.plan().items[about.item];
  return fmt::format("{}#{} {}.{}", name, item.offset / item.elements(), about.optimizer,
                     about.state);
}

// Exact in every type; another array, element or `salt` is most likely another value.
inline float made_up(const std::string& name, index_t element, int salt) {
  const auto word = mfsdp::detail::mix(mfsdp::detail::fnv1a(name) +
                                       static_cast<std::uint64_t>(element * 64 + salt));
  return (static_cast<float>(word % 255) - 127.0f) / 64.0f;
}

// At most as many as the steps that set_values makes up.
[[nodiscard]] inline std::int64_t made_up_updates(std::size_t item, int salt, std::int64_t steps) {
  return (static_cast<std::int64_t>(item) + salt) % (steps + 1);
}

// As if it had been trained: so many steps, and another number of updates for each item.
template <class Model>
void set_values(Model& model, int salt, std::int64_t steps = 7) {
  mfsdp::training_counts counts{steps, std::vector<std::int64_t>(model.plan().items.size())};
  for (std::size_t i = 0; i < counts.updates.size(); ++i)
    counts.updates[i] = made_up_updates(i, salt, steps);
  model.persistence().restore(counts, false, [&](auto&& for_each) {
    for_each([&]<class T>(const mfsdp::held_part& part, std::span<T> values) {
      const std::string name = name_of(model, part.array);
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = T(made_up(name, part.first + static_cast<index_t>(i), salt));
      }
    });
  });
}

// Elements and counts on this rank that are not as set_values leaves them.
template <class Model>
index_t count_wrong(Model& model, int salt, std::int64_t steps = 7) {
  index_t wrong = 0;
  const mfsdp::training_counts counts = model.persistence().counts();
  model.persistence().for_each_held(
      [&]<class T>(const mfsdp::held_part& part, std::span<const T> values) {
        const std::string name = name_of(model, part.array);
        for (std::size_t i = 0; i < values.size(); ++i) {
          const float expected = made_up(name, part.first + static_cast<index_t>(i), salt);
          wrong += static_cast<float>(values[i]) == static_cast<float>(T(expected)) ? 0 : 1;
        }
        if (!model.persistence().arrays()[part.array].is_state()) return;
        wrong += counts.updates[part.item] == made_up_updates(part.item, salt, steps) ? 0 : 1;
      });
  return wrong + (counts.steps == steps ? 0 : 1);
}

// Everything that the ranks of one site hold, whole and by name; each rank adds its part.
class everything {
 public:
  template <class Model>
  void add(Model& model) {
    const std::scoped_lock guard(mutex_);
    const mfsdp::training_counts counts = model.persistence().counts();
    model.persistence().for_each_held([&](const mfsdp::held_part& part, auto values) {
      const mfsdp::model_array& about = model.persistence().arrays()[part.array];
      std::vector<float>& all = arrays_[name_of(model, part.array)];
      all.resize(static_cast<std::size_t>(about.elements));
      std::transform(values.begin(), values.end(), all.begin() + part.first,
                     [](auto value) { return static_cast<float>(value); });
      if (about.is_state()) updates_[part.item] = counts.updates[part.item];
    });
    steps_ = counts.steps;
  }

  // Sets a model of any number of ranks alike, without a checkpoint; if it joins, as a site that
  // takes over what was another one's.
  template <class Model>
  void put(Model& model, bool joins = false) const {
    mfsdp::training_counts counts{steps_, std::vector<std::int64_t>(model.plan().items.size())};
    for (const auto& [item, count] : updates_) counts.updates[item] = count;
    model.persistence().restore(counts, joins, [&](auto&& for_each) {
      for_each([&]<class T>(const mfsdp::held_part& part, std::span<T> values) {
        const std::vector<float>& all = arrays_.at(name_of(model, part.array));
        for (std::size_t i = 0; i < values.size(); ++i) {
          values[i] = T(all[static_cast<std::size_t>(part.first) + i]);
        }
      });
    });
  }

  friend bool operator==(const everything& a, const everything& b) {
    return a.steps_ == b.steps_ && a.updates_ == b.updates_ && a.arrays_ == b.arrays_;
  }

 private:
  std::mutex mutex_;
  std::int64_t steps_ = 0;
  std::map<std::size_t, std::int64_t> updates_;  // by item
  std::map<std::string, std::vector<float>> arrays_;
};

}  // namespace checkpoint_values
