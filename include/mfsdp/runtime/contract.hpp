// The door: one message for each member that a part of a sharded_model lacks, and for each pair of
// parts that do not fit together.
#pragma once

#include <concepts>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "mfsdp/concepts.hpp"

namespace mfsdp::inline MFSDP_ABI {

// Checks are class templates: a compiler instantiates each once, and so reports a fault once.
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
  static_assert(optimizer_state_sizes<O>,
                "mfsdp: Optimizer lacks 'std::array<index_t, N> state_sizes(matrix_shape) const'");
  static_assert(optimizer_workspace_size<O>,
                "mfsdp: Optimizer lacks 'index_t workspace_size(matrix_shape) const'");
  static constexpr bool holds = Optimizer<O>;
};

template <class O, class P>
struct check_cuts {
  static constexpr bool holds = [] {
    if constexpr (check_optimizer<O>::holds && Placement<P>) {
      return !O::whole_matrix || P::whole_matrices || GathersMatrices<O>;
    } else {
      return true;  // the fault is reported elsewhere
    }
  }();
  static_assert(holds,
                "mfsdp: this optimizer needs whole matrices, which the placement cuts; use "
                "owner_placement, or say gathered{optimizer} and pay for a gather in every step");
};

template <class O, class B>
struct check_update {
  static constexpr bool holds = !check_optimizer<O>::holds || !Backend<B> || optimizer_update<O, B>;
  static_assert(holds,
                "mfsdp: Optimizer lacks 'void update(backend, states, parameter, gradient, "
                "context) const' for this Backend");
};

template <class Set>
struct members_of {
  using type = decltype(optimizer_members(std::declval<const Set&>()));
};

// What a plan needs of a placement and each optimizer of a set.
template <class P, class Members>
struct check_rules;
template <class P, class... O>
struct check_rules<P, std::tuple<O...>> {
  static constexpr bool holds = ((check_optimizer<O>::holds & check_cuts<O, P>::holds) & ...);
};

// What a step needs.
template <class B, class Members>
struct check_updates;
template <class B, class... O>
struct check_updates<B, std::tuple<O...>> {
  static constexpr bool holds = (check_update<O, B>::holds & ...);
};

// -------------------------------------------------------------------------------------- Placement

template <class P>
struct check_placement {
  static_assert(std::copyable<P>, "mfsdp: Placement cannot be copied");
  static_assert(requires { { P::name } -> std::convertible_to<std::string_view>; },
                "mfsdp: Placement lacks 'static constexpr std::string_view name'");
  static_assert(requires { { P::whole_matrices } -> std::convertible_to<bool>; },
                "mfsdp: Placement lacks 'static constexpr bool whole_matrices'");
  static_assert(requires { { P::replicated } -> std::convertible_to<bool>; },
                "mfsdp: Placement lacks 'static constexpr bool replicated'");
  static_assert(requires(const P& p, std::span<const placement_item> items) {
                  { p.place(items, 1) } -> std::same_as<std::vector<std::vector<segment>>>;
                },
                "mfsdp: Placement lacks 'std::vector<std::vector<segment>> "
                "place(std::span<const placement_item>, int ranks) const'");
  static constexpr bool holds = Placement<P>;
};

// ---------------------------------------------------------------------------------------- Backend

template <class B>
struct check_backend {
  static_assert(std::copy_constructible<B>, "mfsdp: Backend cannot be copied");
  static_assert(requires(B backend) {
                  {
                    backend.template allocate<float>(index_t{1}).span()
                  } -> std::same_as<std::span<float>>;
                },
                "mfsdp: Backend lacks 'allocate<T>(index_t)', whose result has "
                "'std::span<T> span()'");
  static_assert(requires(B backend, std::span<float> x) { backend.fill(x, 0.0f); },
                "mfsdp: Backend lacks 'fill(std::span<T>, T)'");
  static_assert(requires(B backend, std::span<const float> from, std::span<float> to) {
                  backend.copy(from, to);
                },
                "mfsdp: Backend lacks 'copy(std::span<const T> from, std::span<T> to)'");
  static_assert(requires(B backend, matrix_view<const float> a, matrix_view<float> c) {
                  backend.multiply(1.0f, a, transpose::no, a, transpose::yes, 0.0f, c);
                },
                "mfsdp: Backend lacks 'multiply(alpha, a, op_a, b, op_b, beta, c)'");
  static_assert(requires(B backend, std::span<float> x, std::span<const float> y) {
                  backend.transform(detail::sample_kernel{}, x, y);
                },
                "mfsdp: Backend lacks 'transform(kernel, spans...)'");
  static_assert(requires(B backend, std::span<const float> x) {
                  { backend.sum_of_squares(x) } -> std::same_as<double>;
                },
                "mfsdp: Backend lacks 'double sum_of_squares(std::span<const T>)'");
  static constexpr bool holds = Backend<B>;
};

// ------------------------------------------------------------------------------------- Collective

template <class C>
struct check_collective {
  static_assert(std::copy_constructible<C>, "mfsdp: Collective cannot be copied");
  static_assert(requires { requires Request<typename C::request>; },
                "mfsdp: Collective lacks a type 'request', default-constructible and movable, with "
                "'bool test()', 'wait(deadline)' and 'drain(deadline)'");
  static_assert(requires(const C& c) { { c.rank() } -> std::same_as<int>; },
                "mfsdp: Collective lacks 'int rank() const'");
  static_assert(requires(const C& c) { { c.size() } -> std::same_as<int>; },
                "mfsdp: Collective lacks 'int size() const'");
  static constexpr bool holds = Collective<C>;
};

// The operations that a placement needs.
template <class C, class P>
struct check_operations {
  static constexpr bool gathers = AllGather<C, float> && AllGather<C, double> &&
                                  AllGather<C, std::uint64_t>;
  static constexpr bool scatters = P::replicated || ReduceScatter<C, float>;
  static constexpr bool reduces = !P::replicated || AllReduce<C, float>;
  static_assert(gathers,
                "mfsdp: Collective lacks 'request start_all_gather(shard, full, pieces, label)' of "
                "float, double and std::uint64_t");
  static_assert(scatters,
                "mfsdp: Collective lacks 'request start_reduce_scatter(full, shard, pieces, into, "
                "label)', which a placement that shards needs");
  static_assert(reduces,
                "mfsdp: Collective lacks 'request start_all_reduce(full, local, pieces, into, "
                "label)', which a replicated placement needs");
  static constexpr bool holds = gathers && scatters && reduces;
};

// A mesh, or what was given instead of one: then it should have been a collective.
template <class Axes>
struct check_axes : check_collective<Axes> {};
template <class Axes>
  requires requires(const Axes& axes) { axes.shard; }
struct check_axes<Axes> : check_collective<std::remove_cvref_t<decltype(std::declval<Axes&>().shard)>> {
  static_assert(requires(const Axes& axes) { axes.replicate; axes.site; },
                "mfsdp: a mesh has three axes, 'shard', 'replicate' and 'site'");
};

// ---------------------------------------------------------------------------------- sharded_model

template <class Axes, class P, class Set, class B>
struct check_model {
  static constexpr bool holds = [] {
    using members = typename members_of<Set>::type;
    constexpr bool parts = check_axes<Axes>::holds & check_placement<P>::holds &
                           check_backend<B>::holds & check_rules<P, members>::holds &
                           check_updates<B, members>::holds;
    if constexpr (parts && Mesh<Axes>) {
      using collective = std::remove_cvref_t<decltype(std::declval<Axes&>().shard)>;
      return check_operations<collective, P>::holds;
    } else {
      return false;
    }
  }();
};

}  // namespace contract

}  // namespace mfsdp::inline MFSDP_ABI
