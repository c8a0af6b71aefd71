// Where a plan's segments lie in unit buffers and shards: what follows from them without choice.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "mfsdp/plan.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// One item of a tensor, without costs: one of its matrices, or all of it if it has another role.
[[nodiscard]] inline placement_item make_item(const model_spec& spec, std::size_t tensor,
                                              index_t position) {
  const tensor_spec& t = spec.tensors()[tensor];
  placement_item item{t.name, tensor, t.unit};
  if (t.role == tensor_role::matrix) {
    item.shape = {t.shape().rows / t.matrices(), t.shape().cols};
    item.offset = position * item.elements();
  } else {
    item.shape = {1, t.elements()};
    item.divisible = true;
  }
  return item;
}

// Groups: for each unit its own tensors, then the tied tensors that it is the first to use.
inline void make_groups(plan& p) {
  const std::vector<tensor_spec>& tensors = p.spec.tensors();
  std::vector<int> names(tensors.size());
  for (const unit_spec& unit : p.spec.units()) {
    for (const tensor_reference& reference : unit.tensors) ++names[reference.tensor];
  }
  std::vector<std::optional<std::size_t>> group_of(tensors.size());
  for (std::size_t u = 0; u < p.spec.units().size(); ++u) {
    const unit_spec& unit = p.spec.units()[u];
    std::vector<std::size_t>& used = p.unit_groups.emplace_back();
    const auto use = [&](std::size_t group) {
      if (std::find(used.begin(), used.end(), group) != used.end()) return;
      used.push_back(group);
      p.groups[group].units.push_back(u);
    };
    const auto add_group = [&](const std::string& name, bool held) {
      p.groups.emplace_back();
      p.groups.back().name = name;
      p.groups.back().held = held;
    };

    std::optional<std::size_t> own;
    for (const tensor_reference& reference : unit.tensors) {
      if (names[reference.tensor] > 1) continue;
      if (!own) {
        own = p.groups.size();
        add_group(unit.name, false);
        use(*own);
      }
      group_of[reference.tensor] = own;
      p.groups[*own].tensors.push_back(reference.tensor);
    }
    for (const tensor_reference& reference : unit.tensors) {
      if (names[reference.tensor] == 1) continue;
      std::optional<std::size_t>& group = group_of[reference.tensor];
      if (!group) {
        group = p.groups.size();
        add_group(tensors[reference.tensor].name, true);
        p.groups.back().tensors.push_back(reference.tensor);
      }
      use(*group);
    }
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) p.tensors[t].group = *group_of[t];
}

// Joins pieces that touch in the buffer and in the shard of their rank; ordered by buffer offset.
[[nodiscard]] inline std::vector<piece> coalesce(std::vector<piece> pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const piece& a, const piece& b) {
    return std::tuple(a.rank, a.full) < std::tuple(b.rank, b.full);
  });
  std::vector<piece> joined;
  for (const piece& p : pieces) {
    if (!joined.empty() && joined.back().rank == p.rank &&
        joined.back().full + joined.back().count == p.full &&
        joined.back().local + joined.back().count == p.local) {
      joined.back().count += p.count;
    } else {
      joined.push_back(p);
    }
  }
  std::sort(joined.begin(), joined.end(), [](const piece& a, const piece& b) {
    return std::tuple(a.full, a.rank) < std::tuple(b.full, b.rank);
  });
  return joined;
}

// Everything that follows from spec, ranks, items, segments and the optimizer of each tensor.
//   unit buffer   tensors in order of registration, each aligned, its matrices contiguous
//   shard         the rank's segments in order of items, each aligned; if resident, the unit buffer
inline void lay_out(plan& p) {
  make_groups(p);
  const bool resident = p.replicated || p.ranks == 1;
  const index_t alignment = p.bytes.aligned_elements();
  for (transfer_group& group : p.groups) {
    group.resident = resident;
    for (const std::size_t t : group.tensors) {
      const index_t size = round_up(p.spec.tensors()[t].elements(), alignment);
      p.tensors[t].offset =
          std::exchange(group.parameters.full_elements, group.parameters.full_elements + size);
      if (p.tensors[t].optimizer < 0) continue;
      p.tensors[t].gradient_offset =
          std::exchange(group.gradients.full_elements, group.gradients.full_elements + size);
    }
    for (buffer_layout* layout : {&group.parameters, &group.gradients}) {
      layout->shard_elements.assign(static_cast<std::size_t>(p.ranks),
                                    resident ? layout->full_elements : 0);
    }
  }
  // Offset in the rank's shard of a segment that starts at `full` in the buffer.
  const auto place = [&](buffer_layout& layout, const segment& s, index_t full) {
    index_t& end = layout.shard_elements[static_cast<std::size_t>(s.rank)];
    const index_t local = resident ? full : end;
    if (!resident) end += round_up(s.count, alignment);
    layout.pieces.push_back({s.rank, full, local, s.count});
    return local;
  };
  for (std::size_t i = 0; i < p.items.size(); ++i) {
    const placement_item& item = p.items[i];
    const tensor_slot& slot = p.tensors[item.tensor];
    transfer_group& group = p.groups[slot.group];
    const auto add_segment = [&](const segment& s) {
      local_segment& local =
          p.local_segments.emplace_back(local_segment{i, s.rank, s.offset, s.count});
      local.local = place(group.parameters, s, slot.offset + item.offset + s.offset);
      if (slot.optimizer < 0) return;
      local.gradient = place(group.gradients, s, slot.gradient_offset + item.offset + s.offset);
    };
    for (const segment& s : p.segments[i]) add_segment(s);
    if (p.replicated && item.elements() > 0) {
      for (int rank = 0; rank < p.ranks; ++rank) add_segment({rank, 0, item.elements()});
    }
  }
  for (transfer_group& group : p.groups) {
    if (resident) group.parameters.pieces.clear();
    for (buffer_layout* layout : {&group.parameters, &group.gradients}) {
      layout->pieces = coalesce(std::move(layout->pieces));
    }
  }
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
