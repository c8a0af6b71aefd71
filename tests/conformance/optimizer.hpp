// Conformance of an Optimizer, for this library's and for yours: call
// optimizer_conformance(my_rule) in a doctest case. Add a backend of your own if the rule needs
// one.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "conformance/host_copy.hpp"
#include "mfsdp/backend/eigen.hpp"
#include "mfsdp/concepts.hpp"

namespace mfsdp_test {

// One parameter with its states and a gradient for each step, in the memory of a backend, with
// guards around everything that an update may write.
template <class T, class O, class B>
class optimizer_bench {
 public:
  // `shift` elements past storage_alignment stand parameter and gradient.
  optimizer_bench(const O& optimizer, B& backend, mfsdp::matrix_shape shape,
                  mfsdp::index_t shift = 0)
      : optimizer_(optimizer),
        backend_(backend),
        shape_(shape),
        shift_(shift),
        parameter_(make(shape.elements() + shift)),
        gradient_(make(shape.elements() + shift)),
        workspace_(make(optimizer.workspace_size(shape))) {
    to_backend(
        backend,
        host_values<T>(shape.elements(),
                       [](mfsdp::index_t i) {
                         return static_cast<T>(0.5 * std::cos(0.3 + 0.9 * static_cast<double>(i)));
                       }),
        parameter_view().flat());
    for (const mfsdp::state_spec& state : optimizer.states(shape)) {
      states_.push_back(make(state.elements));
      backend.fill(mfsdp::slice(states_.back().span(), 0, state.elements), T(0));
    }
    if constexpr (requires(mfsdp::update_context<T> c) {
                    optimizer.start(backend, state_views(), parameter_view(), c);
                  }) {
      optimizer.start(backend, state_views(), parameter_view(),
                      mfsdp::update_context<T>{.step = 0, .workspace = scratch(T(0))});
    }
  }

  std::vector<T> parameter() { return on_host(backend_, parameter_view().flat()); }
  std::vector<T> state(std::size_t i) { return on_host(backend_, state_view(i)); }

  // One update with a gradient of this size; false if it wrote the gradient or past its spans.
  bool update(std::int64_t step, double gradient_scale = 1, T rate = 1, T workspace = T(0)) {
    const auto gradient = mfsdp::slice(gradient_.span(), shift_, shape_.elements());
    const auto before = host_values<T>(shape_.elements(), [&](mfsdp::index_t i) {
      return static_cast<T>(gradient_scale * std::sin(0.8 + 2.3 * static_cast<double>(i) +
                                                      0.7 * static_cast<double>(step)));
    });
    to_backend(backend_, before, gradient);
    optimizer_.update(backend_, state_views(), parameter_view(),
                      mfsdp::matrix_view<const T>(gradient.data(), shape_),
                      mfsdp::update_context<T>{.step = step,
                                               .learning_rate_scale = rate,
                                               .workspace = scratch(workspace),
                                               .model_step = step});
    bool contained = before == on_host(backend_, gradient) && guarded(parameter_) &&
                     guarded(gradient_) && guarded(workspace_);
    for (auto& buffer : states_) contained = contained && guarded(buffer);
    return contained;
  }

 private:
  static constexpr mfsdp::index_t guard = 64;
  static constexpr T mark = T(12345);

  mfsdp::matrix_view<T> parameter_view() { return {parameter_.span().data() + shift_, shape_}; }
  std::span<T> state_view(std::size_t i) {
    return mfsdp::slice(states_[i].span(), 0, optimizer_.states(shape_)[i].elements);
  }
  mfsdp::state_spans<O, T> state_views() {
    mfsdp::state_spans<O, T> spans;
    for (std::size_t i = 0; i < spans.size(); ++i) spans[i] = state_view(i);
    return spans;
  }
  std::span<T> scratch(T content) {
    const auto all = mfsdp::slice(workspace_.span(), 0, optimizer_.workspace_size(shape_));
    backend_.fill(all, content);
    return all;
  }

  auto make(mfsdp::index_t size) const {
    auto buffer = backend_.template allocate<T>(size + guard);
    backend_.fill(buffer.span(), mark);
    return buffer;
  }
  template <class Buffer>
  bool guarded(Buffer& buffer) const {
    return std::ranges::all_of(on_host(backend_, buffer.span().last(guard)),
                               [](T x) { return x == mark; });
  }

  using memory = decltype(std::declval<B&>().template allocate<T>(1));
  O optimizer_;
  B& backend_;
  mfsdp::matrix_shape shape_;
  mfsdp::index_t shift_;
  memory parameter_, gradient_, workspace_;
  std::vector<memory> states_;
};

template <class T>
bool all_finite(std::span<const T> x) {
  return std::ranges::all_of(x, [](T e) { return std::isfinite(e); });
}

template <class T, class O, class B>
void optimizer_conformance_on(const O& optimizer, B& backend, mfsdp::matrix_shape shape) {
  using bench = optimizer_bench<T, O, B>;
  CAPTURE(shape.rows);
  CAPTURE(shape.cols);
  constexpr std::size_t states = std::tuple_size_v<mfsdp::state_spans<O, T>>;
  const auto equal = [](bench& a, bench& b) {
    bool same = a.parameter() == b.parameter();
    for (std::size_t i = 0; i < states; ++i) same = same && a.state(i) == b.state(i);
    return same;
  };
  const auto finite = [](bench& a) {
    bool all = all_finite<T>(a.parameter());
    for (std::size_t i = 0; i < states; ++i) all = all && all_finite<T>(a.state(i));
    return all;
  };

  // Sizes are counts, and a function of the shape.
  CHECK(optimizer.flops(shape) >= 0);
  CHECK(optimizer.workspace_size(shape) >= 0);
  CHECK(optimizer.workspace_size(shape) == optimizer.workspace_size(shape));
  std::set<std::string_view> names;
  for (const mfsdp::state_spec& state : optimizer.states(shape)) {
    CHECK(state.elements >= 0);
    CHECK_FALSE(state.name.empty());
    CHECK(names.insert(state.name).second);
  }

  // The same bits again, whatever the workspace holds and wherever parameter and gradient stand.
  bench first(optimizer, backend, shape);
  bench poisoned(optimizer, backend, shape);
  bench shifted(optimizer, backend, shape, 1);
  for (std::int64_t step = 1; step <= 3; ++step) {
    CHECK(first.update(step));
    CHECK(poisoned.update(step, 1, 1, std::numeric_limits<T>::quiet_NaN()));
    CHECK(shifted.update(step));
    CHECK(finite(first));
    CHECK(equal(first, poisoned));
    CHECK(equal(first, shifted));
  }

  // A gradient does something, at a rate of zero it moves no parameter, and none of a size that a
  // float can square breaks the arithmetic.
  if (shape.elements() > 0) {
    bench fresh(optimizer, backend, shape);
    CHECK_FALSE(first.parameter() == fresh.parameter());
  }
  bench still(optimizer, backend, shape);
  bench start(optimizer, backend, shape);
  CHECK(still.update(1, 1, T(0)));
  CHECK(still.parameter() == start.parameter());
  for (const double scale : {0.0, 1e-30, 1e-12, 1e12}) {
    CAPTURE(scale);
    bench extreme(optimizer, backend, shape);
    CHECK(extreme.update(1, scale));
    CHECK(all_finite<T>(extreme.parameter()));
  }
}

// For rules that work on any piece: every cut gives the bits of the whole.
template <class T, class O, class B>
void piecewise_conformance(const O& optimizer, B& backend) {
  constexpr mfsdp::index_t size = 2500;
  constexpr std::size_t states = std::tuple_size_v<mfsdp::state_spans<O, T>>;
  const auto train = [&](std::vector<mfsdp::index_t> cuts) {
    auto parameter = backend.template allocate<T>(size);
    auto gradient = backend.template allocate<T>(size);
    std::vector<decltype(parameter)> state;
    for (std::size_t i = 0; i < states; ++i) {
      state.push_back(backend.template allocate<T>(size));
      backend.fill(state.back().span(), T(0));
    }
    to_backend(backend,
               host_values<T>(size,
                              [](mfsdp::index_t i) {
                                return static_cast<T>(std::cos(0.9 * static_cast<double>(i)));
                              }),
               parameter.span());
    cuts.push_back(size);
    for (std::int64_t step = 1; step <= 3; ++step) {
      to_backend(backend,
                 host_values<T>(size,
                                [&](mfsdp::index_t i) {
                                  return static_cast<T>(std::sin(2.3 * static_cast<double>(i + 1) *
                                                                 0.7 * static_cast<double>(step)));
                                }),
                 gradient.span());
      mfsdp::index_t from = 0;
      for (const mfsdp::index_t to : cuts) {
        const mfsdp::matrix_shape shape{1, to - from};
        auto workspace = backend.template allocate<T>(optimizer.workspace_size(shape));
        mfsdp::state_spans<O, T> spans;
        for (std::size_t i = 0; i < states; ++i) {
          REQUIRE(optimizer.states(shape)[i].elements == shape.elements());
          spans[i] = mfsdp::slice(state[i].span(), from, to - from);
        }
        optimizer.update(backend, spans,
                         mfsdp::matrix_view<T>(parameter.span().data() + from, shape),
                         mfsdp::matrix_view<const T>(gradient.span().data() + from, shape),
                         mfsdp::update_context<T>{step, T(1), workspace.span()});
        from = to;
      }
    }
    std::vector<T> result = on_host(backend, parameter.span());
    for (auto& s : state) {
      const std::vector<T> values = on_host(backend, s.span());
      result.insert(result.end(), values.begin(), values.end());
    }
    return result;
  };
  const std::vector<T> whole = train({});
  CHECK(train({1024, 2048}) == whole);
  CHECK(train({64}) == whole);
  CHECK(train({1, 2, 3, 70, 133, 133, 1000, 2499}) == whole);
}

template <class O, class B = mfsdp::eigen_backend>
void optimizer_conformance(O optimizer, B backend = {}) {
  static_assert(mfsdp::UpdatesOn<O, B>);
  CHECK_FALSE(std::string_view(O::name).empty());
  const auto in = [&]<class T>(T) {
    for (const mfsdp::matrix_shape shape : {mfsdp::matrix_shape{0, 0},
                                            {0, 5},
                                            {1, 1},
                                            {1, 37},
                                            {37, 1},
                                            {3, 5},
                                            {16, 16},
                                            {70, 33},
                                            {33, 70},
                                            {8, 4096}}) {
      optimizer_conformance_on<T>(optimizer, backend, shape);
    }
    if constexpr (!O::whole_matrix) piecewise_conformance<T>(optimizer, backend);
  };
  in(float{});
  in(double{});
}

}  // namespace mfsdp_test
