// Sites that train one parameter under a PeriodicOptimizer, as a plain loop: the order of calls that
// the contract promises, and means by addition in the order of the sites. Nothing of the runtime.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "mfsdp/backend/eigen.hpp"
#include "mfsdp/concepts.hpp"

namespace mfsdp_test {

template <class O>
concept StartsStates = requires(const O& rule, mfsdp::eigen_backend& backend,
                                const mfsdp::state_spans<O, double>& states,
                                mfsdp::matrix_view<double> parameter,
                                mfsdp::update_context<double> context) {
  rule.start(backend, states, parameter, context);
};

// One rule on one parameter of one site.
template <class T, class O>
class site {
 public:
  site(const O& rule, mfsdp::matrix_shape shape, const std::vector<T>& start, std::size_t item)
      : rule_(rule),
        shape_(shape),
        item_(item),
        parameter_(backend_.allocate<T>(shape.elements())),
        workspace_(backend_.allocate<T>(rule.workspace_size(shape))) {
    backend_.copy(std::span(start), parameter_.span());
    for (const mfsdp::state_spec& state : rule.states(shape)) {
      states_.push_back(backend_.allocate<T>(state.elements));
      backend_.fill(states_.back().span(), T(0));
    }
    if constexpr (StartsStates<O>) {
      rule_.start(backend_, states(), parameter(), context(0));
    }
  }

  mfsdp::matrix_view<T> parameter() { return {parameter_.span().data(), shape_}; }
  std::span<T> state(std::size_t i) { return states_[i].span(); }
  // What exchanges() numbers: the parameter, then the states.
  std::span<T> exchanged(std::size_t i) { return i == 0 ? parameter_.span() : state(i - 1); }

  void update(std::int64_t step, const std::vector<T>& gradient) {
    rule_.update(backend_, states(), parameter(), view(gradient), context(step));
  }
  void contribute(std::int64_t step, const std::vector<T>& gradient, int round) {
    const auto g = gradient.empty() ? mfsdp::matrix_view<const T>{} : view(gradient);
    rule_.contribute(backend_, states(), parameter(), g, context(step), round);
  }
  void adopt(std::int64_t step, int round) {
    rule_.adopt(backend_, states(), parameter(), context(step), round);
  }

 private:
  mfsdp::matrix_view<const T> view(const std::vector<T>& x) const { return {x.data(), shape_}; }
  auto states() {
    mfsdp::state_spans<O, T> spans;
    for (std::size_t i = 0; i < spans.size(); ++i) spans[i] = state(i);
    return spans;
  }
  // With a workspace that no earlier call has left anything in.
  mfsdp::update_context<T> context(std::int64_t step) {
    backend_.fill(workspace_.span(), std::numeric_limits<T>::quiet_NaN());
    return {step, 1, workspace_.span(), step, item_};
  }

  mfsdp::eigen_backend backend_;
  O rule_;
  mfsdp::matrix_shape shape_;
  std::size_t item_;
  mfsdp::host_buffer<T> parameter_, workspace_;
  std::vector<mfsdp::host_buffer<T>> states_;
};

template <class T, class O>
class site_loop {
 public:
  site_loop(const O& rule, mfsdp::matrix_shape shape, const std::vector<T>& start,
            std::size_t sites, std::size_t item = 0)
      : rule_(rule), shape_(shape), item_(item) {
    for (std::size_t m = 0; m < sites; ++m) sites_.emplace_back(rule, shape, start, item);
  }

  // One step of all sites with gradient(site, step), which may read the parameters.
  template <class Gradient>
  void step(const Gradient& gradient) {
    ++step_;
    sent = 0;
    std::vector<std::vector<T>> gradients;
    for (std::size_t m = 0; m < sites_.size(); ++m) gradients.push_back(gradient(m, step_));
    for (int round = 0; round < O::rounds_before_update; ++round) exchange(round, gradients);
    for (std::size_t m = 0; m < sites_.size(); ++m) sites_[m].update(step_, gradients[m]);
    const std::vector<std::vector<T>> none(sites_.size());
    for (int round = 0; round < O::rounds_after_update; ++round) {
      exchange(O::rounds_before_update + round, none);
    }
  }

  std::vector<T> parameter(std::size_t m) { return copy(sites_[m].exchanged(0)); }
  std::vector<T> state(std::size_t m, std::string_view name) {
    const auto specs = rule_.states(shape_);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if (specs[i].name == name) return copy(sites_[m].state(i));
    }
    throw std::logic_error("no such state");
  }
  bool parameters_equal() {
    for (std::size_t m = 1; m < sites_.size(); ++m) {
      if (parameter(m) != parameter(0)) return false;
    }
    return true;
  }

  mfsdp::index_t sent = 0;  // elements of one site in the last step

 private:
  void exchange(int round, const std::vector<std::vector<T>>& gradients) {
    const auto flags = rule_.exchanges(shape_, {step_, item_, round});
    if (std::ranges::find(flags, true) == flags.end()) return;
    for (std::size_t m = 0; m < sites_.size(); ++m) {
      sites_[m].contribute(step_, gradients[m], round);
    }
    for (std::size_t i = 0; i < flags.size(); ++i) {
      if (!flags[i]) continue;
      std::vector<T> mean = copy(sites_[0].exchanged(i));
      sent += std::ssize(mean);
      for (std::size_t e = 0; e < mean.size(); ++e) {
        for (std::size_t m = 1; m < sites_.size(); ++m) mean[e] += sites_[m].exchanged(i)[e];
        mean[e] /= static_cast<T>(sites_.size());
      }
      for (auto& s : sites_) std::ranges::copy(mean, s.exchanged(i).begin());
    }
    for (auto& s : sites_) s.adopt(step_, round);
  }
  static std::vector<T> copy(std::span<const T> x) { return {x.begin(), x.end()}; }

  O rule_;
  mfsdp::matrix_shape shape_;
  std::size_t item_;
  std::vector<site<T, O>> sites_;
  std::int64_t step_ = 0;
};

// A PeriodicOptimizer alone, as an Optimizer that optimizer_conformance takes: with a single site a
// mean is what is there, and all else is called as ever.
template <class O>
struct on_one_site {
  O rule;

  static constexpr std::string_view name = O::name;
  static constexpr bool whole_matrix = O::whole_matrix;
  static constexpr bool squares_gradient = requires { requires O::squares_gradient; };

  mfsdp::index_t flops(mfsdp::matrix_shape shape) const { return rule.flops(shape); }
  auto states(mfsdp::matrix_shape shape) const { return rule.states(shape); }
  mfsdp::index_t workspace_size(mfsdp::matrix_shape shape) const {
    return rule.workspace_size(shape);
  }

  template <class B, class T>
  void update(B& backend, const mfsdp::state_spans<O, T>& states, mfsdp::matrix_view<T> parameter,
              std::type_identity_t<mfsdp::matrix_view<const T>> gradient,
              mfsdp::update_context<T> context) const {
    context.model_step = context.step;
    if constexpr (StartsStates<O>) {
      if (context.step == 1) rule.start(backend, states, parameter, context);
    }
    const auto rounds = [&](int first, int count, mfsdp::matrix_view<const T> g) {
      for (int round = first; round < first + count; ++round) {
        const auto flags =
            rule.exchanges(parameter.shape(), {context.model_step, context.item, round});
        if (std::ranges::find(flags, true) == flags.end()) continue;
        rule.contribute(backend, states, parameter, g, context, round);
        rule.adopt(backend, states, parameter, context, round);
      }
    };
    rounds(0, O::rounds_before_update, gradient);
    rule.update(backend, states, parameter, gradient, context);
    rounds(O::rounds_before_update, O::rounds_after_update, {});
  }
};

template <class O>
on_one_site(O) -> on_one_site<O>;

}  // namespace mfsdp_test
