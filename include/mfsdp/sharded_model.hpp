// sharded_model: the runtime. What this rank holds of a model, unit by unit, optimizer states
// included, and the calls with which a trainer uses it.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mfsdp/concepts.hpp"
#include "mfsdp/kernel.hpp"
#include "mfsdp/planner.hpp"
#include "mfsdp/precision.hpp"
#include "mfsdp/runtime/agreement.hpp"
#include "mfsdp/runtime/arrays.hpp"
#include "mfsdp/runtime/context.hpp"
#include "mfsdp/runtime/contract.hpp"
#include "mfsdp/runtime/gradients.hpp"
#include "mfsdp/runtime/hand_over.hpp"
#include "mfsdp/runtime/master.hpp"
#include "mfsdp/runtime/norm.hpp"
#include "mfsdp/runtime/parameters.hpp"
#include "mfsdp/runtime/persistence.hpp"
#include "mfsdp/runtime/sites.hpp"
#include "mfsdp/runtime/states.hpp"
#include "mfsdp/runtime/widen.hpp"

namespace mfsdp::inline MFSDP_ABI {

struct step_result {
  std::int64_t step = 0;  // steps taken so far
  // Tensors of which a part has a gradient that its optimizer could not use, NaN or infinite or too
  // large: this part, its momentum and other states are as before, not even decayed. A part is a
  // matrix, row group or slice; of other tensors all after clip, and blocks of block_elements
  // without. After clip the same on all ranks, otherwise those of which this rank holds a part;
  // always the latter of rules that update from means over sites (updates_from_mean).
  std::vector<std::string_view> skipped{};
  // Tensors that such a rule has updated without this site's gradient, or a part of it, which it
  // could not use: from the means of other sites, or of none (PeriodicOptimizer). Those of which
  // this rank holds a part.
  std::vector<std::string_view> from_others{};
  // Sites that were let in after this step (sharded_model::join) and count from the next one on;
  // the same on all sites.
  std::vector<int> joined{};
};

// One rank's part of a sharded training run.
//
//   Axes        a mesh: units are sharded over its shard axis, its replicate axis has copies; the
//               constructor takes a bare collective for the former, too. Its site axis joins
//               sites that train apart and meet now and then (PeriodicOptimizer)
//   Where       a Placement      Rules  an Optimizer or a set such as mixed
//   Memory      a Backend         Precision  a precision: the types of what is stored and moved
//
// All ranks construct it from equal arguments and make the same calls in the same order; letting go
// of a unit is such a call, since it frees the buffer for a gather. Everything is allocated
// here, apart from what backends and decompositions need for a moment.
// Errors: spec_error if the arguments do not fit together; plan_error naming the ranks that have
// another plan; later usage_error for calls in a wrong state and collective_error when another rank
// does not come.
template <class Axes, class Where, class Rules, class Memory, class Precision = precision<>>
class sharded_model {
  // Complete if the parts fit; the compiler's first error says why they do not.
  static_assert(sizeof(contract::check_model<Axes, Where, Rules, Memory, Precision>) > 0);

  using collective = std::remove_cvref_t<decltype(std::declval<Axes&>().shard)>;
  using context = runtime_context<Axes, Memory, Precision>;
  using parameters = unit_parameters<context>;
  using gradients_type = unit_gradients<context, Where::replicated>;
  using compute = typename Precision::compute;
  using gradient = typename Precision::gradient;
  using reduce = typename Precision::reduce;
  static constexpr bool elastic = context::elastic;
  static constexpr bool host_memory = HostMemory<Memory>;

  friend class model_persistence<sharded_model>;

 public:
  // A unit's parameters while they may be read; releases the unit when it goes out of scope.
  class acquired_unit {
   public:
    acquired_unit(acquired_unit&& other) noexcept
        : model_(std::exchange(other.model_, nullptr)), unit_(other.unit_), why_(other.why_) {}
    acquired_unit& operator=(acquired_unit&& other) noexcept {
      acquired_unit taken(std::move(other));
      std::swap(model_, taken.model_);
      std::swap(unit_, taken.unit_);
      std::swap(why_, taken.why_);
      return *this;
    }
    ~acquired_unit() {
      if (model_ != nullptr) model_->parameters_.release(unit_, why_);
    }

    // Addresses of all tensors, in order of registration: equal in forward and backward.
    [[nodiscard]] std::span<const compute* const> pointers() const {
      return live().parameters_.pointers(unit_);
    }
    // By position or by name. Errors: usage_error if there is none, or after release.
    [[nodiscard]] matrix_view<const compute> operator[](std::size_t i) const {
      const sharded_model& model = live();
      const unit_spec& unit = model.plan().spec.units()[unit_];
      detail::require_in_unit(unit, i);
      return {model.parameters_.pointers(unit_)[i],
              model.plan().spec.tensors()[unit.tensors[i].tensor].shape()};
    }
    [[nodiscard]] matrix_view<const compute> operator[](std::string_view name) const {
      return (*this)[detail::find_in_unit(live().plan().spec.units()[unit_], name)];
    }

    // Errors: usage_error the second time.
    void release() {
      (void)live();
      std::exchange(model_, nullptr)->parameters_.release(unit_, why_);
    }

   private:
    friend class sharded_model;
    acquired_unit(sharded_model* model, std::size_t unit, pass why)
        : model_(model), unit_(unit), why_(why) {}

    [[nodiscard]] const sharded_model& live() const {
      if (model_ == nullptr) throw usage_error("this handle has released its unit already");
      return *model_;
    }

    sharded_model* model_;
    std::size_t unit_;
    pass why_;
  };

  // Where the gradients of one unit go. A view of the model; reduce() once they are written.
  class gradient_buffers {
   public:
    // By position or by name; empty for a frozen or empty tensor. Errors: usage_error as above, or
    // after reduce.
    [[nodiscard]] gradient_view<gradient> operator[](std::size_t i) const {
      detail::require_in_unit(model_->plan().spec.units()[unit_], i);
      return model_->gradients_.view(unit_, i);
    }
    [[nodiscard]] gradient_view<gradient> operator[](std::string_view name) const {
      return (*this)[detail::find_in_unit(model_->plan().spec.units()[unit_], name)];
    }

    // Addresses of all tensors, in order of registration, until reduce; null for a frozen one.
    // Unlike the parameters' they change from step to step.
    [[nodiscard]] std::span<gradient* const> pointers() const {
      std::vector<gradient*>& addresses = model_->gradient_pointers_[unit_];
      for (std::size_t i = 0; i < addresses.size(); ++i) addresses[i] = (*this)[i].data();
      return addresses;
    }

    // Copies or adds a gradient that the trainer keeps in a buffer of its own. Errors: usage_error
    // if it is frozen or has another size.
    void put(std::string_view name, std::span<const gradient> values) const {
      const gradient_view<gradient> target = (*this)[name];
      if (static_cast<std::size_t>(target.size()) != values.size()) {
        throw usage_error(fmt::format("gradient of '{}.{}' has {} elements, not {}",
                                      model_->plan().spec.units()[unit_].name, name, target.size(),
                                      values.size()));
      }
      if (target.accumulate) {
        model_->add(values, target.flat());
      } else {
        model_->context_.backend.copy(values, target.flat());
      }
    }

    // Fills with zeros all that is to be written: for code that always adds, and for a rank that
    // has no gradient of this unit. Tied tensors start at zero by themselves.
    void zero() const {
      const unit_spec& unit = model_->plan().spec.units()[unit_];
      for (std::size_t i = 0; i < unit.tensors.size(); ++i) {
        const gradient_view<gradient> view = (*this)[i];
        if (!view.accumulate) model_->context_.backend.fill(view.flat(), gradient(0.0f));
      }
    }

    // Starts the sum over ranks, straight to the owners; it overlaps with what follows.
    void reduce() const {
      model_->gradients_.reduce(unit_);
      model_->progress();
    }

   private:
    friend class sharded_model;
    gradient_buffers(sharded_model* model, std::size_t unit) : model_(model), unit_(unit) {}

    sharded_model* model_;
    std::size_t unit_;
  };

  sharded_model(const model_spec& spec, Axes axes, Where placement, Rules optimizers,
                model_options options = {}, Memory backend = {})
      : context_(make_plan(spec, axes.shard.size(), placement, optimizers, Precision::bytes), axes,
                 std::move(backend), std::move(options)),
        parameters_(checked_context(optimizers)),
        masters_(context_, parameters_),
        gradients_(context_),
        norm_(context_),
        states_(
            context_, optimizers, [this](std::size_t i) { return masters_.segment(i); },
            [this](std::size_t i) { return gradients_.segment(i); }),
        sites_(context_, map_, detail::shared_with_sites(context_, map_, placement, optimizers),
               states_.exchangeable()),
        arrays_(detail::array_list::of(plan(), optimizer_members(optimizers), Precision{})),
        rules_(detail::rules_of(plan(), optimizer_members(optimizers))) {
    for (const unit_spec& unit : plan().spec.units()) {
      gradient_pointers_.emplace_back(unit.tensors.size());
    }
    forward_.resize(plan().spec.units().size());
    std::iota(forward_.begin(), forward_.end(), std::size_t{0});
    backward_.assign(forward_.rbegin(), forward_.rend());
  }

  sharded_model(const model_spec& spec, collective shard, Where placement, Rules optimizers,
                model_options options = {}, Memory backend = {})
      : sharded_model(spec, Axes{std::move(shard)}, std::move(placement), std::move(optimizers),
                      std::move(options), std::move(backend)) {}

  // The same with the precision by value, so that the compiler finds the type of the model:
  // `sharded_model model{spec, comm, placement, optimizers, precision<bfloat16>{}}`.
  template <std::same_as<Precision> P>
  sharded_model(const model_spec& spec, Axes axes, Where placement, Rules optimizers, P,
                model_options options = {}, Memory backend = {})
      : sharded_model(spec, std::move(axes), std::move(placement), std::move(optimizers),
                      std::move(options), std::move(backend)) {}

  template <std::same_as<Precision> P>
  sharded_model(const model_spec& spec, collective shard, Where placement, Rules optimizers, P,
                model_options options = {}, Memory backend = {})
      : sharded_model(spec, Axes{std::move(shard)}, std::move(placement), std::move(optimizers),
                      std::move(options), std::move(backend)) {}

  // Completes what is in flight, so that the other ranks need nothing of this one any more. While
  // an exception passes, it is abandoned instead.
  ~sharded_model() {
    if (std::uncaught_exceptions() > exceptions_) return;
    try {
      gradients_.quiesce();
      parameters_.quiesce();
    } catch (...) {
      // Another rank has failed; it or the next collective reports why.
    }
  }
  sharded_model(const sharded_model&) = delete;
  sharded_model& operator=(const sharded_model&) = delete;

  [[nodiscard]] const mfsdp::plan& plan() const { return context_.plan; }
  // Among all ranks that train the model, replica by replica: whose part of the data this is. The
  // plan is of one shard group, and this rank has the place rank() % plan().ranks in it.
  [[nodiscard]] int rank() const {
    return context_.replicas.rank() * plan().ranks + context_.rank();
  }
  [[nodiscard]] int ranks() const { return context_.replicas.size() * plan().ranks; }
  // This rank's site and how many there are; on an elastic axis its seat, and how many seats. Each
  // has data of its own; rank(), ranks(), sum() and clip() are of one site.
  [[nodiscard]] int site() const { return map_.own; }
  [[nodiscard]] int sites() const { return map_.count(); }
  [[nodiscard]] std::span<const std::size_t> forward_order() const { return forward_; }
  [[nodiscard]] std::span<const std::size_t> backward_order() const { return backward_; }

  // The unit of this name. Errors: usage_error if there is none.
  [[nodiscard]] std::size_t unit(std::string_view name) const {
    const auto& units = plan().spec.units();
    for (std::size_t i = 0; i < units.size(); ++i) {
      if (units[i].name == name) return i;
    }
    throw usage_error(fmt::format("the model has no unit '{}'", name));
  }

  // Sets the parameters: fill(tensor, values, first) is called for each part of a tensor that this
  // rank holds and writes its elements first, first + 1, ... It must not depend on the cuts. Values
  // are floats; a trainer reads them rounded to nearest. Begins anew: optimizer states, counts of
  // steps and updates, and gradients are those of a new model, whatever was before; but a step that
  // an exception ended half way stays one. All ranks, and all sites, alike. Errors: usage_error
  // while a unit is in use, or on a site that has yet to join().
  template <class Fill>
  void initialize(Fill&& fill) {
    require_released("initialize");
    require_joined();
    parameters_.quiesce();
    for (std::size_t i = 0; i < plan().local_segments.size(); ++i) {
      if (is_here(i)) initialize_segment(i, fill);
    }
    states_.start();
    discard_gradients();
    parameters_.invalidate();
    step_ = 0;
    initialized_ = true;
    compared_ = false;
  }

  // For a site that comes to others in the middle of their training, instead of initialize(): waits
  // until they let it in, which they do at the end of a step in which sites met, and takes
  // parameters, optimizer states and counts of steps from the one of the lowest seat. The others
  // wait for that no longer than for their exchanges. Returns how many steps the model has taken;
  // from there on this site takes part like the others. Errors: usage_error if it has not come
  // later than the others; collective_error after the deadline, when all others have gone, or when
  // the one that hands over goes: the model may then not be used. The deadline is that of all waits
  // (model_options.timeout) and must be longer than sites train between two meetings.
  std::int64_t join()
    requires elastic
  {
    require_released("join");
    if (!context_.sites.joins()) {
      throw usage_error("join: this site is no newcomer; call initialize");
    }
    parameters_.quiesce();
    torn_ = true;
    admit();
    states_.join(step_);
    publish();
    torn_ = false;
    initialized_ = true;
    compared_ = true;
    return step_;
  }

  // Makes a unit readable until the handle is gone. A unit may be acquired again while it is in
  // use. Cost: one gather, mostly hidden if the unit before it in this pass was acquired before.
  [[nodiscard]] acquired_unit acquire(std::size_t unit, pass why) {
    require_unit(unit);
    require_values();
    progress();
    parameters_.acquire(unit, why);
    return {this, unit, why};
  }

  // Buffers for the gradients of a unit, until reduce(). Their content is undefined: write every
  // element, or zero() first and add; tied tensors are added to. A unit that is used twice in a
  // forward is opened and reduced twice. Errors: usage_error if they are handed out already, if two
  // other units' are, or between clip and step.
  // Rule for ranks without a gradient: every rank calls gradients and reduce for every unit that
  // has trainable tensors, in the same order; one that has computed none calls zero() in between.
  [[nodiscard]] gradient_buffers gradients(std::size_t unit) {
    require_unit(unit);
    require_values();
    if (clipped_) {
      throw usage_error("gradients between clip and step; clip after the last reduce()");
    }
    progress();
    gradients_.open(unit);
    return {this, unit};
  }

  // Scales all gradients so that their global 2-norm is at most `max_norm`; returns the norm
  // before. Gradients that are not finite do not count, and the next step leaves their tensors out,
  // on all ranks alike (refused()); clip(infinity) only looks for them. Errors: usage_error unless
  // max_norm > 0, or as step. Cost: one small gather, none where every rank holds everything; and
  // the sum over replicas, if there are any.
  double clip(double max_norm) {
    if (!(max_norm > 0)) {
      throw usage_error(fmt::format(
          "clip: the largest norm must be positive, not {}; infinity scales nothing", max_norm));
    }
    require_values();
    gradients_.finish();
    clipped_ = true;
    const auto sums = norm_.compute([this](std::size_t i) { return gradients_.segment(i); });
    double total = 0;
    for (const auto& [item, sum] : sums) total += std::isfinite(sum) ? sum : 0;
    const double norm = std::sqrt(total);
    const double factor = std::min(1.0, max_norm / (norm + 1e-6));
    refused_.assign(plan().items.size(), false);
    for (const auto& [item, sum] : sums) {
      refused_[item] = !states_.accepts(item, sum * factor * factor);
    }
    if (factor < 1) {
      for (std::size_t i = 0; i < plan().local_segments.size(); ++i) {
        if (is_trainable_here(i)) scale_gradient(i, static_cast<float>(factor));
      }
    }
    return norm;
  }

  // Tensors whose gradients the next step will not use, after clip; the same on all ranks, so that
  // a trainer may give up the whole step: with discard_gradients(), between sites with skip_step().
  [[nodiscard]] std::vector<std::string_view> refused() const {
    std::vector<std::string_view> names;
    for (std::size_t item = 0; clipped_ && item < refused_.size(); ++item) {
      if (refused_[item]) add_name(names, item);
    }
    return names;
  }

  // Updates what this rank holds; moves nothing, but that gradients are summed over replicas if
  // clip has not done so, and that periodic optimizers meet other sites when they are due. On an
  // elastic site axis a step in which they met ends with letting in who waits (join()).
  // `learning_rate_scale` multiplies the rates of all optimizers (a schedule). Errors: usage_error
  // if a unit is in use, or if a gradient was handed out but not reduced, or never asked for.
  step_result step(double learning_rate_scale = 1) {
    require_scale(learning_rate_scale);
    require_step("step");
    gradients_.finish();
    return advance({step_ + 1, learning_rate_scale, clipped_ ? &refused_ : nullptr});
  }

  // Instead of step(): gives up all gradients since the last one, whatever their state, and counts
  // a step of the model in which this site has no gradient. It meets the other sites if that is due
  // and is not a step behind them, as it would be after discard_gradients() alone. Its own
  // gradients update nothing; rules that update from means over sites still do, as on the other
  // sites. All ranks of the site alike. Errors: as step, but that no gradient is asked for.
  step_result skip_step(double learning_rate_scale = 1) {
    require_scale(learning_rate_scale);
    require_step("skip_step");
    discard_gradients();
    clipped_ = true;
    refused_.clear();
    for (const placement_item& item : plan().items) {
      refused_.push_back(plan().tensors[item.tensor].optimizer >= 0 && item.elements() > 0);
    }
    return advance({step_ + 1, learning_rate_scale, &refused_});
  }

  // How far the updates of the last step moved what this rank holds, without what sites did where
  // they met: a learning rate whose updates have another root mean square than those of a known run
  // means something else there. Errors: usage_error
  // unless model_options.measure_updates.
  [[nodiscard]] std::vector<update_size> updates() {
    if (!context_.options.measure_updates) {
      throw usage_error("updates are measured only if model_options.measure_updates is true");
    }
    std::vector<update_size> sizes;
    states_.for_each_update([&](std::size_t, update_result, const update_size& size) {
      if (size.elements > 0) sizes.push_back(size);
    });
    return sizes;
  }

  // Gives up all gradients since the last step, whatever their state: after a loss that is not
  // finite, say. All ranks alike. The next step is the one that was given up; where sites must stay
  // in step, skip_step() gives it up.
  void discard_gradients() {
    gradients_.clear();
    clipped_ = false;
  }

  // The sum of one number of each rank, in rank order: the same bits on all of them. For losses and
  // token counts. Cost: one gather of a double per rank on each axis.
  [[nodiscard]] double sum(double mine) {
    const auto all = detail::gather_from_all<double>(context_, {mine}, "sum", phase::sum);
    return std::accumulate(all.begin(), all.end(), 0.0);
  }

  // For those who save, restore or examine models.
  [[nodiscard]] model_persistence<sharded_model> persistence() {
    return model_persistence<sharded_model>(*this);
  }

  [[nodiscard]] const memory_usage& memory_in_use() const { return context_.usage; }
  [[nodiscard]] const traffic& moved(phase where) const {
    return context_.moved[static_cast<std::size_t>(where)];
  }
  [[nodiscard]] const gather_counts& gathers() const { return parameters_.counts(); }

 private:
  template <class Fill>
  void initialize_segment(std::size_t i, Fill& fill) {
    const local_segment& segment = plan().local_segments[i];
    const placement_item& item = plan().items[segment.item];
    const tensor_spec& tensor = plan().spec.tensors()[item.tensor];
    const index_t first = item.offset + segment.offset;
    const auto write = [&]<class T>(std::span<T> values) {
      if constexpr (detail::is_float<T> && HostMemory<Memory>) {
        fill(tensor, values, first);
        return;
      }
      std::vector<float> host(HostMemory<Memory> ? 0 : detail::part_of(segment.count));
      detail::for_each_part(segment.count, detail::widened_part, [&](index_t at, index_t count) {
        const std::span<T> stored = slice(values, at, count);
        std::span<float> part;
        if constexpr (detail::is_float<T>) {
          part = stored;
        } else {
          part = slice(states_.scratch(), 0, count);
        }
        if constexpr (HostMemory<Memory>) {
          fill(tensor, part, first + at);
        } else {
          const std::span<float> written = slice(std::span(host), 0, count);
          fill(tensor, written, first + at);
          context_.backend.copy(std::span<const float>(written), part);
        }
        if constexpr (!detail::is_float<T>) {
          detail::store_nearest(context_.backend, std::span<const float>(part), stored);
        }
      });
    };
    if (is_trainable_here(i)) {
      write(masters_.segment(i));
      masters_.publish(i);
    } else {
      write(parameters_.segment(i));
    }
  }

  // A step of the model, whose gradients are complete or given up.
  step_result advance(const step_request& now) {
    parameters_.quiesce();
    torn_ = true;
    if (!std::exchange(compared_, true)) {
      detail::require_equal_values(context_, map_, [this](auto visit) {
        for (std::size_t i = 0; i < plan().local_segments.size(); ++i) {
          if (is_trainable_here(i)) {
            visit(i, masters_.segment(i));
          } else if (is_here(i)) {
            visit(i, parameters_.segment(i));
          }
        }
      });
    }
    bool met = states_.exchange(sites_, true, now);
    states_.step(now);
    context_.book(phase::step);
    met = states_.exchange(sites_, false, now) || met;
    publish();
    torn_ = false;
    step_result result = report(now.step);
    step_ = now.step;
    for (const std::string_view tensor : result.skipped) {
      context_.observe(model_event::skip, tensor);
    }
    discard_gradients();
    if constexpr (elastic) {
      if (met) result.joined = admit();
    }
    context_.observe(model_event::step, "step");
    return result;
  }

  // What became of the gradients of a step; of what this rank does not hold, as the clip has said.
  [[nodiscard]] step_result report(std::int64_t step) {
    std::vector<update_result> results(plan().items.size(), update_result::complete);
    for (std::size_t item = 0; clipped_ && item < refused_.size(); ++item) {
      if (refused_[item] && !states_.takes_means(item)) results[item] = update_result::skipped;
    }
    states_.for_each_update([&](std::size_t item, update_result held, const update_size&) {
      if (held != update_result::complete) results[item] = held;
    });
    step_result result{.step = step};
    for (std::size_t item = 0; item < results.size(); ++item) {
      if (results[item] == update_result::skipped) add_name(result.skipped, item);
      if (results[item] == update_result::from_others) add_name(result.from_others, item);
    }
    return result;
  }

  // Brings what the trainer reads up to date with the masters.
  void publish() {
    for (std::size_t i = 0; i < plan().local_segments.size(); ++i) {
      if (is_trainable_here(i)) masters_.publish(i);
    }
    parameters_.invalidate();
  }

  // Lets sites in, or has this one let in, and hands over all that they need. Returns who they are.
  std::vector<int> admit()
    requires elastic
  {
    const admission now = context_.sites.admit(context_.until());
    context_.book(phase::sync);
    const hand_over<context> to_joined(context_, now, sites_.buffers());
    std::vector<std::span<float>> values;
    std::vector<std::span<compute>> frozen;
    for (std::size_t i = 0; i < plan().local_segments.size(); ++i) {
      if (is_trainable_here(i)) {
        values.push_back(masters_.segment(i));
      } else if (is_here(i)) {
        frozen.push_back(parameters_.segment(i));
      }
    }
    std::vector<std::int64_t*> counts{&step_};
    states_.collect_shared(values, counts);
    to_joined.give(counts);
    to_joined.template give<float>(values);
    to_joined.template give<compute>(frozen);
    return now.joined;
  }

  // to <- to + values, which may be of the host, in the type of gradients.
  void add(std::span<const gradient> values, std::span<gradient> to) {
    const auto sum = [](std::span<const gradient> added, std::span<gradient> into) {
      std::ranges::transform(into, added, into.begin(), std::plus<>());
    };
    if constexpr (HostMemory<Memory>) {
      sum(values, to);
      return;
    }
    std::vector<gradient> added(detail::part_of(std::ssize(values)));
    std::vector<gradient> host(added.size());
    detail::for_each_part(std::ssize(values), detail::widened_part, [&](index_t at, index_t n) {
      const std::span<gradient> part = slice(std::span(host), 0, n);
      const std::span<gradient> other = slice(std::span(added), 0, n);
      context_.backend.copy(std::span<const gradient>(slice(to, at, n)), part);
      context_.backend.copy(slice(values, at, n), other);
      sum(other, part);
      context_.backend.copy(std::span<const gradient>(part), slice(to, at, n));
    });
  }

  // Rounds to nearest where gradients are not kept as float.
  void scale_gradient(std::size_t i, float factor) {
    const std::span<reduce> gradients = gradients_.segment(i);
    detail::for_each_part(std::ssize(gradients), detail::widened_part, [&](index_t at, index_t n) {
      const std::span<reduce> stored = slice(gradients, at, n);
      detail::scratch_space scratch(states_.scratch());
      const std::span<float> values = detail::widened(context_.backend, stored, scratch);
      context_.backend.transform(detail::scale_by<float>{factor}, values);
      if constexpr (!std::same_as<reduce, float>) {
        context_.backend.convert(std::span<const float>(values), stored);
      }
    });
  }

  // Before anything else is exchanged: do all ranks have the same plan?
  context& checked_context(const Rules& optimizers) {
    const model_options& options = context_.options;
    if (options.prefetch < 0) {
      throw spec_error(fmt::format("model_options.prefetch is {}", options.prefetch));
    }
    if (options.update_threads < 1) {
      throw spec_error(fmt::format("model_options.update_threads is {}", options.update_threads));
    }
    if (options.timeout <= std::chrono::milliseconds::zero()) {
      throw spec_error(fmt::format("model_options.timeout is {} ms", options.timeout.count()));
    }
    detail::require_equal_plans(context_, optimizers);
    detail::require_replicas(context_);
    map_ = detail::find_sites(context_);
    return context_;
  }

  // Row groups of one tensor follow one another, and are named once.
  void add_name(std::vector<std::string_view>& names, std::size_t item) const {
    const std::string_view name = plan().items[item].name;
    if (names.empty() || names.back() != name) names.push_back(name);
  }

  void progress() {
    gradients_.progress();
    parameters_.progress();
  }

  void require_values() const {
    if (!initialized_) {
      require_joined();
      throw usage_error("the parameters have no values: call initialize or load first");
    }
    require_whole();
  }

  void require_whole() const {
    if (torn_) {
      throw usage_error(
          "an exception ended a step or join half way; some parameters are updated and some are "
          "not");
    }
  }

  static void require_scale(double learning_rate_scale) {
    if (!std::isfinite(learning_rate_scale) || learning_rate_scale < 0) {
      throw usage_error(
          fmt::format("step: a learning rate cannot be scaled by {}", learning_rate_scale));
    }
  }

  void require_step(std::string_view what) const {
    require_released(what);
    require_values();
  }

  void require_joined() const {
    if constexpr (elastic) {
      if (!context_.sites.joins()) return;
      throw usage_error(
          "this site comes to others that train already and has not joined them: call join, and "
          "not initialize");
    }
  }

  void require_unit(std::size_t unit) const {
    if (unit >= plan().spec.units().size()) {
      throw usage_error(fmt::format("there is no unit {}; the model has {} units", unit,
                                    plan().spec.units().size()));
    }
  }

  void require_released(std::string_view what) const {
    if (const auto unit = parameters_.in_use()) {
      throw usage_error(fmt::format("{} while unit '{}' is in use; release it first", what, *unit));
    }
  }

  [[nodiscard]] bool is_here(std::size_t i) const {
    return plan().local_segments[i].rank == context_.rank();
  }
  [[nodiscard]] bool is_trainable_here(std::size_t i) const {
    const std::size_t item = plan().local_segments[i].item;
    return is_here(i) && plan().tensors[plan().items[item].tensor].optimizer >= 0;
  }

  context context_;
  site_map map_;
  parameters parameters_;
  master_parameters<context> masters_;
  gradients_type gradients_;
  global_norm<context> norm_;
  optimizer_states<context, Rules> states_;
  site_exchange<context> sites_;
  detail::array_list arrays_;
  std::vector<model_rule> rules_;
  std::vector<std::vector<gradient*>> gradient_pointers_;  // by unit
  std::vector<std::size_t> forward_;
  std::vector<std::size_t> backward_;
  std::int64_t step_ = 0;
  bool initialized_ = false;
  bool compared_ = false;      // the initial values with those of other sites
  bool clipped_ = false;       // since the last step
  std::vector<bool> refused_;  // items that the clip found to have no usable gradient
  bool torn_ = false;          // a step began and did not end
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace mfsdp::inline MFSDP_ABI
