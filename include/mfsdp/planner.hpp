// make_plan: costs from the optimizers, segments from the placement, offsets from both.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "mfsdp/plan.hpp"
#include "mfsdp/plan_layout.hpp"
#include "mfsdp/runtime/contract.hpp"

namespace mfsdp::inline MFSDP_ABI {

namespace detail {

// Calls f with one member of a set of optimizers.
template <class Members, class F>
void with_member(const Members& members, std::size_t which, F f) {
  std::size_t position = 0;
  std::apply([&](const auto&... member) { ((position++ == which ? f(member) : void()), ...); },
             members);
}

// Adds costs of a tensor. Errors: spec_error if one is negative or the sum leaves 64 bits.
inline void add_cost(index_t& sum, index_t cost, const placement_item& item) {
  if (cost < 0 || cost > std::numeric_limits<index_t>::max() - sum) {
    throw spec_error(fmt::format(
        "tensor '{}': a cost of {} FLOPs or bytes is negative, or the plan's total leaves 64 bits",
        item.name, cost));
  }
  sum += cost;
}

template <class Optimizer>
void set_costs(placement_item& item, const Optimizer& optimizer, const storage_bytes& bytes) {
  add_cost(item.update_flops, optimizer.flops(item.shape), item);
  add_cost(item.resident_bytes, bytes.trainable() * item.elements(), item);
  for (const state_spec& state : optimizer.states(item.shape)) {
    const index_t state_bytes = state.exact ? index_t{sizeof(float)} : bytes.state;
    for (index_t byte = 0; byte < state_bytes; ++byte) {
      add_cost(item.resident_bytes, state.elements, item);
    }
  }
}

inline void require_units(const model_spec& spec) {
  if (spec.units().empty()) throw spec_error("the model has no units");
  for (const unit_spec& unit : spec.units()) {
    if (unit.tensors.empty()) throw spec_error(fmt::format("unit '{}' has no tensors", unit.name));
  }
}

// Errors: spec_error unless the segments, sorted by offset, cover the item exactly once.
inline void require_cover(std::string_view placement, const placement_item& item,
                          std::span<const segment> segments, int ranks) {
  const index_t elements = item.elements();
  index_t covered = 0;
  for (const segment& s : segments) {
    const auto reject = [&](std::string_view fault) {
      throw spec_error(fmt::format("placement '{}', tensor '{}', rank {}: {}", placement, item.name,
                                   s.rank, fault));
    };
    if (s.rank < 0 || s.rank >= ranks) reject(fmt::format("there are only {} ranks", ranks));
    if (s.count <= 0) reject(fmt::format("a segment at {} has {} elements", s.offset, s.count));
    if (s.offset < covered) {
      reject(fmt::format("its segment at {} overlaps another that ends at {}", s.offset, covered));
    }
    if (s.offset > covered) {
      reject(fmt::format("elements {} to {} before its segment belong to no rank", covered,
                         s.offset - 1));
    }
    if (s.count > elements - covered) {
      reject(fmt::format("its segment at {} has {} elements, beyond the end at {}", s.offset,
                         s.count, elements));
    }
    covered += s.count;
  }
  if (covered < elements) {
    throw spec_error(fmt::format("placement '{}', tensor '{}': elements {} to {} belong to no rank",
                                 placement, item.name, covered, elements - 1));
  }
}

// Errors: spec_error if a matrix is cut, or another tensor between two blocks.
inline void require_whole_blocks(std::string_view placement, const placement_item& item,
                                 std::span<const segment> segments) {
  for (const segment& s : segments) {
    if (!item.divisible && segments.size() > 1) {
      throw spec_error(fmt::format("placement '{}', tensor '{}', rank {}: the matrix is cut",
                                   placement, item.name, s.rank));
    }
    if (s.offset % static_cast<index_t>(block_elements) != 0) {
      throw spec_error(
          fmt::format("placement '{}', tensor '{}', rank {}: the cut at {} is not a multiple of {}",
                      placement, item.name, s.rank, s.offset, block_elements));
    }
  }
}

// Names of the optimizers, and what each of them asks for. Errors: at compile time, see make_plan.
template <class P, class... Os>
void set_optimizers(plan& p, std::vector<bool>& whole_matrix, const std::tuple<Os...>& members) {
  static_assert(sizeof(contract::check_rules<P, std::tuple<Os...>>) > 0);
  const auto check = [](const auto& member) {
    if constexpr (requires { member.check(); }) member.check();
  };
  std::apply([&](const auto&... member) { (check(member), ...); }, members);
  (p.optimizers.emplace_back(Os::name), ...);
  (p.gathers.push_back(GathersMatrices<Os>), ...);
  (whole_matrix.push_back(Os::whole_matrix), ...);
}

// Sends each trainable tensor to its optimizer. Errors: spec_error, see make_plan.
template <class Optimizers>
void route_tensors(plan& p, const std::vector<bool>& whole_matrix, const Optimizers& optimizers) {
  std::vector<bool> matched(whole_matrix.size());  // frozen tensors count
  std::vector<bool> used(whole_matrix.size());
  for (const tensor_spec& tensor : p.spec.tensors()) {
    tensor_slot& slot = p.tensors.emplace_back();
    const std::size_t route = optimizer_route(optimizers, tensor);
    if (route < matched.size()) matched[route] = true;
    if (tensor.options.frozen) continue;
    if (route >= p.optimizers.size()) {
      throw spec_error(
          fmt::format("tensor '{}' has no optimizer: add a group that takes it, such as "
                      "mfsdp::for_rest(optimizer), or freeze it",
                      tensor.name));
    }
    if (whole_matrix[route] && tensor.role != tensor_role::matrix) {
      throw spec_error(fmt::format(
          "tensor '{}' is no matrix, and optimizer '{}' updates whole matrices only: use "
          "mfsdp::mixed or mfsdp::parameter_groups to give it another optimizer",
          tensor.name, p.optimizers[route]));
    }
    slot.optimizer = static_cast<int>(route);
    used[route] = true;
  }
  const auto may_be_empty = [&](std::size_t o) {
    if constexpr (DescribesGroups<Optimizers>) {
      return optimizers.groups()[o].may_be_empty;
    } else {
      return !whole_matrix[o];
    }
  };
  for (std::size_t o = 0; o < used.size(); ++o) {
    if (may_be_empty(o)) continue;
    if (DescribesGroups<Optimizers> && !matched[o]) {
      throw spec_error(fmt::format(
          "optimizer '{}' receives no tensor: none fits, or groups before it take all that do",
          p.optimizers[o]));
    }
    if (whole_matrix[o] && !used[o]) {
      throw spec_error(fmt::format(
          "optimizer '{}' updates whole matrices, but the model has no trainable matrix for it",
          p.optimizers[o]));
    }
  }
}

// Items with their costs; the totals must fit in 64 bits, so that placements may add freely.
template <class Members>
void set_items(plan& p, const Members& members) {
  index_t total_flops = 0;
  index_t total_bytes = 0;
  for (std::size_t t = 0; t < p.tensors.size(); ++t) {
    const int optimizer = p.tensors[t].optimizer;
    for (index_t position = 0; position < p.spec.tensors()[t].matrices(); ++position) {
      placement_item& item = p.items.emplace_back(make_item(p.spec, t, position));
      if (optimizer < 0) {
        item.resident_bytes = p.bytes.compute * item.elements();
      } else {
        with_member(members, static_cast<std::size_t>(optimizer),
                    [&](const auto& member) { set_costs(item, member, p.bytes); });
      }
      add_cost(total_flops, item.update_flops, item);
      add_cost(total_bytes, item.resident_bytes, item);
    }
  }
}

// Asks the placement and checks its answer. Errors: spec_error, see make_plan.
template <Placement P>
void set_segments(plan& p, const P& placement) {
  p.segments = placement.place(p.items, p.ranks);
  if (p.segments.size() != p.items.size()) {
    throw spec_error(fmt::format("placement '{}' answers for {} of {} items", P::name,
                                 p.segments.size(), p.items.size()));
  }
  for (std::size_t i = 0; i < p.items.size(); ++i) {
    std::sort(p.segments[i].begin(), p.segments[i].end(), [](const segment& a, const segment& b) {
      return std::tuple(a.offset, a.rank) < std::tuple(b.offset, b.rank);
    });
    require_cover(P::name, p.items[i], p.segments[i], p.ranks);
    if constexpr (P::whole_matrices) require_whole_blocks(P::name, p.items[i], p.segments[i]);
  }
}

}  // namespace detail

// Plans a model for this many ranks.
//   optimizers   one Optimizer or an OptimizerSet; they state time and memory of each update
//   bytes        of one element of each kind, precision<...>::bytes; float if not given
// A frozen tensor has its parameter only, and no master. Errors: spec_error if there are no ranks,
// no units or a unit without tensors; if a tensor has no optimizer, or is no matrix and has an
// optimizer of whole matrices; if such an optimizer or a group that must not be empty gets no
// tensor; if the placement's answer does not cover every item once, inside the ranks, and with the
// cuts that it promises. A placement that cuts matrices does not compile with an optimizer that
// needs them whole. Cost: that of the placement, and O(segments log segments).
template <Placement P, class Optimizers>
[[nodiscard]] plan make_plan(const model_spec& spec, int ranks, const P& placement,
                             const Optimizers& optimizers, const storage_bytes& bytes = {}) {
  if (ranks < 1) throw spec_error(fmt::format("a plan needs at least one rank, not {}", ranks));
  detail::require_units(spec);

  plan result;
  result.spec = spec;
  result.ranks = ranks;
  result.placement = P::name;
  result.replicated = P::replicated;
  result.bytes = bytes;

  const auto members = optimizer_members(optimizers);
  std::vector<bool> whole_matrix;
  detail::set_optimizers<P>(result, whole_matrix, members);
  if constexpr (DescribesGroups<Optimizers>) {
    const auto groups = optimizers.groups();
    for (std::size_t o = 0; o < groups.size(); ++o) {
      result.optimizers[o] += fmt::format(" ({})", groups[o].label);
    }
  }
  detail::route_tensors(result, whole_matrix, optimizers);
  detail::set_items(result, members);
  result.segments.resize(result.items.size());
  if constexpr (!P::replicated) detail::set_segments(result, placement);
  detail::lay_out(result);
  return result;
}

}  // namespace mfsdp::inline MFSDP_ABI
