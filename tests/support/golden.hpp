// Reader of golden files: named cases of scalar parameters and matrices.
//
//   # comment
//   CASE name
//   P key value
//   M key rows cols      then rows lines of cols numbers
//   END
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "mfsdp/view.hpp"

namespace mfsdp_test {

struct golden_matrix {
  mfsdp::matrix_shape shape{};
  std::vector<double> values;

  // The same numbers in another precision.
  template <class T>
  std::vector<T> as() const {
    std::vector<T> converted;
    for (const double value : values) converted.push_back(static_cast<T>(value));
    return converted;
  }
};

struct golden_case {
  std::map<std::string, std::string> parameters;
  std::map<std::string, golden_matrix> matrices;

  double number(const std::string& key) const { return std::stod(parameters.at(key)); }
  const golden_matrix& operator[](const std::string& key) const { return matrices.at(key); }
};

// All cases of a file below MFSDP_TEST_DATA. Throws on a missing or malformed file.
inline std::map<std::string, golden_case> read_golden(const std::string& file) {
  const std::string path = MFSDP_TEST_DATA "/" + file;
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot read " + path);
  std::map<std::string, golden_case> cases;
  golden_case* current = nullptr;
  std::string word, key;
  while (in >> word) {
    if (word[0] == '#') {
      std::getline(in, word);
    } else if (word == "CASE" && in >> key) {
      current = &cases[key];
    } else if (word == "P" && current && in >> key) {
      in >> current->parameters[key];
    } else if (word == "M" && current && in >> key) {
      golden_matrix& m = current->matrices[key];
      in >> m.shape.rows >> m.shape.cols;
      m.values.resize(static_cast<std::size_t>(m.shape.elements()));
      for (double& value : m.values) in >> value;
    } else if (word == "END") {
      current = nullptr;
    } else {
      throw std::runtime_error(path + ": unexpected '" + word + "'");
    }
  }
  if (current || cases.empty()) throw std::runtime_error(path + ": incomplete");
  return cases;
}

// The gradient of step t in the cases of a file that do not list it.
template <class T>
std::vector<T> golden_gradient(mfsdp::matrix_shape shape, int t) {
  std::vector<T> g;
  for (int i = 0; i < shape.rows; ++i) {
    for (int j = 0; j < shape.cols; ++j) {
      const double phase = 0.7 * t * (1 + 0.2 * i - 0.5 * j);
      g.push_back(static_cast<T>(std::sin(0.8 + 2.0 * i + 0.5 * j + 1.8 * i * j + phase)));
    }
  }
  return g;
}

// The parameter before the first step in such cases.
template <class T>
std::vector<T> golden_weight(mfsdp::matrix_shape shape) {
  std::vector<T> w;
  for (int i = 0; i < shape.rows; ++i) {
    for (int j = 0; j < shape.cols; ++j) {
      w.push_back(static_cast<T>(0.5 * std::cos(0.3 + 0.9 * i - 0.4 * j + 0.5 * i * j)));
    }
  }
  return w;
}

// The largest difference, relative to the largest expected entry (absolute if all are zero);
// infinite if the sizes differ or an entry is not finite.
template <class T>
double relative_distance(const std::vector<T>& got, const std::vector<double>& expected) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (got.size() != expected.size()) return infinity;
  double difference = 0;
  double largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) return infinity;
    difference = std::max(difference, std::abs(static_cast<double>(got[i]) - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  return largest == 0 ? difference : difference / largest;
}

}  // namespace mfsdp_test
