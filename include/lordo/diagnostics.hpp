// diagnostics: what the low-rank rules of a model tell of their bases, and when to worry.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lordo/optimizer/figures.hpp"
#include "mfsdp/error.hpp"
#include "mfsdp/runtime/arrays.hpp"

namespace lordo::inline MFSDP_ABI {

// One matrix of low rank; figures.hpp has the meaning of the numbers.
struct basis_state {
  std::string tensor;
  mfsdp::index_t offset = 0;  // of a row group or slice, from the start of the tensor
  double movement = 0;
  double ratio = 0;
  double captured = 0;
  int still = 0;
};

struct basis_report {
  std::vector<basis_state> matrices;
  std::vector<std::string> full_size;  // tensors with no side above the rank: updated at full size

  [[nodiscard]] double mean(double basis_state::* figure) const {
    double sum = 0;
    for (const basis_state& matrix : matrices) sum += matrix.*figure;
    return matrices.empty() ? 0 : sum / static_cast<double>(matrices.size());
  }
};

// What this rank holds. Cost: a copy of four numbers a matrix.
template <class Model>
[[nodiscard]] basis_report describe_bases(Model& model) {
  basis_report report;
  const auto held = model.persistence();
  held.for_each_held([&](const mfsdp::held_part& part, auto values) {
    if (held.arrays()[part.array].state != "figures") return;
    const mfsdp::placement_item& item = model.plan().items[part.item];
    if (values.empty()) {
      if (report.full_size.empty() || report.full_size.back() != item.name) {
        report.full_size.push_back(item.name);
      }
      return;
    }
    std::array<float, figure::count> host{};
    held.read(std::span<const float>(values), std::span<float>(host));
    report.matrices.push_back({item.name, item.offset, host[figure::movement], host[figure::ratio],
                               host[figure::captured], static_cast<int>(host[figure::still])});
  });
  return report;
}

// For a log: a line of means, a warning if bases have not moved for `patience` changes, and a line
// for each matrix that is too narrow for a basis.
[[nodiscard]] inline std::string to_text(const basis_report& report, int patience = 3) {
  std::string text;
  if (!report.matrices.empty()) {
    text += fmt::format(
        "{} bases: movement {:.3f}, full-rank over low-rank term {:.2f}, captured {:.3f}\n",
        report.matrices.size(), report.mean(&basis_state::movement),
        report.mean(&basis_state::ratio), report.mean(&basis_state::captured));
  }
  std::size_t still = 0;
  std::string first;
  for (const basis_state& matrix : report.matrices) {
    if (matrix.still < patience) continue;
    if (still++ == 0) first = matrix.tensor;
  }
  if (still > 0) {
    text += fmt::format(
        "warning: {} of {} bases, '{}' among them, have not moved for {} meetings or more; "
        "training "
        "goes on in one subspace only: lower omega, or take random_projection\n",
        still, report.matrices.size(), first, patience);
  }
  for (const std::string& tensor : report.full_size) {
    text += fmt::format("'{}' has a side within the rank and is updated at full size\n", tensor);
  }
  return text;
}

}  // namespace lordo::inline MFSDP_ABI
