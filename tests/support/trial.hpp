// One parameter under an optimizer of whole matrices, with its states and its scratch memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "mfsdp/backend/eigen.hpp"
#include "mfsdp/concepts.hpp"

namespace mfsdp_test {

template <class T, class O, class B = mfsdp::eigen_backend>
class trial {
 public:
  trial(const O& optimizer, mfsdp::matrix_shape shape, std::vector<T> start, B device = {})
      : rule(optimizer),
        backend(device),
        parameter(std::move(start)),
        shape_(shape),
        workspace_(backend.template allocate<T>(rule.workspace_size(shape))) {
    for (const mfsdp::state_spec& state : rule.states(shape)) {
      states_.emplace_back(static_cast<std::size_t>(state.elements), T(0));
    }
  }

  // The steps are counted.
  void step(const std::vector<T>& gradient) {
    mfsdp::state_spans<O, T> spans;
    std::copy(states_.begin(), states_.end(), spans.begin());
    rule.update(backend, spans, mfsdp::matrix_view<T>(parameter.data(), shape_),
                mfsdp::matrix_view<const T>(gradient.data(), shape_),
                mfsdp::update_context<T>{++steps_, 1, workspace_.span()});
  }

  std::vector<T>& state(std::string_view name) {
    const auto specs = rule.states(shape_);
    const auto at = std::ranges::find(specs, name, &mfsdp::state_spec::name);
    if (at == specs.end()) throw std::logic_error("no such state");
    return states_[static_cast<std::size_t>(at - specs.begin())];
  }

  O rule;
  B backend;
  std::vector<T> parameter;

 private:
  mfsdp::matrix_shape shape_;
  mfsdp::host_buffer<T> workspace_;
  std::vector<std::vector<T>> states_;
  std::int64_t steps_ = 0;
};

// c = op(a) op(b) of row-major matrices, by loops in double: (m x k) (k x n).
template <class T>
std::vector<double> product(const std::vector<T>& a, const std::vector<T>& b, std::size_t m,
                            std::size_t k, std::size_t n, bool transpose_b = false) {
  std::vector<double> c(m * n, 0.0);
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      for (std::size_t l = 0; l < k; ++l) {
        c[i * n + j] += static_cast<double>(a[i * k + l]) *
                        static_cast<double>(transpose_b ? b[j * k + l] : b[l * n + j]);
      }
    }
  }
  return c;
}

// An eigen_backend whose decompositions fail while `fails` points to true.
struct failing_backend : mfsdp::eigen_backend {
  const bool* fails = nullptr;

  template <class T>
  [[nodiscard]] bool symmetric_eigen(mfsdp::matrix_view<T> a, std::span<T> values) const {
    return !*fails && mfsdp::eigen_backend::symmetric_eigen(a, values);
  }
};

}  // namespace mfsdp_test
