// The door: one readable message for each way in which the parts of a sharded_model do not fit.
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

#include "mfsdp/concepts.hpp"

namespace mfsdp::inline MFSDP_ABI {

namespace contract {

template <class O, class P, class B>
consteval void check_optimizer() {
  static_assert(optimizer_name<O>,
                "mfsdp: Optimizer lacks 'static constexpr std::string_view name'");
  static_assert(optimizer_whole_matrix<O>,
                "mfsdp: Optimizer lacks 'static constexpr bool whole_matrix'");
  static_assert(optimizer_flops<O>, "mfsdp: Optimizer lacks 'index_t flops(matrix_shape) const'");
  static_assert(optimizer_state_sizes<O>,
                "mfsdp: Optimizer lacks 'std::array<index_t, N> state_sizes(matrix_shape) const'");
  static_assert(optimizer_workspace_size<O>,
                "mfsdp: Optimizer lacks 'index_t workspace_size(matrix_shape) const'");
  if constexpr (Optimizer<O>) {
    static_assert(optimizer_update<O, B>,
                  "mfsdp: Optimizer lacks 'void update(backend, states, parameter, gradient, "
                  "context) const' for this Backend");
    static_assert(!O::whole_matrix || P::whole_matrices || GathersMatrices<O>,
                  "mfsdp: this optimizer needs whole matrices, which the placement cuts; use "
                  "owner_placement, or say gathered{optimizer} and pay for a gather in every step");
  }
}

template <class Axes, class P, class Set, class B>
consteval bool check() {
  static_assert(Mesh<Axes>,
                "mfsdp: the second argument is neither a Collective (rank, size, request) nor a mesh "
                "of them");
  static_assert(Placement<P>,
                "mfsdp: Placement lacks one of 'name', 'whole_matrices', 'replicated' (static "
                "constexpr) and 'std::vector<std::vector<segment>> place(std::span<const "
                "placement_item>, int ranks) const'");
  static_assert(Backend<B>,
                "mfsdp: Backend lacks one of allocate, fill, copy, multiply, transform, "
                "sum_of_squares");
  if constexpr (Mesh<Axes> && Placement<P> && Backend<B>) {
    using collective = std::remove_cvref_t<decltype(std::declval<Axes&>().shard)>;
    static_assert(AllGather<collective, float> && AllGather<collective, double>,
                  "mfsdp: the Collective lacks start_all_gather(shard, full, pieces, label)");
    static_assert(P::replicated || ReduceScatter<collective, float>,
                  "mfsdp: the Collective lacks start_reduce_scatter(full, shard, pieces, into, "
                  "label), which sharded placements need");
    static_assert(!P::replicated || AllReduce<collective, float>,
                  "mfsdp: the Collective lacks start_all_reduce(full, local, pieces, into, label), "
                  "which a replicated placement needs");
    using members = decltype(optimizer_members(std::declval<const Set&>()));
    [&]<class... O>(std::type_identity<std::tuple<O...>>) {
      (check_optimizer<O, P, B>(), ...);
    }(std::type_identity<members>{});
  }
  return true;
}

}  // namespace contract

}  // namespace mfsdp::inline MFSDP_ABI
