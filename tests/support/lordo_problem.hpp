// The problem of lordo_golden.txt: a quadratic for each of two sites, with a gradient that is noisy
// in a way that can be written down.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "support/golden.hpp"

namespace mfsdp_test {

class lordo_problem {
 public:
  static constexpr mfsdp::matrix_shape shape{3, 4};

  explicit lordo_problem(const std::map<std::string, golden_case>& file)
      : targets_{file.at("input")["target_w0"].values, file.at("input")["target_w1"].values},
        start_(file.at("A")["theta0"].values) {}

  [[nodiscard]] const std::vector<double>& start() const { return start_; }

  // G_ij = a_i b_j (X_ij - target_ij) + (((7i + 3j + 5t + 11m) mod 13) - 6) / 10
  [[nodiscard]] std::vector<double> gradient(const std::vector<double>& x, int m, int t) const {
    constexpr double rows[2][3] = {{1, 0.75, 0.5}, {0.875, 1, 0.625}};
    constexpr double cols[4] = {1, 0.5, 0.75, 1.25};
    std::vector<double> g;
    for (int i = 0; i < 3; ++i) {
      for (int j = 0; j < 4; ++j) {
        const auto at = static_cast<std::size_t>(4 * i + j);
        const double noise = ((7 * i + 3 * j + 5 * t + 11 * m) % 13 - 6) / 10.0;
        g.push_back(rows[m][i] * cols[j] * (x[at] - targets_[static_cast<std::size_t>(m)][at]) +
                    noise);
      }
    }
    return g;
  }

  // A basis by rows, as the file has it: by columns.
  [[nodiscard]] static std::vector<double> columns(const std::vector<double>& basis,
                                                   std::size_t rank) {
    std::vector<double> q;
    for (std::size_t i = 0; i < basis.size() / rank; ++i) {
      for (std::size_t k = 0; k < rank; ++k) q.push_back(basis[k * basis.size() / rank + i]);
    }
    return q;
  }

  // The largest difference, absolute.
  [[nodiscard]] static double distance(const std::vector<double>& got,
                                       const golden_matrix& expected) {
    if (got.size() != expected.values.size()) return std::numeric_limits<double>::infinity();
    double largest = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double difference = std::abs(got[i] - expected.values[i]);
      largest = difference <= largest ? largest : difference;  // NaN becomes the largest
    }
    return largest;
  }

 private:
  std::vector<double> targets_[2];
  std::vector<double> start_;
};

}  // namespace mfsdp_test
