// All that a model consists of, to go through, read and replace: for those who save, restore or
// examine models, as checkpoints do. A trainer does not need it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"
#include "mfsdp/runtime/arrays.hpp"
#include "mfsdp/runtime/context.hpp"
#include "mfsdp/runtime/gather.hpp"

namespace mfsdp::inline MFSDP_ABI {

// What sharded_model::persistence() returns: a view of the model, which outlives it. Copies are the
// same.
template <class Model>
class model_persistence {
 public:
  explicit model_persistence(Model& model) : model_(&model) {}

  // All arrays, on whatever ranks, in an order that the plan alone decides; then what decides how
  // they are used.
  [[nodiscard]] std::span<const model_array> arrays() const { return model_->arrays_.all; }
  [[nodiscard]] std::span<const model_rule> rules() const { return model_->rules_; }
  [[nodiscard]] const model_options& options() const { return model_->context_.options; }
  [[nodiscard]] static std::string precision_text() { return Model::context::precision::to_text(); }

  // Steps taken so far, and the updates of each item; of the latter zero for what this rank holds
  // nothing of.
  [[nodiscard]] training_counts counts() const {
    training_counts now{model_->step_, std::vector<std::int64_t>(model_->plan().items.size(), 0)};
    model_->states_.read_counts(now.updates);
    return now;
  }

  // Calls visit(part, values) for all that this rank holds of arrays(): parameters in the type that
  // is updated, then states, as spans of const elements, empty for a state of no elements. Always
  // in the same order.
  template <class Visit>
  void for_each_held(Visit&& visit) const {
    for_each_held_mutable([&]<class T>(const held_part& part, std::span<T> values) {
      visit(part, std::span<const T>(values));
    });
  }

  // Whether the host may use what such a span views as it is.
  static constexpr bool host_memory = Model::host_memory;

  // Copies what such a span views, wherever the backend keeps it, to the host; and the other way.
  template <class T>
  void read(std::span<const T> values, std::span<T> host) const {
    model_->context_.backend.copy(values, host);
  }
  template <class T>
  void write(std::span<const T> host, std::span<T> values) const {
    model_->context_.backend.copy(host, values);
  }

  // Errors: usage_error unless the model is as a step has left it, or initialize.
  void require_step_boundary(std::string_view what) const {
    model_->require_step(what);
    if (const auto group = model_->gradients_.pending()) {
      throw usage_error(fmt::format(
          "{}: '{}' has a gradient that no step has used; call it right after step(), skip_step() "
          "or discard_gradients()",
          what, *group));
    }
  }

  // Errors: usage_error if a unit is in use, if an exception ended a step half way, or if the site
  // comes to others and has to join.
  void require_restorable(std::string_view what) const {
    model_->require_released(what);
    model_->require_whole();
    if constexpr (Model::elastic) {
      if (model_->context_.sites.joins()) {
        throw usage_error(
            fmt::format("{}: others train already and this site comes to them: call join", what));
      }
    }
  }

  // Instead of initialize(): sets parameters, states and counts to what another run had.
  // fill(for_each) writes them all in a call for_each(visit), which calls visit(part, values) as
  // for_each_held does, with values to write. Until fill returns, and after it throws, the model
  // has no values. Without counts the states begin anew, as after initialize, and fill is shown
  // parameters only; all sites then need equal ones. If this site `joins` it takes over what was of
  // another one: rules reset what belongs to one site only (PeriodicOptimizer). All ranks of the
  // site alike. Errors: as require_restorable.
  template <class Fill>
  void restore(const std::optional<training_counts>& counts, bool joins, Fill&& fill) const {
    require_restorable("restore");
    Model& model = *model_;
    model.parameters_.quiesce();
    model.initialized_ = false;
    fill([&](auto&& visit) {
      for_each_held_mutable([&](const held_part& part, auto values) {
        if (counts || !arrays()[part.array].is_state()) visit(part, values);
      });
    });
    if (counts) {
      model.states_.write_counts(counts->updates);
      if (joins) model.states_.join(counts->steps);
    } else {
      model.states_.start();
    }
    model.discard_gradients();
    model.publish();
    model.step_ = counts ? counts->steps : 0;
    model.initialized_ = true;
    model.compared_ = counts.has_value();
  }

  // What every rank of the site gives, in rank order; lists of equal lengths. A collective call: a
  // few numbers, no bulk.
  [[nodiscard]] std::vector<std::uint64_t> gather(const std::vector<std::uint64_t>& own,
                                                  std::string_view label) const {
    return detail::gather_from_all<std::uint64_t>(model_->context_, own, label, phase::checkpoint);
  }
  // The same over the ranks of all sites, one site after the other; on an elastic axis zeros where
  // nobody is. With replicas, those of this rank's replica.
  [[nodiscard]] std::vector<std::uint64_t> gather_from_sites(const std::vector<std::uint64_t>& own,
                                                             std::string_view label) const {
    return detail::gather_over<std::uint64_t>(model_->context_, model_->context_.sites, own, label,
                                              phase::checkpoint);
  }
  // Where a site's ranks begin in that.
  [[nodiscard]] int first_rank_of_site(int of_site) const {
    return model_->map_.first[static_cast<std::size_t>(of_site)];
  }

 private:
  template <class Visit>
  void for_each_held_mutable(Visit&& visit) const {
    const plan& p = model_->plan();
    for (std::size_t i = 0; i < p.local_segments.size(); ++i) {
      if (!model_->is_here(i)) continue;
      const local_segment& segment = p.local_segments[i];
      const placement_item& item = p.items[segment.item];
      const held_part part{item.tensor, segment.item, item.offset + segment.offset};
      if (model_->is_trainable_here(i)) {
        visit(part, model_->masters_.segment(i));
      } else {
        visit(part, model_->parameters_.segment(i));
      }
    }
    model_->states_.for_each_state_held(
        [&](std::size_t item, std::size_t k, index_t first, auto values) {
          visit(held_part{model_->arrays_.first_state[item] + k, item, first}, values);
        });
  }

  Model* model_;
};

}  // namespace mfsdp::inline MFSDP_ABI
