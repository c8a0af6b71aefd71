// The life of a unit's parameters: sharded -> gathering -> gathered -> in use -> released.
//
// A unit always lives in the same slot, so that its tensors have the same addresses in forward and
// backward; what is in the slot between release and the next acquire is undefined.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mfsdp/runtime/context.hpp"

namespace mfsdp::inline MFSDP_ABI {

// How often a gather was posted, and whether it was posted early.
struct gather_counts {
  std::int64_t ahead = 0;    // before the unit was asked for
  std::int64_t late = 0;     // when the unit was asked for
  std::int64_t dropped = 0;  // ahead, but another unit was asked for first
};

template <class Context>
class unit_parameters {
 public:
  using element = typename Context::precision::compute;

  explicit unit_parameters(Context& context) : context_(context) {
    const plan& plan = context_.plan;
    index_t shard_elements = 0;
    for (const transfer_group& group : plan.groups) {
      shard_elements += group.parameters.shard_elements[rank()];
    }
    shard_ = context_.template allocate<element>(memory_kind::parameters, shard_elements);
    allocate_slots();

    groups_.resize(plan.groups.size());
    index_t begin = 0;
    std::size_t ordinal = 0;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const transfer_group& layout = plan.groups[g];
      group_state& group = groups_[g];
      group.shard = slice(shard_.span(), begin, layout.parameters.shard_elements[rank()]);
      begin += layout.parameters.shard_elements[rank()];
      if (layout.resident) {
        group.full = group.shard;
        group.gathered = true;
      } else if (layout.held) {
        held_.push_back(context_.template allocate<element>(memory_kind::held_buffers,
                                                            layout.parameters.full_elements));
        group.full = held_.back().span();
      } else {
        group.slot = ordinal++ % slots_.size();
        group.full = slice(slots_[*group.slot].buffer.span(), 0, layout.parameters.full_elements);
      }
    }

    for (const unit_spec& unit : plan.spec.units()) {
      std::vector<const element*>& pointers = pointers_.emplace_back();
      for (const tensor_reference& reference : unit.tensors) {
        const tensor_slot& slot = plan.tensors[reference.tensor];
        pointers.push_back(groups_[slot.group].full.data() + slot.offset);
      }
    }
  }

  // The parameters of plan.local_segments[i], which is on this rank.
  [[nodiscard]] std::span<element> segment(std::size_t i) {
    const local_segment& segment = context_.plan.local_segments[i];
    return slice(groups_[context_.group_of(segment)].shard, segment.local, segment.count);
  }

  // Addresses of a unit's tensors, in order of registration; the same for the model's whole life.
  [[nodiscard]] std::span<const element* const> pointers(std::size_t unit) const {
    return pointers_[unit];
  }

  [[nodiscard]] const gather_counts& counts() const { return counts_; }

  // Makes a unit readable. Posts its gather if nobody did, then the gathers of the units that come
  // next, then waits. Errors: usage_error if another unit that is still in use has the slot.
  void acquire(std::size_t unit, pass why) {
    for (const std::size_t g : context_.plan.unit_groups[unit]) start(g, why);
    prefetch_after(unit, why);
    for (const std::size_t g : context_.plan.unit_groups[unit]) finish(g);
    for (const std::size_t g : context_.plan.unit_groups[unit]) {
      groups_[g].expected = false;
      ++groups_[g].users;
    }
    context_.observe(model_event::acquire, context_.plan.spec.units()[unit].name);
  }

  void release(std::size_t unit, pass why) {
    const bool keep_for_backward =
        why == pass::forward && (!context_.options.reshard_after_forward ||
                                 (context_.options.prefetch > 0 && is_last(unit)));
    for (const std::size_t g : context_.plan.unit_groups[unit]) {
      group_state& group = groups_[g];
      if (--group.users == 0 && !keep_for_backward) forget(g);
    }
    context_.observe(model_event::release, context_.plan.spec.units()[unit].name);
  }

  // The first unit that the trainer has not released.
  [[nodiscard]] std::optional<std::string_view> in_use() const {
    for (std::size_t unit = 0; unit < context_.plan.unit_groups.size(); ++unit) {
      for (const std::size_t g : context_.plan.unit_groups[unit]) {
        if (groups_[g].users > 0) return context_.plan.spec.units()[unit].name;
      }
    }
    return std::nullopt;
  }

  // Lets gathers in flight move on without blocking.
  void progress() {
    for (group_state& group : groups_) {
      if (group.in_flight && group.gather.test()) complete(group);
    }
  }

  // Waits until no rank reads this rank's shard any more, so that it may be written.
  void quiesce() {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      drop(g);
      groups_[g].gather.drain(context_.until());
    }
  }

  // The shards have new values: what was gathered is out of date.
  void invalidate() {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (context_.plan.groups[g].resident) continue;
      groups_[g].gathered = false;
      context_.poison(groups_[g].full);
    }
  }

 private:
  using storage = typename Context::template storage<element>;
  using request = typename Context::request;

  struct slot_state {
    storage buffer;
    std::optional<std::size_t> occupant{};
  };

  struct group_state {
    std::span<element> shard;
    std::span<element> full;
    std::optional<std::size_t> slot{};
    int users = 0;
    bool gathered = false;
    bool in_flight = false;
    bool expected = false;  // posted, and not acquired since
    request gather{};       // the last one; drained before the shard is written
  };

  [[nodiscard]] std::size_t rank() const { return static_cast<std::size_t>(context_.rank()); }

  // Slot i holds every k-th unit and is as large as the largest of them.
  void allocate_slots() {
    std::vector<index_t> sizes;
    for (const transfer_group& group : context_.plan.groups) {
      if (!group.resident && !group.held) sizes.push_back(group.parameters.full_elements);
    }
    std::size_t count = sizes.size();
    if (context_.options.reshard_after_forward) {
      count = std::min(count, static_cast<std::size_t>(context_.options.prefetch) + 1);
    }
    for (std::size_t slot = 0; slot < count; ++slot) {
      index_t largest = 0;
      for (std::size_t i = slot; i < sizes.size(); i += count)
        largest = std::max(largest, sizes[i]);
      slots_.push_back({context_.template allocate<element>(memory_kind::unit_buffers, largest)});
    }
  }

  [[nodiscard]] bool is_last(std::size_t unit) const {
    return unit + 1 == context_.plan.unit_groups.size();
  }

  // The unit that a trainer in forward order, then backward order, asks for next.
  [[nodiscard]] std::optional<std::pair<std::size_t, pass>> successor(std::size_t unit,
                                                                      pass why) const {
    if (why == pass::backward) {
      if (unit == 0) return std::nullopt;
      return std::pair{unit - 1, why};
    }
    if (!is_last(unit)) return std::pair{unit + 1, why};
    if (why == pass::evaluate) return std::nullopt;
    return std::pair{unit, pass::backward};
  }

  void prefetch_after(std::size_t unit, pass why) {
    auto next = std::optional(std::pair{unit, why});
    for (int distance = 0; distance < context_.options.prefetch; ++distance) {
      next = successor(next->first, next->second);
      if (!next) return;
      for (const std::size_t g : context_.plan.unit_groups[next->first]) {
        if (slot_is_free(g)) start(g, next->second, counts_.ahead);
      }
    }
  }

  // Whether a gather ahead of time would disturb nobody. The answer follows from the calls so far,
  // not from what has arrived, so that all ranks start the same gathers.
  [[nodiscard]] bool slot_is_free(std::size_t g) const {
    if (!groups_[g].slot) return true;
    const auto occupant = slots_[*groups_[g].slot].occupant;
    return !occupant || *occupant == g ||
           (groups_[*occupant].users == 0 && !groups_[*occupant].expected);
  }

  void start(std::size_t g, pass why) { start(g, why, counts_.late); }

  void start(std::size_t g, pass why, std::int64_t& counter) {
    group_state& group = groups_[g];
    if (group.gathered || group.in_flight) return;
    if (group.slot) take_slot(g);
    const transfer_group& layout = context_.plan.groups[g];
    if (layout.parameters.pieces.empty()) {
      group.gathered = true;
      return;
    }
    context_.observe(model_event::gather_start, layout.name);
    group.gather.drain(context_.until());  // long over; its destructor would have no deadline
    group.gather = context_.collective.start_all_gather(
        std::span<const element>(group.shard), group.full, layout.parameters.pieces, layout.name);
    group.in_flight = true;
    group.expected = true;
    ++counter;
    context_.book(why == pass::forward    ? phase::forward
                  : why == pass::backward ? phase::backward
                                          : phase::evaluate);
  }

  void take_slot(std::size_t g) {
    slot_state& slot = slots_[*groups_[g].slot];
    if (slot.occupant && *slot.occupant != g) {
      const std::size_t other = *slot.occupant;
      if (groups_[other].users > 0) {
        throw usage_error(fmt::format(
            "unit '{}' needs the buffer of unit '{}', which is not released; release it first or "
            "raise model_options.prefetch from {} to hold more units at once",
            context_.plan.groups[g].name, context_.plan.groups[other].name,
            context_.options.prefetch));
      }
      drop(other);
      groups_[other].gathered = false;
    }
    slot.occupant = g;
  }

  // Ends the wait for an acquire that does not come.
  void drop(std::size_t g) {
    finish(g);
    counts_.dropped += groups_[g].expected ? 1 : 0;
    groups_[g].expected = false;
  }

  void finish(std::size_t g) {
    if (!groups_[g].in_flight) return;
    groups_[g].gather.wait(context_.until());
    complete(groups_[g]);
  }

  void complete(group_state& group) {
    group.in_flight = false;
    group.gathered = true;
    context_.observe(model_event::gather_finish,
                     context_.plan.groups[static_cast<std::size_t>(&group - groups_.data())].name);
  }

  void forget(std::size_t g) {
    const transfer_group& layout = context_.plan.groups[g];
    if (layout.resident || layout.held) return;
    groups_[g].gathered = false;
    context_.poison(groups_[g].full);
  }

  Context& context_;
  storage shard_;
  std::vector<slot_state> slots_;
  std::vector<storage> held_;
  std::vector<group_state> groups_;
  std::vector<std::vector<const element*>> pointers_;  // by unit
  gather_counts counts_;
};

}  // namespace mfsdp::inline MFSDP_ABI
