// Sites that train one parameter with a PeriodicOptimizer, by the contract alone: plain loops and
// nothing of the runtime. The reference for everything that connects sites.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "mfsdp/backend/eigen.hpp"
#include "mfsdp/concepts.hpp"

namespace mfsdp_test {

template <class T, mfsdp::PeriodicOptimizer O, class B = mfsdp::eigen_backend>
class plain_sites {
 public:
  static constexpr std::size_t state_count = std::tuple_size_v<mfsdp::state_spans<O, T>>;

  plain_sites(const O& rule, mfsdp::matrix_shape shape, std::size_t sites,
              const std::vector<T>& start, std::size_t item = 0)
      : rule_(rule), shape_(shape), item_(item) {
    if constexpr (mfsdp::ChecksOptions<O>) rule.check();
    for (std::size_t i = 0; i < sites; ++i) {
      site& s = sites_.emplace_back();
      s.parameter = backend_.template allocate<T>(shape.elements());
      backend_.copy(std::span<const T>(start), s.parameter.span());
      for (std::size_t k = 0; k < state_count; ++k) {
        s.states[k] = backend_.template allocate<T>(rule.states(shape)[k].elements);
        backend_.fill(s.states[k].span(), T(0));
      }
      if constexpr (requires(mfsdp::update_context<T> c) {
                      rule.start(backend_, spans(s), view(s), c);
                    }) {
        rule.start(backend_, spans(s), view(s), context(s));
      }
    }
  }

  // One step of the model. A site with an empty gradient has an unusable one: it does not count in
  // the means before the update, and updates only from such a mean. If all are empty, a whole
  // matrix is left out of the step. A test may look at the sites
  // after the updates, and when the means of a round have replaced what they are means of but are
  // not adopted.
  void step(
      const std::vector<std::vector<T>>& gradients, const std::function<void()>& updated = [] {},
      const std::function<void(int)>& averaged = [](int) {}) {
    ++model_step_;
    const bool heard = !O::whole_matrix || std::ranges::any_of(gradients, [](const auto& gradient) {
      return !gradient.empty();
    });
    for (int round = 0; heard && round < O::rounds_before_update; ++round) {
      exchange(round, gradients, averaged);
    }
    for (std::size_t i = 0; heard && i < sites_.size(); ++i) {
      constexpr bool from_mean = requires { requires O::updates_from_mean; };
      if (gradients[i].empty() && !from_mean) continue;
      ++sites_[i].updates;
      rule_.update(backend_, spans(sites_[i]), view(sites_[i]), gradient(gradients[i]),
                   context(sites_[i]));
    }
    updated();
    for (int round = 0; round < O::rounds_after_update; ++round) {
      exchange(O::rounds_before_update + round, {}, averaged);
    }
  }

  [[nodiscard]] std::size_t size() const { return sites_.size(); }
  [[nodiscard]] std::vector<T> parameter(std::size_t which = 0) const {
    const auto x = sites_[which].parameter.span();
    return {x.begin(), x.end()};
  }
  [[nodiscard]] std::vector<T> state(std::size_t k, std::size_t which = 0) const {
    const auto x = sites_[which].states[k].span();
    return {x.begin(), x.end()};
  }
  // Elements that each site has handed in so far.
  [[nodiscard]] std::int64_t exchanged() const { return exchanged_; }

 private:
  struct site {
    mfsdp::host_buffer<T> parameter;
    std::array<mfsdp::host_buffer<T>, state_count> states{};
    std::int64_t updates = 0;
  };

  [[nodiscard]] mfsdp::state_spans<O, T> spans(site& s) const {
    mfsdp::state_spans<O, T> all;
    for (std::size_t k = 0; k < state_count; ++k) all[k] = s.states[k].span();
    return all;
  }
  [[nodiscard]] mfsdp::matrix_view<T> view(site& s) const {
    return {s.parameter.span().data(), shape_};
  }
  [[nodiscard]] mfsdp::matrix_view<const T> gradient(std::span<const T> values) const {
    return {values.data(), values.empty() ? mfsdp::matrix_shape{} : shape_};
  }
  // Every call finds another workspace, full of numbers that nobody may use.
  [[nodiscard]] mfsdp::update_context<T> context(const site& s) {
    workspace_ = backend_.template allocate<T>(rule_.workspace_size(shape_));
    backend_.fill(workspace_.span(), std::numeric_limits<T>::quiet_NaN());
    return {.step = s.updates,
            .learning_rate_scale = 1,
            .workspace = workspace_.span(),
            .model_step = model_step_,
            .item = item_};
  }

  void exchange(int round, const std::vector<std::vector<T>>& gradients,
                const std::function<void(int)>& averaged) {
    const auto flags = rule_.exchanges(shape_, {model_step_, item_, round});
    if (std::ranges::none_of(flags, [](bool flag) { return flag; })) return;
    std::vector<std::size_t> counted;
    for (std::size_t i = 0; i < sites_.size(); ++i) {
      if (!gradients.empty() && gradients[i].empty()) continue;
      counted.push_back(i);
      rule_.contribute(backend_, spans(sites_[i]), view(sites_[i]),
                       gradients.empty() ? gradient({}) : gradient(gradients[i]),
                       context(sites_[i]), round);
    }
    for (std::size_t k = 0; k < flags.size(); ++k) {
      if (!flags[k]) continue;
      const auto part = [&](std::size_t i) {
        return k == 0 ? sites_[i].parameter.span() : sites_[i].states[k - 1].span();
      };
      exchanged_ += std::ssize(part(0));
      if (counted.empty() && k == 0) continue;
      for (std::size_t j = 0; j < part(0).size(); ++j) {
        T sum = 0;
        for (const std::size_t i : counted) sum += part(i)[j];
        const T mean = counted.empty() ? T(0) : sum / static_cast<T>(counted.size());
        for (std::size_t i = 0; i < sites_.size(); ++i) part(i)[j] = mean;
      }
    }
    averaged(round);
    for (site& s : sites_) rule_.adopt(backend_, spans(s), view(s), context(s), round);
  }

  O rule_;
  mfsdp::matrix_shape shape_;
  std::size_t item_;
  B backend_{};
  std::vector<site> sites_;
  mfsdp::host_buffer<T> workspace_;
  std::int64_t model_step_ = 0;
  std::int64_t exchanged_ = 0;
};

}  // namespace mfsdp_test
