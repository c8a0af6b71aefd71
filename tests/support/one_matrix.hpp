// One matrix under a rule of optimizers, in plain vectors: for golden cases and hand-made ones.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <vector>

#include "mfsdp/backend/eigen.hpp"
#include "mfsdp/concepts.hpp"

namespace mfsdp_test {

template <class T, class O>
class one_matrix {
 public:
  one_matrix(const O& rule, mfsdp::matrix_shape shape, std::vector<T> start)
      : parameter(std::move(start)), rule_(rule), shape_(shape) {
    const auto specs = rule.states(shape);
    for (std::size_t i = 0; i < states.size(); ++i) {
      states[i].assign(static_cast<std::size_t>(specs[i].elements), T(0));
    }
  }
  // From a parameter of zeros: the parameter is then minus the step.
  one_matrix(const O& rule, mfsdp::matrix_shape shape)
      : one_matrix(rule, shape, std::vector<T>(static_cast<std::size_t>(shape.elements()), T(0))) {}

  void update(const std::vector<T>& gradient) {
    mfsdp::eigen_backend backend;
    auto workspace = backend.allocate<T>(rule_.workspace_size(shape_));
    backend.fill(workspace.span(), std::numeric_limits<T>::quiet_NaN());
    mfsdp::state_spans<O, T> spans;
    for (std::size_t i = 0; i < spans.size(); ++i) spans[i] = states[i];
    ++step_;
    rule_.update(backend, spans, mfsdp::matrix_view<T>(parameter.data(), shape_),
                 mfsdp::matrix_view<const T>(gradient.data(), shape_),
                 mfsdp::update_context<T>{step_, 1, workspace.span()});
  }

  std::vector<T> parameter;
  std::array<std::vector<T>, std::tuple_size_v<mfsdp::state_spans<O, T>>> states;

 private:
  O rule_;
  mfsdp::matrix_shape shape_;
  std::int64_t step_ = 0;
};

// Full rank at any size, without symmetry.
template <class T>
std::vector<T> wavy_matrix(mfsdp::matrix_shape shape, double scale = 1) {
  std::vector<T> values;
  for (mfsdp::index_t i = 0; i < shape.elements(); ++i) {
    const double x = static_cast<double>(i);
    values.push_back(static_cast<T>(scale * std::sin(0.8 + 2.3 * x + 0.37 * x * x)));
  }
  return values;
}

template <class T>
double norm(const std::vector<T>& x) {
  return std::sqrt(mfsdp::eigen_backend().sum_of_squares(std::span(x)));
}

// In ascending order, by the eigenvalues of the smaller Gram matrix.
inline std::vector<double> singular_values(const std::vector<double>& x,
                                           mfsdp::matrix_shape shape) {
  using mfsdp::transpose;
  const bool tall = shape.rows > shape.cols;
  const mfsdp::index_t n = std::min(shape.rows, shape.cols);
  std::vector<double> gram(static_cast<std::size_t>(n * n)), values(static_cast<std::size_t>(n));
  const mfsdp::matrix_view<const double> a(x.data(), shape);
  const mfsdp::matrix_view<double> product(gram.data(), n, n);
  mfsdp::eigen_backend backend;
  backend.multiply(1.0, a, tall ? transpose::yes : transpose::no, a,
                   tall ? transpose::no : transpose::yes, 0.0, product, product);
  if (!backend.symmetric_eigen(product, std::span(values))) values.clear();
  for (double& value : values) value = std::sqrt(std::max(value, 0.0));
  return values;
}

}  // namespace mfsdp_test
