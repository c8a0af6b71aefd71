// Optimizer states of this rank's shard, one container for each optimizer of the set, and the step.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "mfsdp/runtime/context.hpp"

namespace mfsdp::inline MFSDP_ABI {

template <class Context, class Optimizers>
class optimizer_states {
 public:
  // `parameter(i)` and `gradient(i)` view plan.local_segments[i], which is on this rank.
  template <class Parameter, class Gradient>
  optimizer_states(Context& context, const Optimizers& optimizers, Parameter&& parameter,
                   Gradient&& gradient)
      : context_(context), optimizers_(optimizer_members(optimizers)) {
    for_each_optimizer([&](const auto& optimizer, auto& entries, int which) {
      collect(optimizer, entries, which, parameter, gradient);
    });

    index_t state_elements = 0;
    for_each_optimizer([&](const auto& optimizer, auto& entries, int) {
      for (const auto& entry : entries) {
        for (const state_spec& state : optimizer.states(shape_of(optimizer, entry))) {
          state_elements += round_up(state.elements, alignment);
        }
      }
    });
    memory_ = context_.allocate(memory_kind::optimizer_states, state_elements);
    context_.backend.fill(memory_.span(), 0.0f);

    index_t begin = 0;
    index_t workspace = 0;
    index_t gathered = 0;
    for_each_optimizer([&]<class O>(const O& optimizer, auto& entries, int) {
      for (auto& entry : entries) {
        const matrix_shape shape = shape_of(optimizer, entry);
        const auto states = optimizer.states(shape);
        for (std::size_t k = 0; k < states.size(); ++k) {
          entry.states[k] = slice(memory_.span(), begin, states[k].elements);
          begin += round_up(states[k].elements, alignment);
        }
        workspace = std::max(workspace, optimizer.workspace_size(shape));
        if constexpr (GathersMatrices<O>) {
          gathered = std::max(gathered, round_up(shape.elements(), alignment));
        }
      }
    });
    workspace_ = context_.allocate(memory_kind::workspace, workspace + 2 * gathered);
    gathered_ = gathered;
  }

  // Updates everything that this rank holds. Moves nothing, unless an optimizer gathers matrices.
  void step(std::int64_t step, double learning_rate_scale) {
    const update_context<float> context{
        step, learning_rate_scale,
        workspace_.span().subspan(2 * static_cast<std::size_t>(gathered_))};
    for_each_optimizer([&]<class O>(const O& optimizer, auto& entries, int) {
      for (auto& entry : entries) {
        if constexpr (GathersMatrices<O>) {
          update_gathered(optimizer, entry, context);
        } else {
          optimizer.update(context_.backend, entry.states, entry.parameter, entry.gradient,
                           context);
        }
      }
    });
  }

 private:
  using storage = typename Context::storage;
  static constexpr index_t alignment = static_cast<index_t>(storage_alignment / sizeof(float));

  // One update: a whole matrix, or one piece of an elementwise tensor.
  template <class O>
  struct held_state {
    explicit held_state(std::size_t i) : item(i) {}

    std::size_t item;
    matrix_view<float> parameter;
    matrix_view<const float> gradient;
    state_spans<O, float> states{};
    // Gathered matrices only: where the rows of every rank go, and those of this one.
    std::string label{};
    std::vector<piece> pieces{};
    index_t own_offset = 0;
  };

  template <class Members>
  struct entries_of;
  template <class... O>
  struct entries_of<std::tuple<O...>> {
    using type = std::tuple<std::vector<held_state<O>>...>;
  };
  using members = decltype(optimizer_members(std::declval<const Optimizers&>()));

  template <class Visit>
  void for_each_optimizer(Visit&& visit) {
    [&]<std::size_t... which>(std::index_sequence<which...>) {
      (visit(std::get<which>(optimizers_), std::get<which>(entries_), static_cast<int>(which)),
       ...);
    }(std::make_index_sequence<std::tuple_size_v<members>>{});
  }

  template <class O>
  [[nodiscard]] matrix_shape shape_of(const O&, const held_state<O>& entry) const {
    if constexpr (GathersMatrices<O>) {
      return context_.plan.items[entry.item].shape;
    } else {
      return entry.parameter.shape();
    }
  }

  template <class O, class Parameter, class Gradient>
  void collect(const O&, std::vector<held_state<O>>& entries, int which, Parameter& parameter,
               Gradient& gradient) {
    const plan& plan = context_.plan;
    for (std::size_t i = 0; i < plan.local_segments.size(); ++i) {
      const local_segment& segment = plan.local_segments[i];
      const placement_item& item = plan.items[segment.item];
      if (plan.tensors[item.tensor].optimizer != which) continue;
      const bool own = segment.rank == context_.rank();
      const matrix_shape shape =
          O::whole_matrix && !GathersMatrices<O> ? item.shape : matrix_shape{1, segment.count};
      if constexpr (GathersMatrices<O>) {
        if (entries.empty() || entries.back().item != segment.item) {
          entries.push_back(held_state<O>(segment.item));
          entries.back().label = "gradient of " + item.name;
        }
        auto& pieces = entries.back().pieces;
        if (std::ranges::find(pieces, segment.rank, &piece::rank) != pieces.end()) {
          throw spec_error(fmt::format(
              "tensor '{}': '{}' gathers matrices that have at most one segment on a rank, but "
              "placement '{}' puts two on rank {}",
              item.name, O::name, plan.placement, segment.rank));
        }
        pieces.push_back({segment.rank, segment.offset, 0, segment.count});
        if (own) entries.back().own_offset = segment.offset;
      } else {
        if (!own) continue;
        entries.push_back(held_state<O>(segment.item));
      }
      if (own) {
        entries.back().parameter = {parameter(i).data(), shape};
        entries.back().gradient = {gradient(i).data(), shape};
      }
    }
  }

  // Every rank gathers the whole gradient and repeats the whole update; of the parameter it has,
  // and keeps, only its own rows.
  template <class O>
  void update_gathered(const O& optimizer, held_state<O>& entry,
                       const update_context<float>& context) {
    const matrix_shape shape = context_.plan.items[entry.item].shape;
    const std::span<float> gradient = slice(workspace_.span(), 0, shape.elements());
    const std::span<float> parameter = slice(workspace_.span(), gathered_, shape.elements());
    auto request = context_.collective.start_all_gather(entry.gradient.flat(), gradient,
                                                        entry.pieces, entry.label);
    context_.book(phase::step);
    request.wait(context_.until());
    const std::span<float> own = slice(parameter, entry.own_offset, entry.parameter.size());
    context_.backend.fill(parameter, 0.0f);
    context_.backend.copy(std::span<const float>(entry.parameter.flat()), own);
    optimizer.update(context_.backend, entry.states, {parameter.data(), shape},
                     {gradient.data(), shape}, context);
    context_.backend.copy(std::span<const float>(own), entry.parameter.flat());
    request.drain(context_.until());
  }

  Context& context_;
  members optimizers_;
  typename entries_of<members>::type entries_;
  storage memory_;
  storage workspace_;
  index_t gathered_ = 0;
};

}  // namespace mfsdp::inline MFSDP_ABI
