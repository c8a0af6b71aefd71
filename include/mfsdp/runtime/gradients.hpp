// The life of a unit's gradients: written whole by the trainer, then summed to where the parameters
// live. Two whole units at most are on their way at a time.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mfsdp/runtime/context.hpp"
#include "mfsdp/runtime/replicas.hpp"

namespace mfsdp::inline MFSDP_ABI {

// Where the trainer puts one gradient.
template <class T>
struct gradient_view : matrix_view<T> {
  bool accumulate = false;  // tied: add to what is there; if false, every element must be written
};

template <class Context, bool Replicated>
class unit_gradients {
 public:
  using element = typename Context::precision::gradient;    // what the trainer writes
  using sum_element = typename Context::precision::reduce;  // what the owner keeps

  explicit unit_gradients(Context& context) : context_(context), replicas_(context) {
    const plan& plan = context_.plan;
    groups_.resize(plan.groups.size());
    index_t shard_elements = 0;
    index_t largest = 0;
    for (const transfer_group& layout : plan.groups) {
      if (layout.gradients.pieces.empty()) continue;
      shard_elements += layout.gradients.shard_elements[rank()];
      if (!layout.held) largest = std::max(largest, layout.gradients.full_elements);
    }
    shard_ = context_.template allocate<sum_element>(memory_kind::gradients, shard_elements);
    for (int i = 0; i < 2; ++i) {
      buffers_.push_back(
          {context_.template allocate<element>(memory_kind::gradient_buffers, largest)});
    }
    index_t begin = 0;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const transfer_group& layout = plan.groups[g];
      if (layout.gradients.pieces.empty()) continue;
      group_state& group = groups_[g];
      group.shard = slice(shard_.span(), begin, layout.gradients.shard_elements[rank()]);
      begin += layout.gradients.shard_elements[rank()];
      for (const piece& p : layout.gradients.pieces) {
        // Every rank holds the same pieces of a replicated group; an all-reduce names them once.
        if (!Replicated || p.rank == 0) group.pieces.push_back(p);
      }
      if (layout.held) {
        group.own_buffer = buffers_.size();
        buffers_.push_back({context_.template allocate<element>(memory_kind::held_buffers,
                                                                layout.gradients.full_elements)});
      }
    }
  }

  // The sum over all ranks of the gradients of plan.local_segments[i], which is on this rank and
  // trainable; valid after finish().
  [[nodiscard]] std::span<sum_element> segment(std::size_t i) {
    const local_segment& segment = context_.plan.local_segments[i];
    return slice(groups_[context_.group_of(segment)].shard, segment.gradient, segment.count);
  }

  // Hands out buffers for the gradients of a unit. Errors: usage_error if the gradients of two
  // other units have been asked for and not reduced.
  void open(std::size_t unit) {
    for (const std::size_t g : context_.plan.unit_groups[unit]) {
      group_state& group = groups_[g];
      if (group.pieces.empty()) continue;
      const transfer_group& layout = context_.plan.groups[g];
      if (!group.buffer) {
        claim_buffer(g);
        // Several units add to a tied tensor, in whatever order they come.
        if (layout.held)
          context_.backend.fill(buffers_[*group.buffer].memory.span(), element(0.0f));
      } else if (!layout.held) {
        throw usage_error(
            fmt::format("the gradients of unit '{}' are handed out already; keep the first handle "
                        "until reduce()",
                        layout.name));
      }
    }
  }

  // Where the gradient of the i-th tensor of a unit goes; empty if the tensor is frozen or empty. A
  // tied tensor starts at zero and is always added to.
  [[nodiscard]] gradient_view<element> view(std::size_t unit, std::size_t i) {
    const std::size_t tensor = context_.plan.spec.units()[unit].tensors[i].tensor;
    const tensor_slot& slot = context_.plan.tensors[tensor];
    if (slot.optimizer < 0) return {};
    const group_state& group = groups_[slot.group];
    if (group.pieces.empty()) return {{nullptr, context_.plan.spec.tensors()[tensor].shape()}};
    if (!group.buffer) {
      throw usage_error(fmt::format("the gradients of unit '{}' are reduced and may not be written",
                                    context_.plan.spec.units()[unit].name));
    }
    element* data = buffers_[*group.buffer].memory.span().data() + slot.gradient_offset;
    return {{data, context_.plan.spec.tensors()[tensor].shape()},
            context_.plan.groups[slot.group].held};
  }

  // Starts the sum over ranks. A tied tensor is summed when all of its units have come here.
  // Errors: usage_error if the unit was not opened, or came here before.
  void reduce(std::size_t unit) {
    for (const std::size_t g : context_.plan.unit_groups[unit]) {
      group_state& group = groups_[g];
      if (group.pieces.empty()) continue;
      const std::string& name = context_.plan.spec.units()[unit].name;
      if (!group.buffer) {
        throw usage_error(fmt::format("the gradients of unit '{}' are reduced twice", name));
      }
      const transfer_group& layout = context_.plan.groups[g];
      if (std::ranges::find(group.visitors, unit) != group.visitors.end()) {
        throw usage_error(fmt::format(
            "unit '{}' is reduced twice before the other units that use the tied tensor '{}'", name,
            layout.name));
      }
      group.visitors.push_back(unit);
      if (group.visitors.size() < layout.units.size()) continue;
      group.visitors.clear();
      launch(g);
    }
  }

  // Lets reductions in flight move on without blocking.
  void progress() {
    for (const std::size_t i : in_flight_) {
      if (!buffers_[i].reduction.test()) return;
    }
  }

  // Waits for all sums, then adds up replicas, at the first call since the last step: not before,
  // so that micro-batches move nothing between them. So a sum is over the ranks of a shard group in
  // order, then over micro-batches, then over replicas in order. Errors: usage_error naming what
  // was opened and not reduced, or never reduced since the last step.
  void finish() {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const group_state& group = groups_[g];
      if (group.pieces.empty()) continue;
      const transfer_group& layout = context_.plan.groups[g];
      if (!group.visitors.empty()) {
        for (const std::size_t unit : layout.units) {
          if (std::ranges::find(group.visitors, unit) != group.visitors.end()) continue;
          throw usage_error(fmt::format("tied tensor '{}': unit '{}' has not reduced its gradient",
                                        layout.name, context_.plan.spec.units()[unit].name));
        }
      }
      if (group.buffer) {
        throw usage_error(
            fmt::format("the gradients of '{}' were handed out but not reduced", layout.name));
      }
      if (!group.reduced) {
        throw usage_error(fmt::format(
            "'{}' has no gradient since the last step (clip comes before step); a rank that "
            "computes none must still call gradients(unit), zero() and reduce(), as all ranks do",
            layout.name));
      }
    }
    quiesce();
    if (finished_) return;
    replicas_.run([this](std::size_t g) { return groups_[g].shard; });
    finished_ = true;
  }

  // Of what there is a gradient since the last step, written or being written, if of anything.
  [[nodiscard]] std::optional<std::string_view> pending() const {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].buffer || groups_[g].reduced || !groups_[g].visitors.empty()) {
        return context_.plan.groups[g].name;
      }
    }
    return std::nullopt;
  }

  // Waits for the sums that are in flight.
  void quiesce() {
    while (!in_flight_.empty()) retire_oldest();
  }

  // The gradients are used up or given up: the next reduction overwrites them.
  void clear() {
    quiesce();
    finished_ = false;
    for (group_state& group : groups_) {
      group.buffer.reset();
      group.visitors.clear();
      group.reduced = false;
      context_.poison(group.shard);
    }
  }

 private:
  using request = typename Context::request;

  struct buffer_state {
    typename Context::template storage<element> memory;
    std::size_t group = 0;  // that had it last
    request reduction{};
  };

  struct group_state {
    std::span<sum_element> shard;
    std::vector<piece> pieces;
    std::optional<std::size_t> own_buffer{};  // of a tied tensor
    std::optional<std::size_t> buffer{};      // while the trainer writes it
    bool reduced = false;                     // since the last step
    std::vector<std::size_t> visitors;        // units that have reduced a tied tensor
  };

  [[nodiscard]] std::size_t rank() const { return static_cast<std::size_t>(context_.rank()); }

  void claim_buffer(std::size_t g) {
    group_state& group = groups_[g];
    std::size_t chosen = 0;
    if (group.own_buffer) {
      chosen = *group.own_buffer;
    } else {
      chosen = next_buffer_;
      if (is_open(chosen)) chosen = 1 - chosen;
      if (is_open(chosen)) {
        throw usage_error(fmt::format(
            "gradients of '{}' were asked for while those of '{}' and '{}' are not reduced; reduce "
            "one of them first",
            context_.plan.groups[g].name, context_.plan.groups[buffers_[0].group].name,
            context_.plan.groups[buffers_[1].group].name));
      }
      next_buffer_ = 1 - chosen;
    }
    while (std::ranges::find(in_flight_, chosen) != in_flight_.end()) retire_oldest();
    buffers_[chosen].group = g;
    group.buffer = chosen;
  }

  [[nodiscard]] bool is_open(std::size_t i) const { return groups_[buffers_[i].group].buffer == i; }

  void launch(std::size_t g) {
    group_state& group = groups_[g];
    const std::size_t i = *group.buffer;
    buffer_state& buffer = buffers_[i];
    group.buffer.reset();
    const auto into = group.reduced ? reduce_into::add : reduce_into::write;
    group.reduced = true;
    const std::string& name = context_.plan.groups[g].name;
    context_.observe(model_event::reduce_start, name);
    const std::span<const element> full = buffer.memory.span();
    if constexpr (Replicated) {
      buffer.reduction =
          context_.collective.start_all_reduce(full, group.shard, group.pieces, into, name);
    } else {
      buffer.reduction =
          context_.collective.start_reduce_scatter(full, group.shard, group.pieces, into, name);
    }
    in_flight_.push_back(i);
    context_.book(phase::backward);
  }

  // Completes the reduction that was started first, so that its buffer may be written again. Always
  // in order: the second micro-batch of a unit adds to what the first has written.
  void retire_oldest() {
    buffer_state& buffer = buffers_[in_flight_.front()];
    buffer.reduction.wait(context_.until());
    buffer.reduction.drain(context_.until());
    in_flight_.erase(in_flight_.begin());
    context_.poison(buffer.memory.span());
    context_.observe(model_event::reduce_finish, context_.plan.groups[buffer.group].name);
  }

  Context& context_;
  typename Context::template storage<sum_element> shard_;
  std::vector<group_state> groups_;     // outlive the requests, which use their pieces
  std::vector<buffer_state> buffers_;   // two for all units, then one for each tied tensor
  std::vector<std::size_t> in_flight_;  // buffers, in the order of their reductions
  std::size_t next_buffer_ = 0;
  replica_sum<Context> replicas_;
  bool finished_ = false;
};

}  // namespace mfsdp::inline MFSDP_ABI
