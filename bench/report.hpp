// What the benchmarks share: medians, and figures as a file.
#pragma once

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

// The upper one of two in the middle.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Nothing without a path. Errors: std::runtime_error if the file cannot be written.
inline void write_figures(const std::string& path, const nlohmann::ordered_json& figures) {
  if (path.empty()) return;
  std::ofstream file(path);
  file << figures.dump(2) << '\n';
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path);
}
