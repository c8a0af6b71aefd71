// The door: one message for each member that a part of a sharded_model lacks, and for each pair of
// parts that do not fit together.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "mfsdp/concepts.hpp"
#include "mfsdp/precision.hpp"

namespace mfsdp::inline MFSDP_ABI {

// A check is a class template that is complete if it holds. A compiler instantiates it once, and so
// reports a fault once, whichever door it is met at. A check of a pair holds if a part of it is at
// fault by itself.
namespace contract {

// ------------------------------------------------------------------------------------- Optimizers

template <class O>
struct check_optimizer {
  static_assert(std::copyable<O>, "mfsdp: Optimizer cannot be copied");
  static_assert(optimizer_name<O>,
                "mfsdp: Optimizer lacks 'static constexpr std::string_view name'");
  static_assert(optimizer_whole_matrix<O>,
                "mfsdp: Optimizer lacks 'static constexpr bool whole_matrix'");
  static_assert(optimizer_flops<O>, "mfsdp: Optimizer lacks 'index_t flops(matrix_shape) const'");
  static_assert(optimizer_states<O>,
                "mfsdp: Optimizer lacks 'std::array<state_spec, N> states(matrix_shape) const'");
  static_assert(optimizer_workspace_size<O>,
                "mfsdp: Optimizer lacks 'index_t workspace_size(matrix_shape) const'");
};

// Whether the placement may cut what the optimizer is given.
template <class O, class P>
struct check_cuts {};
template <Optimizer O, Placement P>
struct check_cuts<O, P> {
  static_assert(!O::whole_matrix || P::whole_matrices || GathersMatrices<O>,
                "mfsdp: this optimizer needs whole matrices, which the placement cuts; use "
                "owner_placement, or say gathered{optimizer} and pay for a gather in every step");
};

template <class O, class B>
struct check_update {};
template <Optimizer O, Backend B>
struct check_update<O, B> {
  static_assert(optimizer_update<O, B>,
                "mfsdp: Optimizer lacks 'void update(backend, states, parameter, gradient, "
                "context) const' for this Backend");
};

template <class Set>
struct members_of {
  using type = std::tuple<Set>;
};
template <OptimizerSet Set>
struct members_of<Set> {
  using type = std::remove_cvref_t<decltype(std::declval<const Set&>().members())>;
};

// What a plan needs of the optimizers of a set, and what a step needs.
template <class P, class Members>
struct check_rules;
template <class P, class... O>
struct check_rules<P, std::tuple<O...>> {
  static_assert(((sizeof(check_optimizer<O>) + sizeof(check_cuts<O, P>)) && ...));
};

// A rule that has one of these members means to be periodic, and is told which other it lacks.
template <class O>
concept means_to_exchange = requires { O::rounds_before_update; } ||
                            requires { O::rounds_after_update; } || requires { &O::exchanges; };
template <class O>
struct check_rounds {
  static_assert(!means_to_exchange<O> || optimizer_rounds<O>,
                "mfsdp: PeriodicOptimizer lacks 'static constexpr int rounds_before_update' or "
                "'rounds_after_update'");
  static_assert(!means_to_exchange<O> || optimizer_exchanges<O>,
                "mfsdp: PeriodicOptimizer lacks 'std::array<bool, 1 + N> exchanges(matrix_shape, "
                "exchange_round) const', with one more than states(shape) has");
};

template <class O, class B>
struct check_exchange : check_rounds<O> {};
template <PeriodicOptimizer O, Backend B>
struct check_exchange<O, B> {
  static_assert(optimizer_contribute<O, B>,
                "mfsdp: PeriodicOptimizer lacks 'void contribute(backend, states, parameter, "
                "gradient, context, int round) const' for this Backend");
  static_assert(optimizer_adopt<O, B>,
                "mfsdp: PeriodicOptimizer lacks 'void adopt(backend, states, parameter, context, "
                "int round) const' for this Backend");
};

template <class B, class Members>
struct check_updates;
template <class B, class... O>
struct check_updates<B, std::tuple<O...>> {
  static_assert(((sizeof(check_update<O, B>) + sizeof(check_exchange<O, B>)) && ...));
};

// -------------------------------------------------------------------------------------- Placement

template <class P>
struct check_placement {
  static_assert(std::copyable<P>, "mfsdp: Placement cannot be copied");
  static_assert(placement_name<P>,
                "mfsdp: Placement lacks 'static constexpr std::string_view name'");
  static_assert(placement_whole_matrices<P>,
                "mfsdp: Placement lacks 'static constexpr bool whole_matrices'");
  static_assert(placement_replicated<P>,
                "mfsdp: Placement lacks 'static constexpr bool replicated'");
  static_assert(placement_place<P>,
                "mfsdp: Placement lacks 'std::vector<std::vector<segment>> "
                "place(std::span<const placement_item>, int ranks) const'");
};

// ---------------------------------------------------------------------------------------- Backend

template <class B>
struct check_backend {
  static_assert(std::copy_constructible<B>, "mfsdp: Backend cannot be copied");
  static_assert(backend_allocate<B>,
                "mfsdp: Backend lacks 'allocate<T>(index_t)', whose result has "
                "'std::span<T> span()'");
  static_assert(backend_fill<B>, "mfsdp: Backend lacks 'fill(std::span<T>, T)'");
  static_assert(backend_copy<B>,
                "mfsdp: Backend lacks 'copy(std::span<const T> from, std::span<T> to)'");
  static_assert(backend_multiply<B>,
                "mfsdp: Backend lacks 'multiply(alpha, a, op_a, b, op_b, beta, c, d)'");
  static_assert(backend_multiply_symmetric<B>,
                "mfsdp: Backend lacks 'multiply_symmetric(alpha, a, op_a, b, op_b, beta, c, d)'");
  static_assert(backend_transform<B>, "mfsdp: Backend lacks 'transform(kernel, spans...)'");
  static_assert(backend_transform_by_sum<B>,
                "mfsdp: Backend lacks 'transform_by_sum(kernel, std::span<const T> summed, "
                "spans...)'");
  static_assert(backend_sum_of_squares<B>,
                "mfsdp: Backend lacks 'double sum_of_squares(std::span<const T>)'");
};

// Storage in a type of a precision.
template <class B, class T>
struct check_storage {
  static_assert(!Backend<B> || std::same_as<T, float> || ConvertingBackend<B, T>,
                "mfsdp: Backend lacks 'convert(from, to)', 'round_stochastically(from, to, key, "
                "first)', or another member for a 16-bit type of the precision");
};
template <class B, class Precision>
struct check_precision;
template <class B, class... T>
struct check_precision<B, precision<T...>> {
  static_assert((sizeof(check_storage<B, T>) && ...));
};

// What sites exchange is float.
template <class Precision, class Members>
struct check_masters;
template <class Precision, class... O>
struct check_masters<Precision, std::tuple<O...>> {
  static_assert(std::same_as<typename Precision::master, float> || !(PeriodicOptimizer<O> || ...),
                "mfsdp: a PeriodicOptimizer exchanges parameters with other sites as float, so the "
                "precision's Master must be float");
};

// ------------------------------------------------------------------------------------- Collective

template <class C>
struct check_collective {
  static_assert(std::copy_constructible<C>, "mfsdp: Collective cannot be copied");
  static_assert(collective_request<C>,
                "mfsdp: Collective lacks a type 'request', default-constructible and movable, with "
                "'bool test()', 'wait(deadline)' and 'drain(deadline)'");
  static_assert(collective_rank<C>, "mfsdp: Collective lacks 'int rank() const'");
  static_assert(collective_size<C>, "mfsdp: Collective lacks 'int size() const'");
};

// A mesh, or what was given instead of one: then it should have been a collective.
template <class Axes>
struct check_axes : check_collective<Axes> {
  using shard = Axes;
};
template <class Axes>
  requires requires(const Axes& axes) { axes.shard; }
struct check_axes<Axes>
    : check_collective<std::remove_cvref_t<decltype(std::declval<const Axes&>().shard)>> {
  using shard = std::remove_cvref_t<decltype(std::declval<const Axes&>().shard)>;
  static_assert(!Collective<shard> || Mesh<Axes>,
                "mfsdp: a mesh has three axes, 'shard', 'replicate' and 'site', each a Collective");
};

// What copies need of each other: sums of what each has, and a look at what the others are.
template <class Axes, class Precision>
struct check_replicas {};
template <Mesh Axes, class Precision>
struct check_replicas<Axes, Precision> {
  using replicate = std::remove_cvref_t<decltype(std::declval<const Axes&>().replicate)>;
  static_assert(AllReduce<replicate, typename Precision::reduce> && AllGather<replicate, double> &&
                    AllGather<replicate, std::uint64_t>,
                "mfsdp: the replicate axis of the mesh lacks 'request start_all_reduce(full, "
                "local, pieces, into, label)' of the precision's Reduce, or 'request "
                "start_all_gather(shard, full, pieces, label)' of double and std::uint64_t");
};

// What sites need of each other, and of the optimizers that they train with.
template <class O>
struct check_periodic {
  static_assert(!Optimizer<O> || PeriodicOptimizer<O> || means_to_exchange<O>,
                "mfsdp: the mesh has a site axis, but an optimizer is no PeriodicOptimizer and "
                "knows no other sites; wrap it: lordo::local_steps{.inner = optimizer}");
};

// An axis that never has another rank.
template <class C>
concept alone = requires { typename std::integral_constant<int, C::size()>; } && C::size() == 1;

template <class Axes, class Members>
struct check_sites {};
template <Mesh Axes, class... O>
  requires(!alone<std::remove_cvref_t<decltype(std::declval<const Axes&>().site)>>)
struct check_sites<Axes, std::tuple<O...>> {
  using site = std::remove_cvref_t<decltype(std::declval<const Axes&>().site)>;
  static_assert((sizeof(check_periodic<O>) && ...));
  static_assert(AllReduce<site, float> && AllGather<site, double> && AllGather<site, std::uint64_t>,
                "mfsdp: the site axis of the mesh lacks 'request start_all_reduce(full, local, "
                "pieces, into, label)' of float, or 'request start_all_gather(shard, full, pieces, "
                "label)' of double and std::uint64_t");
  static_assert(!ElasticCollective<site> || AllGather<site, float>,
                "mfsdp: the site axis of the mesh is elastic, but lacks 'request "
                "start_all_gather(shard, full, pieces, label)' of float");
};

// The operations that a placement needs, on the types of a precision.
template <class C, class P, class Precision>
struct check_operations {};
template <Collective C, Placement P, class Precision>
struct check_operations<C, P, Precision> {
  using from = typename Precision::gradient;
  using to = typename Precision::reduce;
  static_assert(AllGather<C, typename Precision::compute> && AllGather<C, to> &&
                    AllGather<C, double> && AllGather<C, std::uint64_t>,
                "mfsdp: Collective lacks 'request start_all_gather(shard, full, pieces, label)' of "
                "the precision's Compute and Reduce, double and std::uint64_t");
  static_assert(P::replicated || ReduceScatter<C, from, to>,
                "mfsdp: Collective lacks 'request start_reduce_scatter(full, shard, pieces, into, "
                "label)' from the precision's Gradient to its Reduce, which a placement that "
                "shards needs");
  static_assert(!P::replicated || AllReduce<C, from, to>,
                "mfsdp: Collective lacks 'request start_all_reduce(full, local, pieces, into, "
                "label)' from the precision's Gradient to its Reduce, which a replicated placement "
                "needs");
};

// ---------------------------------------------------------------------------------- sharded_model

template <class Axes, class P, class Set, class B, class Precision>
struct check_model : check_axes<Axes>,
                     check_placement<P>,
                     check_backend<B>,
                     check_precision<B, Precision>,
                     check_rules<P, typename members_of<Set>::type>,
                     check_updates<B, typename members_of<Set>::type>,
                     check_masters<Precision, typename members_of<Set>::type>,
                     check_sites<Axes, typename members_of<Set>::type>,
                     check_operations<typename check_axes<Axes>::shard, P, Precision>,
                     check_replicas<Axes, Precision> {};

}  // namespace contract

}  // namespace mfsdp::inline MFSDP_ABI
