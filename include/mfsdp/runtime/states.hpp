// Optimizer states of this rank's shard, one container for each optimizer of the set, and the step.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "mfsdp/runtime/context.hpp"
#include "mfsdp/runtime/widen.hpp"

namespace mfsdp::inline MFSDP_ABI {

template <class Context, class Optimizers>
class optimizer_states {
 public:
  // `parameter(i)` and `gradient(i)` are the masters and gradients of plan.local_segments[i], which
  // is on this rank.
  template <class Parameter, class Gradient>
  optimizer_states(Context& context, const Optimizers& optimizers, Parameter&& parameter,
                   Gradient&& gradient)
      : context_(context), optimizers_(optimizer_members(optimizers)) {
    for_each_optimizer([&](const auto& optimizer, auto& entries, int which) {
      collect(optimizer, entries, which, parameter, gradient);
    });
    allocate_states();
    allocate_scratch();
  }

  // Updates everything that this rank holds. Moves nothing, unless an optimizer gathers matrices.
  void step(std::int64_t step, double learning_rate_scale) {
    const update_context<float> context{step, learning_rate_scale};
    for_each_optimizer([&]<class O>(const O& optimizer, auto& entries, int) {
      for (auto& entry : entries) {
        if constexpr (GathersMatrices<O>) {
          update_gathered(optimizer, entry, context);
        } else {
          update(optimizer, entry, context);
        }
      }
    });
  }

  // Free between steps. If parameters or sums of gradients are not stored as float, there is room
  // for detail::widened_part elements or for this rank's longest segment.
  [[nodiscard]] std::span<float> scratch() { return scratch_.span(); }

 private:
  using precision = typename Context::precision;
  using master = typename precision::master;
  using reduced = typename precision::reduce;
  using narrow_state = typename precision::state;

  // One state of one parameter, in one of two types; the other span is empty.
  struct stored_state {
    std::span<float> exact{};
    std::span<narrow_state> narrow{};
  };

  // One update: a whole matrix, or one piece of an elementwise tensor.
  template <class O>
  struct held_state {
    std::size_t item;
    matrix_shape shape{};  // of what is updated
    index_t offset = 0;    // of that, from the start of the item
    std::span<master> parameter{};
    std::span<const reduced> gradient{};
    std::array<stored_state, std::tuple_size_v<state_spans<O, float>>> states{};
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

  template <class O, class Parameter, class Gradient>
  void collect(const O&, std::vector<held_state<O>>& entries, int which, Parameter& parameter,
               Gradient& gradient) {
    const plan& plan = context_.plan;
    for (std::size_t i = 0; i < plan.local_segments.size(); ++i) {
      const local_segment& segment = plan.local_segments[i];
      const placement_item& item = plan.items[segment.item];
      if (plan.tensors[item.tensor].optimizer != which) continue;
      const bool own = segment.rank == context_.rank();
      if constexpr (GathersMatrices<O>) {
        if (entries.empty() || entries.back().item != segment.item) {
          entries.push_back(
              {.item = segment.item, .shape = item.shape, .label = "gradient of " + item.name});
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
        entries.push_back({.item = segment.item,
                           .shape = O::whole_matrix ? item.shape : matrix_shape{1, segment.count},
                           .offset = segment.offset});
      }
      if (own) {
        entries.back().parameter = parameter(i);
        entries.back().gradient = gradient(i);
      }
    }
  }

  [[nodiscard]] static constexpr bool is_exact(const state_spec& state) {
    return state.exact || detail::is_float<narrow_state>;
  }

  template <class Visit>
  void for_each_state(Visit&& visit) {
    for_each_optimizer([&](const auto& optimizer, auto& entries, int) {
      for (auto& entry : entries) {
        const auto states = optimizer.states(entry.shape);
        for (std::size_t k = 0; k < states.size(); ++k) visit(states[k], entry.states[k]);
      }
    });
  }

  void allocate_states() {
    using exact_parts = detail::aligned_parts<float>;
    using narrow_parts = detail::aligned_parts<narrow_state>;
    index_t exact = 0;
    index_t narrow = 0;
    for_each_state([&](const state_spec& state, stored_state&) {
      if (is_exact(state)) {
        exact += exact_parts::size(state.elements);
      } else {
        narrow += narrow_parts::size(state.elements);
      }
    });
    exact_ = context_.template allocate<float>(memory_kind::optimizer_states, exact);
    narrow_ = context_.template allocate<narrow_state>(memory_kind::optimizer_states, narrow);
    context_.backend.fill(exact_.span(), 0.0f);
    context_.backend.fill(narrow_.span(), narrow_state(0.0f));
    exact_parts free_exact(exact_.span());
    narrow_parts free_narrow(narrow_.span());
    for_each_state([&](const state_spec& state, stored_state& stored) {
      if (is_exact(state)) {
        stored.exact = free_exact.take(state.elements);
      } else {
        stored.narrow = free_narrow.take(state.elements);
      }
    });
  }

  void allocate_scratch() {
    index_t scratch = 0;
    index_t gathered = 0;
    if constexpr (!detail::is_float<typename precision::compute> || !detail::is_float<reduced>) {
      for (const local_segment& segment : context_.plan.local_segments) {
        if (segment.rank == context_.rank()) scratch = std::max(scratch, segment.count);
      }
      scratch = std::min(scratch, detail::widened_part);
    }
    for_each_optimizer([&]<class O>(const O& optimizer, auto& entries, int) {
      for (const auto& entry : entries) {
        scratch = std::max(scratch, scratch_size(optimizer, entry.shape));
        if constexpr (GathersMatrices<O>) {
          gathered =
              std::max(gathered, detail::aligned_parts<reduced>::size(entry.shape.elements()));
        }
      }
    });
    scratch_ = context_.template allocate<float>(memory_kind::workspace, scratch);
    gathered_ = context_.template allocate<reduced>(memory_kind::workspace, gathered);
  }

  // What one update of a parameter takes of the scratch.
  template <class O>
  [[nodiscard]] index_t scratch_size(const O& optimizer, matrix_shape shape) const {
    if constexpr (!O::whole_matrix) shape.cols = std::min(shape.cols, part_size(shape));
    index_t size = detail::widened_size<reduced>(shape.elements());
    size += GathersMatrices<O> ? detail::scratch_space::size(shape.elements())
                               : detail::widened_size<master>(shape.elements());
    for (const state_spec& state : optimizer.states(shape)) {
      if (!is_exact(state)) size += detail::widened_size<narrow_state>(state.elements);
    }
    return size + optimizer.workspace_size(shape);
  }

  // Elements that an elementwise optimizer updates at a time.
  [[nodiscard]] static index_t part_size(matrix_shape piece) {
    return precision::converts_updates ? detail::widened_part : piece.elements();
  }

  template <class O>
  void update(const O& optimizer, held_state<O>& entry, const update_context<float>& context) {
    if constexpr (O::whole_matrix) {
      update_part(optimizer, entry, 0, entry.shape, context);
    } else {
      detail::for_each_part(entry.shape.elements(), part_size(entry.shape),
                            [&](index_t first, index_t count) {
                              update_part(optimizer, entry, first, {1, count}, context);
                            });
    }
  }

  // Updates `shape` from element `first` of what this rank has of an item.
  template <class O>
  void update_part(const O& optimizer, held_state<O>& entry, index_t first, matrix_shape shape,
                   const update_context<float>& context) {
    auto& backend = context_.backend;
    detail::scratch_space scratch(scratch_.span());
    const auto stored = slice(entry.parameter, first, shape.elements());
    const std::span<float> parameter = detail::widened(backend, stored, scratch);
    const std::span<const float> gradient =
        detail::widened(backend, slice(entry.gradient, first, shape.elements()), scratch);
    apply(optimizer, entry, first, matrix_view<float>(parameter.data(), shape),
          matrix_view<const float>(gradient.data(), shape), scratch, context);
    detail::write_back(backend, parameter, stored, stream(entry, 0, context), entry.offset + first);
  }

  // Every rank gathers the whole gradient and repeats the whole update; of the parameter it has,
  // and keeps, only its own rows.
  template <class O>
  void update_gathered(const O& optimizer, held_state<O>& entry,
                       const update_context<float>& context) {
    auto& backend = context_.backend;
    const std::span<reduced> all = slice(gathered_.span(), 0, entry.shape.elements());
    auto request =
        context_.collective.start_all_gather(entry.gradient, all, entry.pieces, entry.label);
    context_.book(phase::step);
    request.wait(context_.until());
    detail::scratch_space scratch(scratch_.span());
    const std::span<float> gradient = detail::widened(backend, all, scratch);
    const std::span<float> parameter = scratch.take(entry.shape.elements());
    const auto own = slice(parameter, entry.own_offset, std::ssize(entry.parameter));
    backend.fill(parameter, 0.0f);
    detail::load(backend, entry.parameter, own);
    apply(optimizer, entry, 0, matrix_view<float>(parameter.data(), entry.shape),
          matrix_view<const float>(gradient.data(), entry.shape), scratch, context);
    detail::store(backend, std::span<const float>(own), entry.parameter, stream(entry, 0, context),
                  entry.own_offset);
    request.drain(context_.until());
  }

  // One call of the rule, on states from element `first`. The rest of the scratch is its workspace.
  template <class O>
  void apply(const O& optimizer, held_state<O>& entry, index_t first, matrix_view<float> parameter,
             matrix_view<const float> gradient, detail::scratch_space scratch,
             update_context<float> context) {
    auto& backend = context_.backend;
    const auto specs = optimizer.states(parameter.shape());
    const auto narrow_part = [&](std::size_t k) {
      return slice(entry.states[k].narrow, first, specs[k].elements);
    };
    state_spans<O, float> states;
    for (std::size_t k = 0; k < states.size(); ++k) {
      states[k] = is_exact(specs[k]) ? slice(entry.states[k].exact, first, specs[k].elements)
                                     : detail::widened(backend, narrow_part(k), scratch);
    }
    context.workspace = scratch.rest();
    optimizer.update(backend, states, parameter, gradient, context);
    for (std::size_t k = 0; k < states.size(); ++k) {
      if (is_exact(specs[k])) continue;
      detail::write_back(backend, states[k], narrow_part(k), stream(entry, k + 1, context),
                         entry.offset + first);
    }
  }

  template <class O>
  [[nodiscard]] std::uint64_t stream(const held_state<O>& entry, std::size_t value,
                                     const update_context<float>& context) const {
    return rounding_stream{context_.options.rounding_seed, entry.item, value, context.step}.key();
  }

  Context& context_;
  members optimizers_;
  typename entries_of<members>::type entries_;
  typename Context::template storage<float> exact_;
  typename Context::template storage<narrow_state> narrow_;
  typename Context::template storage<float> scratch_;
  typename Context::template storage<reduced> gathered_;  // a whole gradient
};

}  // namespace mfsdp::inline MFSDP_ABI
