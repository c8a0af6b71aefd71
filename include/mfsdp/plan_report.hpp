// What a plan costs each rank, as numbers and as a table for people.
#pragma once

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mfsdp/plan.hpp"
#include "mfsdp/plan_layout.hpp"

namespace mfsdp::inline MFSDP_ABI {

// What one rank holds for one optimizer.
struct optimizer_load {
  index_t tensors = 0;  // of which the rank updates all or a part
  index_t elements = 0;
};

// What a plan gives each rank. The ideal of an objective is a lower bound for any placement that
// keeps indivisible items whole: the mean (rounded up) or the largest of these items.
struct plan_loads {
  std::vector<index_t> resident_bytes;  // parameters, gradients and states of each rank
  std::vector<index_t> update_flops;    // of one step on each rank
  std::vector<index_t> matrices;        // matrix items of which the rank holds a part
  std::vector<std::vector<optimizer_load>> optimizers;  // for each optimizer, for each rank
  index_t resident_bytes_ideal = 0;
  index_t update_flops_ideal = 0;
  index_t total_matrices = 0;
};

// What moves when a group is gathered: a padded or direct transport pays `fan_out` times an even
// one.
struct group_load {
  index_t elements = 0;
  index_t largest = 0;   // elements that one rank holds
  double fan_out = 1.0;  // ranks * largest / elements
};

namespace detail {

// total * count / whole, without overflow; exact where `whole` divides `total`.
[[nodiscard]] inline index_t share(index_t total, index_t count, index_t whole) {
  const double remainder = static_cast<double>(total % whole) * static_cast<double>(count);
  return total / whole * count + static_cast<index_t>(remainder / static_cast<double>(whole));
}

[[nodiscard]] inline index_t ideal_load(const plan& p, index_t placement_item::* cost) {
  index_t total = 0;
  index_t largest = 0;
  for (const placement_item& item : p.items) {
    total += item.*cost;
    if (!item.divisible) largest = std::max(largest, item.*cost);
  }
  return std::max(largest, total / p.ranks + (total % p.ranks != 0));
}

}  // namespace detail

// Cost: O(local segments + ranks).
[[nodiscard]] inline plan_loads loads_of(const plan& p) {
  const auto ranks = static_cast<std::size_t>(p.ranks);
  plan_loads result;
  result.resident_bytes.resize(ranks);
  result.update_flops.resize(ranks);
  result.matrices.resize(ranks);
  result.optimizers.assign(p.optimizers.size(), std::vector<optimizer_load>(ranks));
  result.resident_bytes_ideal = detail::ideal_load(p, &placement_item::resident_bytes);
  result.update_flops_ideal = detail::ideal_load(p, &placement_item::update_flops);
  result.total_matrices = std::count_if(p.items.begin(), p.items.end(),
                                        [](const placement_item& item) { return !item.divisible; });

  // The last item and tensor seen on each rank: several segments of one count once.
  std::vector<std::size_t> last_item(ranks, p.items.size());
  std::vector<std::size_t> last_tensor(ranks, p.tensors.size());
  for (const local_segment& s : p.local_segments) {
    const placement_item& item = p.items[s.item];
    const auto rank = static_cast<std::size_t>(s.rank);
    const int optimizer = p.tensors[item.tensor].optimizer;
    if (optimizer >= 0 && p.gathers[static_cast<std::size_t>(optimizer)]) {
      // The states and the work that every rank has in full are added below.
      result.resident_bytes[rank] += p.bytes.trainable() * s.count;
    } else {
      result.resident_bytes[rank] += detail::share(item.resident_bytes, s.count, item.elements());
      result.update_flops[rank] += detail::share(item.update_flops, s.count, item.elements());
    }
    if (!item.divisible && last_item[rank] != s.item) ++result.matrices[rank];
    if (optimizer >= 0) {
      optimizer_load& load = result.optimizers[static_cast<std::size_t>(optimizer)][rank];
      load.elements += s.count;
      if (last_tensor[rank] != item.tensor) ++load.tensors;
    }
    last_item[rank] = s.item;
    last_tensor[rank] = item.tensor;
  }
  for (const placement_item& item : p.items) {
    const int optimizer = p.tensors[item.tensor].optimizer;
    if (optimizer < 0 || !p.gathers[static_cast<std::size_t>(optimizer)]) continue;
    const index_t states = item.resident_bytes - p.bytes.trainable() * item.elements();
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      result.resident_bytes[rank] += states;
      result.update_flops[rank] += item.update_flops;
    }
  }
  return result;
}

// For each group of the plan. A resident group moves nothing when gathered.
[[nodiscard]] inline std::vector<group_load> group_loads_of(const plan& p) {
  std::vector<group_load> result;
  for (const transfer_group& group : p.groups) {
    group_load& load = result.emplace_back();
    std::vector<index_t> held(static_cast<std::size_t>(p.ranks));
    for (const piece& moved : group.parameters.pieces)
      held[static_cast<std::size_t>(moved.rank)] += moved.count;
    for (const std::size_t t : group.tensors) load.elements += p.spec.tensors()[t].elements();
    load.largest = group.resident ? load.elements : *std::max_element(held.begin(), held.end());
    if (!group.resident && load.elements > 0) {
      load.fan_out =
          p.ranks * static_cast<double>(load.largest) / static_cast<double>(load.elements);
    }
  }
  return result;
}

namespace detail {

// A unit in which the largest number of a column has digits before the point.
struct unit_of_measure {
  std::string_view name;
  double size;
  [[nodiscard]] double of(index_t value) const { return static_cast<double>(value) / size; }
};

[[nodiscard]] inline unit_of_measure memory_unit(index_t bytes) {
  if (bytes < index_t{1} << 20) return {"KiB", 0x1p10};
  if (bytes < index_t{1} << 30) return {"MiB", 0x1p20};
  return {"GiB", 0x1p30};
}
[[nodiscard]] inline unit_of_measure work_unit(index_t flops) {
  if (flops < 1'000'000) return {"KFLOP", 1e3};
  if (flops < 1'000'000'000) return {"MFLOP", 1e6};
  return {"GFLOP", 1e9};
}

}  // namespace detail

// A table of loads for people: ranks, the distance of each objective to its ideal, then groups.
// Beyond 16 rows the middle ones are left out.
[[nodiscard]] inline std::string describe(const plan& p) {
  const plan_loads loads = loads_of(p);
  std::string text;
  const auto print = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text), format, std::forward<Args>(args)...);
  };
  const auto for_rows = [&](std::size_t rows, auto&& print_row) {
    const bool all = rows <= 16;
    for (std::size_t i = 0; i < rows; ++i) {
      if (all || i < 8 || i + 4 >= rows) {
        print_row(i);
      } else if (i == 8) {
        print("  ... {} more\n", rows - 12);
      }
    }
  };
  const index_t most_bytes =
      *std::max_element(loads.resident_bytes.begin(), loads.resident_bytes.end());
  const index_t most_flops =
      *std::max_element(loads.update_flops.begin(), loads.update_flops.end());
  const detail::unit_of_measure memory = detail::memory_unit(most_bytes);
  const detail::unit_of_measure time = detail::work_unit(most_flops);

  print("{} ranks, placement {}, {} units, {} tensors\n\n", p.ranks, p.placement,
        p.spec.units().size(), p.spec.tensors().size());
  print("  rank  resident {}  update {:>6}  matrices", memory.name, time.name);
  for (const std::string& optimizer : p.optimizers) {
    print("  {:>22}", optimizer + " tensors, elements");
  }
  print("\n");
  for_rows(loads.matrices.size(), [&](std::size_t rank) {
    print("{:>6}  {:>12.2f}  {:>12.3f}  {:>8}", rank, memory.of(loads.resident_bytes[rank]),
          time.of(loads.update_flops[rank]), loads.matrices[rank]);
    for (std::size_t o = 0; o < p.optimizers.size(); ++o) {
      const optimizer_load& load = loads.optimizers[o][rank];
      const std::size_t width = std::max<std::size_t>(22, p.optimizers[o].size() + 18);
      print("  {:>{}}", fmt::format("{}, {}", load.tensors, load.elements), width);
    }
    print("\n");
  });

  const auto idle = std::count(loads.matrices.begin(), loads.matrices.end(), 0);
  if (idle > 0 && loads.total_matrices > 0) {
    print("{}{} of {} ranks own no matrix, for {} matrices\n",
          p.ranks > loads.total_matrices ? "more ranks than matrices: " : "", idle, p.ranks,
          loads.total_matrices);
  }

  // Ideals of nothing (all costs zero) are reached.
  const auto ratio = [](index_t value, index_t ideal) {
    return ideal == 0 ? 1.0 : static_cast<double>(value) / static_cast<double>(ideal);
  };
  print(
      "\nlargest against ideal: memory {:.2f} / {:.2f} {} = {:.3f}, time {:.3f} / {:.3f} {} = "
      "{:.3f}\n\n",
      memory.of(most_bytes), memory.of(loads.resident_bytes_ideal), memory.name,
      ratio(most_bytes, loads.resident_bytes_ideal), time.of(most_flops),
      time.of(loads.update_flops_ideal), time.name, ratio(most_flops, loads.update_flops_ideal));

  const std::vector<group_load> groups = group_loads_of(p);
  print("  elements  largest on a rank  fan-out  unit\n");
  for_rows(groups.size(), [&](std::size_t g) {
    print("{:>10}  {:>17}  {:>7.2f}  {}{}{}\n", groups[g].elements, groups[g].largest,
          groups[g].fan_out, p.groups[g].name, p.groups[g].held ? " (tied)" : "",
          p.groups[g].resident ? " (on every rank)" : "");
  });
  return text;
}

}  // namespace mfsdp::inline MFSDP_ABI
