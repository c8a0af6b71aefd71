// Optimizer states of this rank's shard, one container for each optimizer of the set, and the step.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "mfsdp/kernel.hpp"
#include "mfsdp/planner.hpp"
#include "mfsdp/runtime/context.hpp"
#include "mfsdp/runtime/crew.hpp"
#include "mfsdp/runtime/sites.hpp"
#include "mfsdp/runtime/widen.hpp"

namespace mfsdp::inline MFSDP_ABI {

// What one step knows.
struct step_request {
  std::int64_t step = 1;  // of the model
  double learning_rate_scale = 1;
  const std::vector<bool>* left_out = nullptr;  // by item, if all gradients have been judged
};

// What a step has done with the gradient of an entry: used it, left out a part of it and what that
// is of, or updated without it, from means over other sites.
enum class update_result { complete, skipped, from_others };

template <class Context, class Optimizers>
class optimizer_states {
 public:
  // `parameter(i)` and `gradient(i)` are the masters and gradients of plan.local_segments[i], which
  // is on this rank.
  template <class Parameter, class Gradient>
  optimizer_states(Context& context, const Optimizers& optimizers, Parameter&& parameter,
                   Gradient&& gradient)
      : context_(context),
        optimizers_(optimizer_members(optimizers)),
        crew_(context.options.update_threads) {
    for_each_optimizer([&](const auto& optimizer, auto& entries, int which) {
      collect(optimizer, entries, which, parameter, gradient);
    });
    allocate_states();
    allocate_scratch();
    list_updates();
    list_meetings();
  }
  optimizer_states(const optimizer_states&) = delete;
  optimizer_states& operator=(const optimizer_states&) = delete;

  // Whether the optimizer of an item can use a gradient with this sum of squares.
  [[nodiscard]] bool accepts(std::size_t item, double sum_of_squares) const {
    const std::size_t tensor = context_.plan.items[item].tensor;
    bool usable = false;
    detail::with_member(optimizers_,
                        static_cast<std::size_t>(context_.plan.tensors[tensor].optimizer),
                        [&]<class O>(const O&) { usable = is_usable<O>(sum_of_squares); });
    return usable;
  }

  // Begins anew: no updates yet, and the first states, zero but for optimizers that derive them
  // from the parameters. Cost: that of their start().
  void start() {
    context_.backend.fill(exact_.span(), 0.0f);
    context_.backend.fill(narrow_.span(), narrow_state(0.0f));
    for_each_optimizer([&]<class O>(const O& optimizer, auto& entries, int) {
      for (auto& entry : entries) entry.step = 0;
      if constexpr (meets_sites<O>) {
        const auto first = [&](auto& backend, const auto& states, auto parameter, auto,
                               const auto& context) {
          if constexpr (requires { optimizer.start(backend, states, parameter, context); }) {
            optimizer.start(backend, states, parameter, context);
          }
        };
        for (auto& entry : entries) {
          for_each_part_of(workers_.front(), optimizer, entry, false, {.step = 0}, first);
        }
      }
    });
  }

  // What a site that joins takes from another: adds the states that this rank holds to `values` and
  // the counts of their updates to `counts`, in the same order on all sites.
  void collect_shared(std::vector<std::span<float>>& values, std::vector<std::int64_t*>& counts) {
    for_each_optimizer([&]<class O>(const O&, auto& entries, int) {
      if constexpr (meets_sites<O>) {
        for (auto& entry : entries) {
          counts.push_back(&entry.step);
          for (const stored_state& state : entry.states) values.push_back(state.exact);
        }
      }
    });
  }

  // After that: resets what belongs to one site only. `step`: steps of the model so far.
  void join(std::int64_t step) {
    for_each_optimizer([&]<class O>(const O& optimizer, auto& entries, int) {
      if constexpr (meets_sites<O>) {
        const auto reset = [&](auto& backend, const auto& states, auto parameter, auto,
                               const auto& context) {
          if constexpr (requires { optimizer.join(backend, states, parameter, context); }) {
            optimizer.join(backend, states, parameter, context);
          }
        };
        for (auto& entry : entries) {
          for_each_part_of(workers_.front(), optimizer, entry, false, {.step = step}, reset);
        }
      }
    });
  }

  // What one call of exchange can exchange at most, in elements.
  [[nodiscard]] index_t exchangeable() {
    index_t elements = 0;
    for_each_optimizer([&]<class O>(const O& optimizer, auto& entries, int) {
      if constexpr (meets_sites<O>) {
        for (const auto& entry : entries) {
          elements += entry.shape.elements();
          for (const state_spec& state : optimizer.states(entry.shape)) elements += state.elements;
        }
      }
    });
    return elements;
  }

  // The exchanges of one step with other sites, those before its updates or those after them; the
  // former come first in every step. Whether there were any.
  template <class Sites>
  bool exchange(Sites& sites, bool before, const step_request& now) {
    const auto rounds_of = [before](const meeting& m) {
      return before ? m.rounds_before : m.rounds_after;
    };
    int rounds = 0;
    for (const meeting& m : meetings_) rounds = std::max(rounds, rounds_of(m));
    if (before && rounds > 0) {
      run(meetings_.size(), [&](std::size_t i, worker& by) { meetings_[i].judge(by, now); });
    }
    bool met = false;
    for (int round = 0; round < rounds; ++round) {
      std::size_t count = 0;
      for (std::size_t i = 0; i < meetings_.size(); ++i) {
        const meeting& m = meetings_[i];
        if (round >= rounds_of(m)) continue;
        const int number = before ? round : m.rounds_before + round;
        contribution& own = contributions_[count];
        own.values.clear();
        own.equal.clear();
        if (!m.exchanges(own, number, now)) continue;
        due_[count++] = {i, number};
      }
      if (count == 0) continue;
      met = true;
      // What is not usable would stay in the states.
      run(count, [&](std::size_t i, worker& by) {
        if (contributions_[i].counts) meetings_[due_[i].meeting].contribute(by, due_[i].round, now);
      });
      sites.average(std::span(contributions_).first(count), now.step);
      run(count, [&](std::size_t i, worker& by) {
        meetings_[due_[i].meeting].adopt(by, due_[i].round, now, contributions_[i].heard);
      });
      if constexpr (checked) sites.require_equal(std::span(contributions_).first(count), now.step);
    }
    return met;
  }

  // Updates everything that this rank holds. Moves nothing, unless an optimizer gathers matrices.
  // A gradient that its optimizer cannot use leaves parameter and states as they are: all of a
  // matrix of a matrix optimizer, otherwise blocks of block_elements. So no rank has to ask
  // another, and cuts between blocks change nothing. If the step is told which items to leave out,
  // it looks no further.
  void step(const step_request& now) {
    run(updates_.size(), [&](std::size_t i, worker& by) { updates_[i](by, now); });
    for_each_optimizer([&]<class O>(const O& optimizer, auto& entries, int) {
      if constexpr (GathersMatrices<O>) {
        for (auto& entry : entries) update_gathered(optimizer, entry, now);
      }
    });
  }

  // Calls visit(item, k, first, values) for each state that this rank holds: the k-th of an item,
  // from which of its elements on.
  template <class Visit>
  void for_each_state_held(Visit&& visit) {
    for_each_optimizer([&](const auto&, auto& entries, int) {
      for (auto& entry : entries) {
        for (std::size_t k = 0; k < entry.states.size(); ++k) {
          stored_state& state = entry.states[k];
          if (!state.narrow.empty()) {
            visit(entry.item, k, entry.offset, state.narrow);
          } else {
            visit(entry.item, k, entry.offset, state.exact);
          }
        }
      }
    });
  }

  // The counts of updates by item, zero where this rank holds nothing of it; and the other way.
  void read_counts(std::vector<std::int64_t>& updates) {
    for_each_optimizer([&](const auto&, auto& entries, int) {
      for (const auto& entry : entries) updates[entry.item] = entry.step;
    });
  }
  void write_counts(const std::vector<std::int64_t>& updates) {
    for_each_optimizer([&](const auto&, auto& entries, int) {
      for (auto& entry : entries) entry.step = updates[entry.item];
    });
  }

  // Whether an item's optimizer takes the mean of other sites where this one's gradient is of no
  // use.
  [[nodiscard]] bool takes_means(std::size_t item) const {
    const std::size_t tensor = context_.plan.items[item].tensor;
    bool takes = false;
    detail::with_member(optimizers_,
                        static_cast<std::size_t>(context_.plan.tensors[tensor].optimizer),
                        [&]<class O>(const O&) { takes = meets_sites<O> && updates_from_mean<O>; });
    return takes;
  }

  // Calls visit(entry's item, what became of it, its update_size) for all that this rank holds,
  // after a step.
  template <class Visit>
  void for_each_update(Visit&& visit) {
    for_each_optimizer([&](const auto&, auto& entries, int) {
      for (const auto& entry : entries) {
        const placement_item& item = context_.plan.items[entry.item];
        visit(entry.item, entry.result,
              update_size{item.name, item.offset + entry.offset + entry.own_offset,
                          std::ssize(entry.parameter), entry.change});
      }
    });
  }

  // Free between steps. If parameters or sums of gradients are not stored as float, there is room
  // for detail::widened_part elements or for this rank's longest segment.
  [[nodiscard]] std::span<float> scratch() { return workers_.front().scratch.span(); }

 private:
  using precision = typename Context::precision;
  using master = typename precision::master;
  using reduced = typename precision::reduce;
  using narrow_state = typename precision::state;

  template <class O>
  static constexpr bool meets_sites = PeriodicOptimizer<O> && detail::is_float<master>;
  template <class O>
  static constexpr bool updates_from_mean = requires { requires O::updates_from_mean; };
  template <class O>
  static constexpr bool judges_before = [] {
    if constexpr (meets_sites<O>) return O::rounds_before_update > 0;
    return false;
  }();

  // What a thread has for itself: backends are called from one thread at a time.
  struct worker {
    decltype(Context::backend) backend;
    typename Context::template storage<float> scratch;
  };

  // One state of one parameter, in one of two types; the other span is empty.
  struct stored_state {
    std::span<float> exact{};
    std::span<narrow_state> narrow{};
  };

  // One update: a whole matrix, or one piece of an elementwise tensor.
  template <class O>
  struct held_state {
    std::size_t item;
    std::size_t segment = 0;  // of plan.local_segments, unless gathered
    matrix_shape shape{};     // of what is updated
    index_t offset = 0;       // of that, from the start of the item
    std::span<master> parameter{};
    std::span<const reduced> gradient{};
    std::array<stored_state, std::tuple_size_v<state_spans<O, float>>> states{};
    std::int64_t step = 0;  // updates so far
    // Rules that exchange before the update: whether all of this site's gradient of this step is
    // usable, and whether any site's is.
    bool usable = true;
    bool heard = true;
    update_result result = update_result::complete;  // of the last step
    double change = 0;                               // of that, as a sum of squares, if measured
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

  // A parameter that meets other sites; the functions are those of its optimizer.
  struct meeting {
    std::size_t segment;
    int rounds_before;
    int rounds_after;
    std::function<void(worker&, const step_request&)> judge;
    std::function<bool(contribution&, int round, const step_request&)> exchanges;
    std::function<void(worker&, int round, const step_request&)> contribute;
    std::function<void(worker&, int round, const step_request&, bool heard)> adopt;
  };
  struct due_meeting {
    std::size_t meeting;
    int round;
  };

  // task(i, worker) for each i < tasks, by the crew.
  template <class Task>
  void run(std::size_t tasks, const Task& task) {
    const auto work = [&](std::size_t i, int member) {
      task(i, workers_[static_cast<std::size_t>(member)]);
    };
    crew_.run(tasks, std::cref(work));
  }

  template <class Visit>
  void for_each_optimizer(Visit&& visit) {
    [&]<std::size_t... which>(std::index_sequence<which...>) {
      (visit(std::get<which>(optimizers_), std::get<which>(entries_), static_cast<int>(which)),
       ...);
    }(std::make_index_sequence<std::tuple_size_v<members>>{});
  }

  template <class O, class Parameter, class Gradient>
  void collect(const O& optimizer, std::vector<held_state<O>>& entries, int which,
               Parameter& parameter, Gradient& gradient) {
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
        require_piecewise_states<O>(optimizer, item);
        require_exact_states<O>(optimizer, item);
        entries.push_back({.item = segment.item,
                           .segment = i,
                           .shape = O::whole_matrix ? item.shape : matrix_shape{1, segment.count},
                           .offset = segment.offset});
      }
      if (own) {
        entries.back().parameter = parameter(i);
        entries.back().gradient = gradient(i);
      }
    }
  }

  // Errors: spec_error unless the states of an elementwise optimizer follow the elements.
  template <class O>
  static void require_piecewise_states(const O& optimizer, const placement_item& item) {
    if constexpr (!O::whole_matrix) {
      for (const state_spec& state : optimizer.states(item.shape)) {
        if (state.elements == item.elements()) continue;
        throw spec_error(
            fmt::format("tensor '{}': optimizer '{}' works on pieces, so its state '{}' must have "
                        "an element for "
                        "each of the {}, not {}",
                        item.name, O::name, state.name, item.elements(), state.elements));
      }
    }
  }

  // Errors: spec_error if a state that sites exchange is rounded.
  template <class O>
  static void require_exact_states(const O& optimizer, const placement_item& item) {
    if constexpr (meets_sites<O>) {
      for (const state_spec& state : optimizer.states(item.shape)) {
        if (is_exact(state)) continue;
        throw spec_error(fmt::format(
            "tensor '{}': optimizer '{}' exchanges its states with other sites, so '{}' must be "
            "exact in its state_spec",
            item.name, O::name, state.name));
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
    index_t exact = 0;
    index_t narrow = 0;
    for_each_state([&](const state_spec& state, stored_state&) {
      if (is_exact(state)) {
        exact += detail::aligned_parts<float>::size(state.elements);
      } else {
        narrow += detail::aligned_parts<narrow_state>::size(state.elements);
      }
    });
    exact_ = context_.template allocate<float>(memory_kind::optimizer_states, exact);
    narrow_ = context_.template allocate<narrow_state>(memory_kind::optimizer_states, narrow);
    context_.backend.fill(exact_.span(), 0.0f);
    context_.backend.fill(narrow_.span(), narrow_state(0.0f));
    detail::aligned_parts<float> free_exact(exact_.span());
    detail::aligned_parts<narrow_state> free_narrow(narrow_.span());
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
    for (int i = 0; i < crew_.count(); ++i) {
      workers_.push_back(
          {context_.backend, context_.template allocate<float>(memory_kind::workspace, scratch)});
    }
    gathered_ = context_.template allocate<reduced>(memory_kind::workspace, gathered);
  }

  // What one update of a parameter takes of the scratch.
  template <class O>
  [[nodiscard]] index_t scratch_size(const O& optimizer, matrix_shape shape) const {
    if constexpr (!O::whole_matrix) shape.cols = std::min(shape.cols, detail::widened_part);
    index_t size = detail::widened_size<reduced>(shape.elements());
    size += GathersMatrices<O> ? detail::scratch_space::size(shape.elements())
                               : detail::widened_size<master>(shape.elements());
    if (context_.options.measure_updates) size += detail::scratch_space::size(shape.elements());
    for (const state_spec& state : optimizer.states(shape)) {
      if (!is_exact(state)) size += detail::widened_size<narrow_state>(state.elements);
    }
    return size + optimizer.workspace_size(shape);
  }

  // Updates that move nothing, the longest first and equal shapes in a row.
  void list_updates() {
    struct task {
      index_t flops;
      matrix_shape shape;
      std::function<void(worker&, const step_request&)> run;
    };
    std::vector<task> tasks;
    for_each_optimizer([&]<class O>(const O& optimizer, auto& entries, int) {
      if constexpr (!GathersMatrices<O>) {
        for (auto& entry : entries) {
          tasks.push_back(
              {optimizer.flops(entry.shape), entry.shape,
               [&](worker& by, const step_request& now) { update(by, optimizer, entry, now); }});
        }
      }
    });
    std::ranges::sort(tasks, [](const task& a, const task& b) {
      return std::tuple(b.flops, b.shape.rows, b.shape.cols) <
             std::tuple(a.flops, a.shape.rows, a.shape.cols);
    });
    for (task& t : tasks) updates_.push_back(std::move(t.run));
  }

  // In the order of segments, since several optimizers have parts of one message.
  void list_meetings() {
    for_each_optimizer([&]<class O>(const O& optimizer, auto& entries, int) {
      if constexpr (meets_sites<O>) {
        for (auto& entry : entries) meetings_.push_back(meeting_of(optimizer, entry));
      }
    });
    std::ranges::sort(meetings_, {}, &meeting::segment);
    contributions_.resize(meetings_.size());
    due_.resize(meetings_.size());
  }

  template <class O>
  [[nodiscard]] meeting meeting_of(const O& optimizer, held_state<O>& entry) {
    return {.segment = entry.segment,
            .rounds_before = O::rounds_before_update,
            .rounds_after = O::rounds_after_update,
            .judge = [&](worker& by, const step_request& now) { judge(by, entry, now); },
            .exchanges =
                [&](contribution& own, int round, const step_request& now) {
                  return collect_exchanged(optimizer, entry, own, round, now);
                },
            .contribute =
                [&](worker& by, int round, const step_request& now) {
                  for_each_part_of(by, optimizer, entry, round < O::rounds_before_update, now,
                                   [&](auto& backend, const auto&... rest) {
                                     optimizer.contribute(backend, rest..., round);
                                   });
                },
            .adopt =
                [&](worker& by, int round, const step_request& now, bool heard) {
                  if (!O::whole_matrix) heard = true;  // of some of its parts, perhaps
                  entry.heard = entry.heard && heard;
                  if (!heard) return;
                  for_each_part_of(by, optimizer, entry, false, now,
                                   [&](auto& backend, const auto& states, auto parameter, auto,
                                       const auto& context) {
                                     optimizer.adopt(backend, states, parameter, context, round);
                                   });
                }};
  }

  template <class O>
  static void judge(worker& by, held_state<O>& entry, const step_request& now) {
    if constexpr (O::rounds_before_update > 0) {
      entry.heard = true;
      entry.usable = is_usable<O>(by, entry.gradient, now) && !is_left_out(entry, now);
    }
  }

  // What is replaced by means in a round, if anything. Where no site has a usable gradient a matrix
  // stays as it is; the pieces of other tensors differ between sites, so there it is the parameter
  // alone, and states are zero.
  template <class O>
  [[nodiscard]] static bool collect_exchanged(const O& optimizer, held_state<O>& entry,
                                              contribution& own, int round,
                                              const step_request& now) {
    const auto exchanged = optimizer.exchanges(entry.shape, {now.step, entry.item, round});
    if (exchanged[0]) own.values.push_back(entry.parameter);
    for (std::size_t k = 0; k < entry.states.size(); ++k) {
      if (exchanged[k + 1]) own.values.push_back(entry.states[k].exact);
    }
    if constexpr (checked && requires { optimizer.equal_states(entry.shape); }) {
      const auto sources = optimizer.equal_states(entry.shape);
      for (std::size_t k = 0; k < sources.size(); ++k) {
        if (sources[k].empty() || entry.states[k].exact.empty()) continue;
        own.equal.push_back(
            {entry.states[k].exact, optimizer.states(entry.shape)[k].name, sources[k]});
      }
    }
    own.segment = entry.segment;
    own.counts = round >= O::rounds_before_update || entry.usable;
    own.kept = O::whole_matrix ? own.values.size() : std::size_t{exchanged[0]};
    return !own.values.empty();
  }

  // Far enough below the largest float for sums and averages of many such gradients.
  template <class O>
  [[nodiscard]] static bool is_usable(double sum_of_squares) {
    constexpr double largest = std::numeric_limits<float>::max();
    constexpr double room = 1 << 20;
    if constexpr (requires { requires O::squares_gradient; }) {
      return sum_of_squares <= largest / room;
    } else {
      return std::sqrt(sum_of_squares) <= largest / room;
    }
  }
  template <class O, class T>
  [[nodiscard]] static bool is_usable(worker& by, std::span<T> gradient, const step_request& now) {
    return now.left_out != nullptr || is_usable<O>(by.backend.sum_of_squares(gradient));
  }

  // Calls f(backend, states, parameter, gradient, context) for what an optimizer takes of an entry
  // at a time, all of a matrix and parts of a piece.
  template <class O, class F>
  void for_each_part_of(worker& by, const O& optimizer, held_state<O>& entry, bool with_gradient,
                        const step_request& now, F&& f) {
    const index_t all = entry.shape.elements();
    detail::for_each_part(
        all, O::whole_matrix ? all : detail::widened_part, [&](index_t first, index_t count) {
          const matrix_shape shape = O::whole_matrix ? entry.shape : matrix_shape{1, count};
          detail::scratch_space scratch(by.scratch.span());
          matrix_view<const float> gradient;
          if (with_gradient) {
            const std::span<const float> values =
                detail::widened(by.backend, slice(entry.gradient, first, count), scratch);
            gradient = {values.data(), shape};
          }
          const auto specs = optimizer.states(shape);
          state_spans<O, float> states;
          for (std::size_t k = 0; k < states.size(); ++k) {
            states[k] = slice(entry.states[k].exact, first, specs[k].elements);
          }
          f(by.backend, states,
            matrix_view<float>(slice(entry.parameter, first, count).data(), shape), gradient,
            context_of(entry, now, scratch));
        });
  }

  template <class O>
  [[nodiscard]] update_context<float> context_of(const held_state<O>& entry,
                                                 const step_request& now,
                                                 const detail::scratch_space& scratch) const {
    return {entry.step,     now.learning_rate_scale,
            scratch.rest(), now.step,
            entry.item,     context_.plan.items[entry.item].name};
  }

  template <class O>
  [[nodiscard]] static bool is_left_out(const held_state<O>& entry, const step_request& now) {
    return now.left_out != nullptr && (*now.left_out)[entry.item];
  }

  // Clears what the last step said of an entry; false if this one leaves it out altogether.
  template <class O>
  [[nodiscard]] static bool takes_part(held_state<O>& entry, const step_request& now) {
    entry.change = 0;
    const bool skipped = is_left_out(entry, now);
    entry.result = skipped ? update_result::skipped : update_result::complete;
    return !skipped;
  }

  template <class O>
  void update(worker& by, const O& optimizer, held_state<O>& entry, const step_request& now) {
    if constexpr (meets_sites<O> && updates_from_mean<O>) {
      entry.change = 0;
      entry.result = !entry.heard   ? update_result::skipped
                     : entry.usable ? update_result::complete
                                    : update_result::from_others;
      if (entry.heard) update_all(by, optimizer, entry, now);
      return;
    }
    if (!takes_part(entry, now)) return;
    if constexpr (judges_before<O>) {
      if (entry.usable) {
        update_all(by, optimizer, entry, now);
        return;
      }
    }
    if constexpr (O::whole_matrix) {
      if (judges_before<O> || !is_usable<O>(by, entry.gradient, now)) {
        entry.result = update_result::skipped;
        return;
      }
      update_all(by, optimizer, entry, now);
    } else {
      ++entry.step;  // even if no block is usable: other ranks may have blocks that are
      detail::for_each_part(entry.shape.elements(), detail::widened_part,
                            [&](index_t first, index_t count) {
                              update_usable(by, optimizer, entry, first, count, now);
                            });
    }
  }

  template <class O>
  void update_all(worker& by, const O& optimizer, held_state<O>& entry, const step_request& now) {
    ++entry.step;
    const index_t all = entry.shape.elements();
    detail::for_each_part(
        all, O::whole_matrix ? all : detail::widened_part, [&](index_t first, index_t count) {
          update_part(by, optimizer, entry, first,
                      O::whole_matrix ? entry.shape : matrix_shape{1, count}, now);
        });
  }

  // Updates what is usable of a part of a piece, down to single blocks.
  template <class O>
  void update_usable(worker& by, const O& optimizer, held_state<O>& entry, index_t first,
                     index_t count, const step_request& now) {
    constexpr auto block = static_cast<index_t>(block_elements);
    if (is_usable<O>(by, slice(entry.gradient, first, count), now)) {
      update_part(by, optimizer, entry, first, {1, count}, now);
    } else if (count > block) {
      detail::for_each_part(count, block, [&](index_t at, index_t n) {
        update_usable(by, optimizer, entry, first + at, n, now);
      });
    } else {
      entry.result = update_result::skipped;
    }
  }

  // Updates `shape` from element `first` of what this rank has of an item.
  template <class O>
  void update_part(worker& by, const O& optimizer, held_state<O>& entry, index_t first,
                   matrix_shape shape, const step_request& now) {
    detail::scratch_space scratch(by.scratch.span());
    const auto stored = slice(entry.parameter, first, shape.elements());
    const std::span<float> parameter = detail::widened(by.backend, stored, scratch);
    const std::span<const float> gradient =
        detail::widened(by.backend, slice(entry.gradient, first, shape.elements()), scratch);
    apply(by, optimizer, entry, first, matrix_view<float>(parameter.data(), shape),
          matrix_view<const float>(gradient.data(), shape), parameter, scratch, now);
    detail::write_back(by.backend, parameter, stored, stream(entry, 0), entry.offset + first);
  }

  // Every rank gathers the whole gradient and repeats the whole update; of the parameter it has,
  // and keeps, only its own rows.
  template <class O>
  void update_gathered(const O& optimizer, held_state<O>& entry, const step_request& now) {
    if (!takes_part(entry, now)) return;
    worker& by = workers_.front();
    const std::span<reduced> all = slice(gathered_.span(), 0, entry.shape.elements());
    auto request =
        context_.collective.start_all_gather(entry.gradient, all, entry.pieces, entry.label);
    context_.book(phase::step);
    request.wait(context_.until());
    if (!is_usable<O>(by, all, now)) entry.result = update_result::skipped;
    if (entry.result == update_result::complete) {
      ++entry.step;
      detail::scratch_space scratch(by.scratch.span());
      const std::span<float> gradient = detail::widened(by.backend, all, scratch);
      const std::span<float> parameter = scratch.take(entry.shape.elements());
      const auto own = slice(parameter, entry.own_offset, std::ssize(entry.parameter));
      by.backend.fill(parameter, 0.0f);
      detail::load(by.backend, entry.parameter, own);
      apply(by, optimizer, entry, 0, matrix_view<float>(parameter.data(), entry.shape),
            matrix_view<const float>(gradient.data(), entry.shape), own, scratch, now);
      detail::store(by.backend, std::span<const float>(own), entry.parameter, stream(entry, 0),
                    entry.own_offset);
    }
    request.drain(context_.until());
  }

  // One call of the rule, on states from element `first`; `own` is what this rank keeps of the
  // parameter. The rest of the scratch is the rule's workspace.
  template <class O>
  void apply(worker& by, const O& optimizer, held_state<O>& entry, index_t first,
             matrix_view<float> parameter, matrix_view<const float> gradient, std::span<float> own,
             detail::scratch_space scratch, const step_request& now) {
    const auto specs = optimizer.states(parameter.shape());
    const auto narrow_part = [&](std::size_t k) {
      return slice(entry.states[k].narrow, first, specs[k].elements);
    };
    state_spans<O, float> states;
    for (std::size_t k = 0; k < states.size(); ++k) {
      states[k] = is_exact(specs[k]) ? slice(entry.states[k].exact, first, specs[k].elements)
                                     : detail::widened(by.backend, narrow_part(k), scratch);
    }
    std::span<float> before{};
    if (context_.options.measure_updates) {
      before = scratch.take(std::ssize(own));
      by.backend.copy(std::span<const float>(own), before);
    }
    optimizer.update(by.backend, states, parameter, gradient, context_of(entry, now, scratch));
    if (context_.options.measure_updates) {
      by.backend.transform(detail::change_since{}, before, std::span<const float>(own));
      entry.change += by.backend.sum_of_squares(std::span<const float>(before));
    }
    for (std::size_t k = 0; k < states.size(); ++k) {
      if (is_exact(specs[k])) continue;
      detail::write_back(by.backend, states[k], narrow_part(k), stream(entry, k + 1),
                         entry.offset + first);
    }
  }

  template <class O>
  [[nodiscard]] std::uint64_t stream(const held_state<O>& entry, std::size_t value) const {
    return rounding_stream{context_.options.rounding_seed, entry.item, value, entry.step}.key();
  }

  Context& context_;
  members optimizers_;
  typename entries_of<members>::type entries_;
  typename Context::template storage<float> exact_;
  typename Context::template storage<narrow_state> narrow_;
  std::vector<worker> workers_;
  typename Context::template storage<reduced> gathered_;  // a whole gradient
  std::vector<std::function<void(worker&, const step_request&)>> updates_;
  std::vector<meeting> meetings_;
  std::vector<contribution> contributions_;  // of one round; their memory is used again
  std::vector<due_meeting> due_;             // what they are of
  crew crew_;
};

}  // namespace mfsdp::inline MFSDP_ABI
