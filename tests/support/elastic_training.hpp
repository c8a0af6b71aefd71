// Training on an elastic_world, one rank for each site: a rule that keeps something for its own
// site only, a look at what a site is about to call, and bodies that vanish on demand.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "mfsdp/collective/elastic.hpp"
#include "support/site_training.hpp"

namespace toy {

inline constexpr std::chrono::seconds patient{30};  // nothing may last as long

// Momentum with an anchor, and a rate that falls with the number of updates. Every `period` steps
// half of the way from the anchor is averaged, and the other half stays behind as error feedback;
// every `momentum_period` steps momentum is averaged.
template <bool Whole>
struct anchored_momentum {
  double learning_rate = 0.05;
  int period = 2;
  int momentum_period = 3;
  const std::function<void()>* before_update = nullptr;

  static constexpr std::string_view name = "anchored_momentum";
  static constexpr bool whole_matrix = Whole;
  static constexpr int rounds_before_update = 0;
  static constexpr int rounds_after_update = 1;

  template <class T>
  using spans = std::array<std::span<T>, 3>;

  [[nodiscard]] index_t flops(mfsdp::matrix_shape shape) const { return 4 * shape.elements(); }
  [[nodiscard]] std::array<mfsdp::state_spec, 3> states(mfsdp::matrix_shape shape) const {
    return {{{"momentum", shape.elements(), true},
             {"anchor", shape.elements(), true},
             {"feedback", shape.elements(), true}}};
  }
  [[nodiscard]] index_t workspace_size(mfsdp::matrix_shape) const { return 0; }
  [[nodiscard]] std::array<bool, 4> exchanges(mfsdp::matrix_shape,
                                              mfsdp::exchange_round now) const {
    return {now.step % period == 0, now.step % momentum_period == 0, false, false};
  }
  template <mfsdp::Backend B, class T>
  void start(B& backend, const spans<T>& state, mfsdp::matrix_view<T> parameter,
             const mfsdp::update_context<T>&) const {
    backend.copy(parameter.flat(), state[1]);
  }
  template <mfsdp::Backend B, class T>
  void join(B& backend, const spans<T>& state, mfsdp::matrix_view<T> parameter,
            const mfsdp::update_context<T>&) const {
    backend.copy(state[1], parameter.flat());
    backend.fill(state[2], T(0));
  }
  template <mfsdp::Backend B, class T>
  void update(B& backend, const spans<T>& state, mfsdp::matrix_view<T> parameter,
              std::type_identity_t<mfsdp::matrix_view<const T>> gradient,
              const mfsdp::update_context<T>& context) const {
    if (before_update != nullptr) (*before_update)();
    const double falling = 1 + 1.0 / static_cast<double>(context.step);
    const T rate = static_cast<T>(learning_rate * context.learning_rate_scale * falling);
    backend.transform(
        [rate](auto& w, auto& m, const auto& g) {
          m = T(0.9) * m + g;
          w = w - rate * m;
        },
        parameter.flat(), state[0], gradient.flat());
  }
  template <mfsdp::Backend B, class T>
  void contribute(B& backend, const spans<T>& state, mfsdp::matrix_view<T> parameter,
                  std::type_identity_t<mfsdp::matrix_view<const T>>,
                  const mfsdp::update_context<T>& context, int) const {
    if (context.model_step % period != 0) return;
    backend.transform(
        [](auto& w, auto& e, const auto& anchor) {
          e = T(0.5) * (w - anchor + e);
          w = e;
        },
        parameter.flat(), state[2], std::span<const T>(state[1]));
  }
  template <mfsdp::Backend B, class T>
  void adopt(B& backend, const spans<T>& state, mfsdp::matrix_view<T> parameter,
             const mfsdp::update_context<T>& context, int) const {
    if (context.model_step % period != 0) return;
    backend.transform(
        [](auto& w, auto& anchor) {
          anchor = anchor + w;
          w = anchor;
        },
        parameter.flat(), state[1]);
  }
};

inline auto anchored_rules(const std::function<void()>* before_update = nullptr) {
  return mfsdp::mixed{anchored_momentum<true>{.before_update = before_update},
                      anchored_momentum<false>{.before_update = before_update}};
}

// An elastic collective that first says what it is about to start.
class watched_collective {
 public:
  using request = mfsdp::elastic_collective::request;
  using watcher = std::function<void(std::string_view label)>;

  explicit watched_collective(mfsdp::elastic_collective inner, watcher watch = {})
      : inner_(std::move(inner)), watch_(std::move(watch)) {}

  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  [[nodiscard]] bool joins() const { return inner_.joins(); }
  [[nodiscard]] mfsdp::admission admit(mfsdp::deadline until) { return inner_.admit(until); }

  template <class T>
  request start_all_gather(std::span<const T> shard, std::span<T> full,
                           std::span<const mfsdp::piece> pieces, std::string_view label) {
    if (watch_) watch_(label);
    return inner_.start_all_gather(shard, full, pieces, label);
  }
  template <class From, class To>
  request start_all_reduce(std::span<const From> full, std::span<To> local,
                           std::span<const mfsdp::piece> pieces, mfsdp::reduce_into into,
                           std::string_view label) {
    if (watch_) watch_(label);
    return inner_.start_all_reduce(full, local, pieces, into, label);
  }

 private:
  mfsdp::elastic_collective inner_;
  watcher watch_;
};

// The mesh of a site of one rank.
inline auto site_of(mfsdp::elastic_collective axis, watched_collective::watcher watch = {}) {
  return mfsdp::mesh{mfsdp::self{}, mfsdp::self{},
                     watched_collective(std::move(axis), std::move(watch))};
}

// Settings of sites of one rank each, whose gradients are sums of two parts.
inline site_settings single_ranks(int sites, int steps) {
  const auto count = static_cast<std::size_t>(sites);
  return {.ranks = std::vector<int>(count, 1), .parts = std::vector<int>(count, 2), .steps = steps};
}

enum class place { forward, reduce, update, meeting };
enum class way { throws, returns, sleeps };

// Ends a site's training, or keeps it from going on until release() is called.
class blow {
 public:
  struct early_return {};

  explicit blow(way how) : how_(how) {}

  void operator()() {
    if (how_ == way::throws) throw std::runtime_error("no more disk");
    if (how_ == way::returns) throw early_return{};
    released_.wait();
  }
  void release() { released_.count_down(); }

 private:
  way how_;
  std::latch released_{1};
};

// What the sites of a run leave behind, by seat.
struct elastic_outcome {
  std::mutex mutex{};
  std::map<int, std::map<std::string, std::vector<float>>> ends{};  // of who went on to the end
  std::map<int, std::string> dropped{};                             // who was told so

  template <class Model>
  void end(Model& model) {
    auto parameters = read_parameters(model);
    const std::unique_lock guard(mutex);
    ends[model.site()] = std::move(parameters);
  }
  void drop(int seat, std::string what) {
    const std::unique_lock guard(mutex);
    dropped[seat] = std::move(what);
  }
};

inline bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// A test that waits for no timeout.
struct timed {
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  ~timed() { CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20)); }
};

template <class Error, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

inline bool mentions(const std::string& text, std::string_view part) {
  INFO(text);
  CHECK(contains(text, part));
  return contains(text, part);
}

// A run in which sites come. All go on until `awaited` of them are there, and six or seven steps
// more, the last of which ends with a meeting.
struct arrivals {
  std::size_t awaited = 1;
  std::mutex mutex{};
  std::map<int, int> first_step{};  // of those who came, by seat
  elastic_outcome outcome{};
  std::atomic<int> steps = 0;

  // What came with a step, told by everybody who was there; whether it is the last one.
  bool is_last(const mfsdp::step_result& result) {
    const std::unique_lock guard(mutex);
    for (const int seat : result.joined) came(seat, static_cast<int>(result.step));
    if (result.step > 5000) throw std::runtime_error("nobody comes");
    if (first_step.size() < awaited) return false;
    int last = 0;
    for (const auto& [seat, step] : first_step) last = std::max(last, step);
    steps = (last + 7) / 2 * 2;
    return result.step == steps;
  }

  // With the lock.
  void came(int seat, int step) {
    const auto [known, fresh] = first_step.try_emplace(seat, step);
    CHECK(known->second == step);
  }

  template <class Model>
  void train(Model& model, int step, const std::function<void(int)>& before_step = {}) {
    site_settings how = single_ranks(model.sites(), 0);
    for (bool last = false; !last; ++step) {
      if (before_step) before_step(step);
      last = is_last(step_site(model, how, step));
    }
    outcome.end(model);
  }

  // A newcomer's training, from its construction on.
  template <class Model>
  void train_newcomer(Model& model) {
    const auto step = static_cast<int>(model.join());
    {
      const std::unique_lock guard(mutex);
      came(model.site(), step);
    }
    train(model, step);
  }
};

}  // namespace toy
