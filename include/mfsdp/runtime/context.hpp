// What the parts of the runtime share: plan, collectives, backend, options, and the accounts that
// are kept of memory and traffic.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "mfsdp/collective/counting.hpp"
#include "mfsdp/concepts.hpp"
#include "mfsdp/plan.hpp"
#include "mfsdp/precision.hpp"

namespace mfsdp::inline MFSDP_ABI {

// Why a unit is acquired. Forward is followed by a backward over the same units, evaluate is not.
enum class pass { forward, backward, evaluate };

// What the last step did to a part of a tensor that this rank holds: a matrix, a row group, a slice
// of a stack, or a piece.
struct update_size {
  std::string_view tensor;
  index_t offset = 0;  // of the part, from the start of the tensor
  index_t elements = 0;
  double sum_of_squares = 0;  // of the change, before it is rounded to the type of the parameter

  [[nodiscard]] double root_mean_square() const {
    return elements == 0 ? 0 : std::sqrt(sum_of_squares / static_cast<double>(elements));
  }
};

// When something was moved; sync is what moves between sites, checkpoint what ranks tell each other
// of one (nothing of what is in it).
enum class phase : std::size_t {
  setup,
  forward,
  backward,
  evaluate,
  clip,
  step,
  sum,
  sync,
  checkpoint
};
inline constexpr std::size_t phases = 9;

// What memory is for.
enum class memory_kind : std::size_t {
  parameters,  // this rank's shard, and its master copy
  gradients,   // of this rank's shard
  optimizer_states,
  unit_buffers,      // whole units between acquire and release, one for each slot
  held_buffers,      // tied tensors and their gradients, whole
  gradient_buffers,  // whole gradients of two units on their way to the owners, and what is on its
                     // way between replicas
  exchange_buffers,  // what is on its way between sites
  workspace,         // scratch of the optimizers and of conversions
};
inline constexpr std::size_t memory_kinds = 8;

[[nodiscard]] constexpr std::string_view to_string(memory_kind kind) {
  constexpr std::array<std::string_view, memory_kinds> names{
      "parameters",   "gradients",        "optimizer states", "unit buffers",
      "held buffers", "gradient buffers", "exchange buffers", "workspace"};
  return names[static_cast<std::size_t>(kind)];
}

// Bytes alive on this rank, by purpose. Everything is allocated before the first step.
struct memory_usage {
  std::array<std::int64_t, memory_kinds> bytes{};

  [[nodiscard]] std::int64_t operator[](memory_kind kind) const {
    return bytes[static_cast<std::size_t>(kind)];
  }
  [[nodiscard]] std::int64_t total() const {
    return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  }
  // What stays between steps: the part that sharding divides by the number of shard ranks.
  [[nodiscard]] std::int64_t resident() const {
    return (*this)[memory_kind::parameters] + (*this)[memory_kind::gradients] +
           (*this)[memory_kind::optimizer_states];
  }
};

enum class model_event {
  gather_start,   // a group's gather is posted
  gather_finish,  // its parameters are complete in the unit buffer
  acquire,        // the trainer may read a unit
  release,
  reduce_start,
  reduce_finish,
  skip,  // a tensor, or a part of it, that the step left as it was: its gradient was not finite
  step,
};

struct model_options {
  // Units whose gather is started ahead of the one in use. Costs one unit buffer each. A trainer
  // that acquires the next unit before it releases this one needs one more for the same overlap:
  // sharded_model::gathers().late counts the gathers that nothing hid.
  int prefetch = 1;
  // Whether a unit is dropped between its forward and its backward. If not, every unit has its own
  // buffer and is gathered once a step.
  bool reshard_after_forward = true;
  // Deadline of every wait; positive.
  std::chrono::milliseconds timeout = std::chrono::minutes(2);
  // Threads of this rank that share out the updates of a step, one parameter each; positive. Each
  // has a scratch and a copy of the backend of its own. For ranks that have several cores; results
  // do not depend on it.
  int update_threads = 1;
  // Whether step() measures what it changes, for sharded_model::updates(). Costs two passes over
  // the parameters and scratch for the largest of them.
  bool measure_updates = false;
  // Of stochastic rounding, where the precision has any; equal on all ranks.
  std::uint64_t rounding_seed = 0;
  // Called on the rank's own thread with each event and the name of the group or unit; must not
  // throw.
  std::function<void(model_event, std::string_view)> observer{};
};

template <class Axes, class Memory, class Precision>
class runtime_context {
  using shard_axis = std::remove_cvref_t<decltype(std::declval<Axes&>().shard)>;
  using replicate_axis = std::remove_cvref_t<decltype(std::declval<Axes&>().replicate)>;

 public:
  using site_axis = std::remove_cvref_t<decltype(std::declval<Axes&>().site)>;
  static constexpr bool elastic = ElasticCollective<site_axis>;  // sites come and go
  using precision = Precision;
  template <class T>
  using storage = decltype(std::declval<Memory&>().template allocate<T>(index_t{1}));
  using request = typename shard_axis::request;
  using replica_request = typename replicate_axis::request;

  runtime_context(mfsdp::plan the_plan, const Axes& axes, Memory memory_backend,
                  model_options the_options)
      : plan(std::move(the_plan)),
        collective(axes.shard),
        replicas(axes.replicate),
        sites(axes.site),
        backend(std::move(memory_backend)),
        options(std::move(the_options)) {}
  runtime_context(const runtime_context&) = delete;
  runtime_context& operator=(const runtime_context&) = delete;

  // In the plan, which is of one shard group.
  [[nodiscard]] int rank() const { return collective.rank(); }
  [[nodiscard]] deadline until() const { return deadline_after(options.timeout); }

  // Errors: whatever the backend throws when memory is short.
  template <class T>
  [[nodiscard]] storage<T> allocate(memory_kind kind, index_t elements) {
    storage<T> fresh = backend.template allocate<T>(elements);
    poison(fresh.span());
    usage.bytes[static_cast<std::size_t>(kind)] += elements * index_t{sizeof(T)};
    return fresh;
  }

  // Makes any use of undefined contents show up as NaN, in checked builds.
  template <class T>
  void poison(std::span<T> undefined) {
    if constexpr (checked) backend.fill(undefined, std::numeric_limits<T>::quiet_NaN());
  }

  [[nodiscard]] std::size_t group_of(const local_segment& segment) const {
    return plan.tensors[plan.items[segment.item].tensor].group;
  }

  // Books what has been moved since the last call to this phase.
  void book(phase where) {
    traffic total = collective.total();
    total += replicas.total();
    total += sites.total();
    moved[static_cast<std::size_t>(where)] += total - booked_;
    booked_ = total;
  }

  void observe(model_event what, std::string_view name) const noexcept {
    if (options.observer) options.observer(what, name);
  }

  const mfsdp::plan plan;
  counting<shard_axis> collective;
  counting<replicate_axis> replicas;  // ranks that hold the same
  counting<site_axis> sites;          // all ranks of all sites
  Memory backend;
  const model_options options;
  memory_usage usage;
  std::array<traffic, phases> moved{};

 private:
  traffic booked_;
};

namespace detail {

inline void require_in_unit(const unit_spec& unit, std::size_t position) {
  if (position < unit.tensors.size()) return;
  throw usage_error(fmt::format("unit '{}' has {} tensors, there is no tensor {}", unit.name,
                                unit.tensors.size(), position));
}

// The position of a tensor among those of a unit.
[[nodiscard]] inline std::size_t find_in_unit(const unit_spec& unit, std::string_view name) {
  for (std::size_t i = 0; i < unit.tensors.size(); ++i) {
    if (unit.tensors[i].name == name) return i;
  }
  std::string known;
  for (const tensor_reference& reference : unit.tensors) known += " '" + reference.name + "'";
  throw usage_error(fmt::format("unit '{}' has no tensor '{}'; it has{}", unit.name, name, known));
}

}  // namespace detail

}  // namespace mfsdp::inline MFSDP_ABI
