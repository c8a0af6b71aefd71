// The contracts that mix at compile time: Backend, Optimizer, Placement, Collective.
//
// Each concept is a conjunction of named parts, so that the static_assert at a library door can say
// which member is missing or has another type. docs/concepts/ has an archetype of each.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "mfsdp/dtype.hpp"
#include "mfsdp/layout.hpp"
#include "mfsdp/spec.hpp"
#include "mfsdp/view.hpp"

namespace mfsdp::inline MFSDP_ABI {

// ---------------------------------------------------------------------------------------- Backend

enum class transpose : bool { no, yes };

namespace detail {
struct sample_kernel {
  MFSDP_HOST_DEVICE void operator()(auto& a, const auto& b) const { a = a + b; }
};
struct sample_sum_kernel {
  MFSDP_HOST_DEVICE void operator()(const double& sum, auto& a, const auto& b) const {
    a = a + b * static_cast<float>(sum);
  }
};
}  // namespace detail

namespace contract {

template <class B>
concept backend_allocate = requires(B backend) {
  { backend.template allocate<float>(index_t{1}).span() } -> std::same_as<std::span<float>>;
};
template <class B>
concept backend_fill = requires(B backend, std::span<float> x) { backend.fill(x, 0.0f); };
template <class B>
concept backend_copy = requires(B backend, std::span<const float> from, std::span<float> to) {
  backend.copy(from, to);
  backend.copy(to, to);
};
template <class B>
concept backend_multiply = requires(B backend, matrix_view<const float> a, matrix_view<float> c) {
  backend.multiply(1.0f, a, transpose::no, a, transpose::yes, 0.0f, a, c);
  backend.multiply(1.0f, c, transpose::yes, c, transpose::no, 1.0f, c, c);
};
template <class B>
concept backend_multiply_symmetric =
    requires(B backend, matrix_view<const float> a, matrix_view<float> c) {
      backend.multiply_symmetric(1.0f, a, transpose::no, a, transpose::yes, 0.0f, a, c);
      backend.multiply_symmetric(1.0f, c, transpose::yes, c, transpose::no, 1.0f, c, c);
    };
template <class B>
concept backend_transform = requires(B backend, std::span<float> x, std::span<const float> y) {
  backend.transform(detail::sample_kernel{}, x, y);
};
template <class B>
concept backend_transform_by_sum =
    requires(B backend, std::span<float> x, std::span<const float> y) {
      backend.transform_by_sum(detail::sample_sum_kernel{}, y, x, y);
    };
template <class B>
concept backend_sum_of_squares = requires(B backend, std::span<const float> x) {
  { backend.sum_of_squares(x) } -> std::same_as<double>;
};

}  // namespace contract

// Memory and arithmetic of one device, as an instance. Copies may be called from several threads at
// a time.
//   allocate<T>(n)     owns n elements aligned to storage_alignment; .span() views them
//   fill, copy         over spans; copy reaches the memory of the host from either side
//   multiply(alpha, a, op_a, b, op_b, beta, c, d)   d = alpha op(a) op(b) + beta c, where d may be
//   c
//                      and is apart from a and b; beta = 0 does not read c, which may be empty
//   multiply_symmetric(same)   the same where c and the result are symmetric, by their meaning if
//                      not to the last bit: one triangle may be computed, and the other be its
//                      mirror
//   transform(kernel, spans...)   kernel(blocks...) over equal spans, element by element. It is
//                      written once for scalars and packets; its result for an element must not
//                      depend on where the element stands. A kernel is trivially copyable, and
//                      of a named type whose operator is marked MFSDP_HOST_DEVICE, if it is to
//                      run on a device
//   transform_by_sum(kernel, summed, spans...)   kernel(s, blocks...) in the same way, with s, a
//                      double, the sum of squares of `summed` as it was, which may be one of the
//                      spans. The number need not come to the host
//   sum_of_squares(x)  in double, over blocks of block_elements from the start of x, in order
template <class B>
concept Backend =
    std::copy_constructible<B> && contract::backend_allocate<B> && contract::backend_fill<B> &&
    contract::backend_copy<B> && contract::backend_multiply<B> &&
    contract::backend_multiply_symmetric<B> && contract::backend_transform<B> &&
    contract::backend_transform_by_sum<B> && contract::backend_sum_of_squares<B>;

// A backend whose memory the host may read and write says `static constexpr bool host_memory =
// true`. Memory of others goes through their members only, and through buffers of the host where
// the host has something to write or to read.
template <class B>
concept HostMemory = Backend<B> && requires { requires B::host_memory; };

// What some optimizers need on top.
//   row_sums_of_squares(a, sums)   of each row, added in double
//   scale_rows(factors, a)         row i times factors[i], in place
template <class B>
concept RowwiseBackend =
    Backend<B> && requires(B backend, matrix_view<const float> a, std::span<const float> factors,
                           matrix_view<float> c, std::span<float> sums) {
      backend.row_sums_of_squares(a, sums);
      backend.scale_rows(factors, c);
    };

//   symmetric_eigen(a, values)   replaces the symmetric a (n x n) by its eigenvectors, one in each
//                      row, orthonormal, in the order of their eigenvalues, ascending. The entry of
//                      largest magnitude of each, the first on a tie, is positive. Reads one
//                      triangle. Should be done in double; false, with a as it was, if it fails
//   orthonormalize_rows(a)       replaces a (r x n, r <= n) by the rows that Gram-Schmidt would
//                      give, by a stable method: no row turns against what it replaces; rows of a
//                      deficient matrix are completed
//   permute(a, rows, cols, b)    b(i, j) = a(rows[i], cols[j]), b apart from a; an empty list is
//                      all in order. The lists are in host memory
template <class B>
concept DecomposingBackend =
    RowwiseBackend<B> && requires(B backend, matrix_view<float> a, std::span<float> values,
                                  matrix_view<const float> from, std::span<const index_t> order) {
      { backend.symmetric_eigen(a, values) } -> std::same_as<bool>;
      backend.orthonormalize_rows(a);
      backend.permute(from, order, order, a);
    };

// What storage in a 16-bit type T needs: allocate, fill, copy and sum_of_squares of it, and
//   convert(from, to)  between float and T, to nearest, ties to even
//   round_stochastically(from, to, key, first)   float to T: to[i] is T::stochastic(from[i],
//                      rounding_bits(key, first + i)), precision.hpp
template <class B, class T>
concept ConvertingBackend =
    Backend<B> && requires(B backend, std::span<const float> wide, std::span<float> wide_out,
                           std::span<const T> narrow, std::span<T> narrow_out, std::uint64_t key) {
      { backend.template allocate<T>(index_t{1}).span() } -> std::same_as<std::span<T>>;
      backend.fill(narrow_out, T(0.0f));
      backend.copy(narrow, narrow_out);
      { backend.sum_of_squares(narrow) } -> std::same_as<double>;
      backend.convert(wide, narrow_out);
      backend.convert(narrow, wide_out);
      backend.round_stochastically(wide, narrow_out, key, index_t{0});
    };

// -------------------------------------------------------------------------------------- Optimizer

// What an update may know besides its own options.
template <class T>
struct update_context {
  std::int64_t step = 1;           // updates of this parameter, this one included
  double learning_rate_scale = 1;  // a schedule's factor on the optimizer's own rate
  std::span<T> workspace{};        // workspace_size(shape) elements of undefined content
  std::int64_t model_step = 1;     // of the model, skipped updates included: equal on all sites
  std::size_t item = 0;       // the parameter's place in the plan, equal on all ranks and sites
  std::string_view tensor{};  // its name, for messages
};

// One state of one parameter, zero at the start.
struct state_spec {
  std::string_view name;  // unique in the optimizer; a checkpoint finds the state by it
  index_t elements = 0;
  bool exact = false;  // keeps the precision of the arithmetic whatever the other states use
  friend constexpr bool operator==(const state_spec&, const state_spec&) = default;
};

namespace contract {

template <class O>
concept optimizer_name = requires {
  { O::name } -> std::convertible_to<std::string_view>;
};
template <class O>
concept optimizer_whole_matrix = requires {
  { O::whole_matrix } -> std::convertible_to<bool>;
};
template <class O>
concept optimizer_flops = requires(const O& o, matrix_shape s) {
  { o.flops(s) } -> std::same_as<index_t>;
};
template <class O>
concept optimizer_states = requires(const O& o, matrix_shape s) {
  std::tuple_size<decltype(o.states(s))>::value;
  requires std::same_as<decltype(o.states(s)),
                        std::array<state_spec, std::tuple_size_v<decltype(o.states(s))>>>;
};
template <class O>
concept optimizer_workspace_size = requires(const O& o, matrix_shape s) {
  { o.workspace_size(s) } -> std::same_as<index_t>;
};

template <class O, class T>
using state_spans =
    std::array<std::span<T>,
               std::tuple_size_v<decltype(std::declval<const O&>().states(matrix_shape{}))>>;

template <class O, class B>
concept optimizer_update =
    requires(const O& o, B& backend, state_spans<O, float> state, matrix_view<float> parameter,
             matrix_view<const float> gradient, update_context<float> context) {
      { o.update(backend, state, parameter, gradient, context) } -> std::same_as<void>;
    };

}  // namespace contract

// The states of one parameter, as spans in the order of states(shape).
template <class O, class T>
using state_spans = contract::state_spans<O, T>;

// A rule that updates one parameter from its gradient and its own state.
//   name               for plans and reports
//   whole_matrix       true if update needs the whole matrix; false if it works on any piece
//   flops(shape)       arithmetic of one update, the planner's measure of time
//   states(shape)      what it keeps of the parameter: std::array<state_spec, N>
//   workspace_size(shape)   scratch elements of one update
//   options()          optional: the options as text, compared between ranks at the start
//   squares_gradient   optional: true if sums of squares of a gradient must be finite in T; the
//                      runtime leaves out larger ones
//   check()            optional: throws spec_error if the options make no sense
//   states_of          optional: the name of another optimizer whose states these are, element for
//                      element, so that a checkpoint of one loads into the other
//   update(backend, states, parameter, gradient, context)   never writes the gradient; an
//                      elementwise piece arrives as a 1 x n view
template <class O>
concept Optimizer = std::copyable<O> && contract::optimizer_name<O> &&
                    contract::optimizer_whole_matrix<O> && contract::optimizer_flops<O> &&
                    contract::optimizer_states<O> && contract::optimizer_workspace_size<O>;

// ----------------------------------------------------------------------------- PeriodicOptimizer

// One exchange with the other sites.
struct exchange_round {
  std::int64_t step = 1;  // of the model
  std::size_t item = 0;   // as in update_context
  int round = 0;          // those before the update count from 0, those after it go on from there
};

namespace contract {

template <class O>
concept optimizer_rounds = requires {
  { O::rounds_before_update } -> std::convertible_to<int>;
  { O::rounds_after_update } -> std::convertible_to<int>;
};
template <class O>
concept optimizer_exchanges = requires(const O& o, matrix_shape s, exchange_round round) {
  {
    o.exchanges(s, round)
  } -> std::same_as<std::array<bool, 1 + std::tuple_size_v<decltype(o.states(s))>>>;
};
template <class O, class B>
concept optimizer_contribute =
    requires(const O& o, B& backend, state_spans<O, float> state, matrix_view<float> parameter,
             matrix_view<const float> gradient, update_context<float> context) {
      { o.contribute(backend, state, parameter, gradient, context, 0) } -> std::same_as<void>;
    };
template <class O, class B>
concept optimizer_adopt = requires(const O& o, B& backend, state_spans<O, float> state,
                                   matrix_view<float> parameter, update_context<float> context) {
  { o.adopt(backend, state, parameter, context, 0) } -> std::same_as<void>;
};

}  // namespace contract

// An optimizer that works alone for some steps and then meets the same parameter on other sites.
//   rounds_before_update, rounds_after_update   how many exchanges, one after the other, a step has
//                      at most, before and after update(); the former see the gradient
//   exchanges(shape, round)   whether the parameter, and each state in the order of states(shape),
//                      is then replaced by its mean over the sites. A pure function, since every
//                      site asks it for itself; all false: nothing happens in this round
//   contribute(backend, states, parameter, gradient, context, round)   puts what this site has to
//                      say where the mean will be. The gradient is empty after the update
//   adopt(backend, states, parameter, context, round)   takes the means, equal bits on all sites
//   start(backend, states, parameter, context)   optional: the first states, from the initial value
//                      of the parameter; they are zero before
//   join(backend, states, parameter, context)   optional: called on a site that joins, when it has
//                      taken parameter and states from another one. Resets what belongs to one site
//                      only: error feedback to zero, the parameter to its anchor
//   equal_states(shape)   optional: std::array<std::string_view, N>; of a state that every site
//                      computes for itself and with equal bits, who computes it, else empty.
//                      Checked builds compare them where sites meet
//   updates_from_mean  optional: true if update() takes what adopt() has left and not the gradient;
//                      it is then called even if this site's own gradient is unusable
// A site whose gradient is unusable does not contribute to the means before an update, and adopts
// that of the others. Where no site contributes a matrix is left out on all of them: what was to be
// exchanged stays as it is and is not adopted, and there is no update. The pieces of other tensors
// may differ between sites, so there a state's mean of no site is zero, the parameter stays as it
// is, and both are adopted. Without sharded_model::clip usability is judged for each such piece of
// a rank; with it for the whole tensor, on all ranks alike. workspace_size serves all of these
// functions. All states are exact.
template <class O>
concept PeriodicOptimizer =
    Optimizer<O> && contract::optimizer_rounds<O> && contract::optimizer_exchanges<O>;

template <class O, class B>
concept ExchangesOn =
    PeriodicOptimizer<O> && contract::optimizer_contribute<O, B> && contract::optimizer_adopt<O, B>;

template <class O, class B>
concept UpdatesOn = Optimizer<O> && contract::optimizer_update<O, B>;

// An optimizer that finds faults in its own options: check() throws spec_error, before anything
// else is asked.
template <class O>
concept ChecksOptions = requires(const O& o) { o.check(); };

// An optimizer of whole matrices that accepts placements that cut them: the runtime gathers the
// gradient of each matrix in every step.
template <class O>
concept GathersMatrices = Optimizer<O> && requires { requires O::gathers; };

namespace detail {

// The options of an optimizer as text; empty if it has none.
template <class O>
[[nodiscard]] std::string options_of(const O& optimizer) {
  if constexpr (requires { optimizer.options(); }) {
    return optimizer.options();
  } else {
    return {};
  }
}

}  // namespace detail

// A set of optimizers and the rule that sends each tensor to one of them.
//   members()        std::tuple of Optimizers
//   route(tensor)    the position of its member, or the number of members if none takes it; one
//                    function for the planner, the runtime and the checkpoint
//   groups()         optional: what each member is for
template <class S>
concept OptimizerSet = requires(const S& set, const tensor_spec& tensor) {
  { set.route(tensor) } -> std::same_as<std::size_t>;
  std::tuple_size<decltype(set.members())>::value;
};

// What a member of a set is for. Plans name it "adamw (label)".
struct optimizer_group {
  std::string label;          // one line of text
  bool may_be_empty = false;  // if not, a model without a tensor for it is refused
};

template <class S>
concept DescribesGroups = OptimizerSet<S> && requires(const S& set) {
  {
    set.groups()
  } -> std::same_as<std::array<optimizer_group, std::tuple_size_v<decltype(set.members())>>>;
};

// A single optimizer is a set of one.
template <class O>
[[nodiscard]] constexpr auto optimizer_members(const O& optimizer) {
  if constexpr (OptimizerSet<O>) {
    return optimizer.members();
  } else {
    return std::tuple<O>(optimizer);
  }
}

template <class O>
[[nodiscard]] constexpr std::size_t optimizer_route(const O& optimizer, const tensor_spec& tensor) {
  if constexpr (OptimizerSet<O>) {
    return optimizer.route(tensor);
  } else {
    return 0;
  }
}

// -------------------------------------------------------------------------------------- Placement

namespace contract {

template <class P>
concept placement_name = requires {
  { P::name } -> std::convertible_to<std::string_view>;
};
template <class P>
concept placement_whole_matrices = requires {
  { P::whole_matrices } -> std::convertible_to<bool>;
};
template <class P>
concept placement_replicated = requires {
  { P::replicated } -> std::convertible_to<bool>;
};
template <class P>
concept placement_place = requires(const P& p, std::span<const placement_item> items) {
  { p.place(items, 1) } -> std::same_as<std::vector<std::vector<segment>>>;
};

}  // namespace contract

// Which rank holds what.
//   name             for plans and reports
//   whole_matrices   true if no matrix item is ever cut
//   replicated       true if every rank holds everything (place is then not called)
//   place(items, ranks)   for each item its segments, covering it exactly once; a pure function in
//                    integer arithmetic, since every rank computes it for itself
template <class P>
concept Placement =
    std::copyable<P> && contract::placement_name<P> && contract::placement_whole_matrices<P> &&
    contract::placement_replicated<P> && contract::placement_place<P>;

// ------------------------------------------------------------------------------------- Collective

using deadline = std::chrono::steady_clock::time_point;

[[nodiscard]] inline deadline deadline_after(std::chrono::milliseconds wait) {
  // A century stands for ever; beyond it the clock overflows.
  return std::chrono::steady_clock::now() +
         std::min<std::chrono::milliseconds>(wait, std::chrono::years(100));
}

// A started operation. Every started operation must be waited for.
//   test()     makes progress without blocking; true when the output is complete
//   wait(d)    returns when the output is complete; throws collective_error after the deadline
//   drain(d)   after wait: returns when the input may be written again
// Destroying a request makes its memory safe to free: it drains what was waited for, and abandons
// what was not, which fails the operation on the other ranks.
template <class R>
concept Request = std::movable<R> && std::default_initializable<R> && requires(R r, deadline d) {
  { r.test() } -> std::same_as<bool>;
  r.wait(d);
  r.drain(d);
};

// Whether a reduction replaces its output or adds to it.
enum class reduce_into : bool { write, add };

namespace contract {

template <class C>
concept collective_request = requires { requires Request<typename C::request>; };
template <class C>
concept collective_rank = requires(const C& c) {
  { c.rank() } -> std::same_as<int>;
};
template <class C>
concept collective_size = requires(const C& c) {
  { c.size() } -> std::same_as<int>;
};

}  // namespace contract

// The base of every engine: who am I, among how many. Ranks call operations in one common order.
template <class C>
concept Collective = std::copy_constructible<C> && contract::collective_request<C> &&
                     contract::collective_rank<C> && contract::collective_size<C>;

// One concept for each operation, so that an engine that offers less still serves those who need
// less. Pieces and label are the same on all ranks and outlive the request; pieces of no elements
// are absent. The label names the operation in errors.
//
// All-gather: every rank's pieces reach `full` on every rank, this rank's own included.
template <class C, class T>
concept AllGather =
    Collective<C> && requires(C c, std::span<const T> shard, std::span<T> full,
                              std::span<const piece> pieces, std::string_view label) {
      { c.start_all_gather(shard, full, pieces, label) } -> std::same_as<typename C::request>;
    };

// Reduce-scatter: each piece of `full`, summed over ranks 0, 1, 2, ... in that order, reaches the
// shard of the piece's rank. What moves is From; it is converted to To, in which the sums are.
template <class C, class From, class To = From>
concept ReduceScatter =
    Collective<C> && requires(C c, std::span<const From> full, std::span<To> shard,
                              std::span<const piece> pieces, std::string_view label) {
      {
        c.start_reduce_scatter(full, shard, pieces, reduce_into::add, label)
      } -> std::same_as<typename C::request>;
    };

// All-reduce: the elements of `full` that the pieces name (their ranks do not matter), summed over
// ranks 0, 1, 2, ... in that order, reach `local` on every rank. Types as for a reduce-scatter.
template <class C, class From, class To = From>
concept AllReduce =
    Collective<C> && requires(C c, std::span<const From> full, std::span<To> local,
                              std::span<const piece> pieces, std::string_view label) {
      {
        c.start_all_reduce(full, local, pieces, reduce_into::add, label)
      } -> std::same_as<typename C::request>;
    };

// Who is let in by an operation of an elastic collective, and who hands over to them.
struct admission {
  int giver = 0;              // the lowest of the ranks that were there before
  std::vector<int> joined{};  // ranks; nobody, most of the time
  friend bool operator==(const admission&, const admission&) = default;
};

// A collective whose ranks may vanish, and others come for them (elastic_world). What the rest
// starts goes on without who is gone: sums are over those who have given something to the
// operation, and the pieces of the others are zeros.
//   joins()    whether this rank is new and not let in yet. Until then it talks to nobody: its
//              gathers return what the first ranks gave to those of equal labels and sizes before
//              their first sum, with its own pieces among them
//   admit(d)   an operation of all ranks that are in, which lets in who waits; for a rank that
//              joins, the wait for that. Throws collective_error after the deadline
template <class C>
concept ElasticCollective = Collective<C> && requires(C c, const C& seen, deadline d) {
  { seen.joins() } -> std::same_as<bool>;
  { c.admit(d) } -> std::same_as<admission>;
};

// Three axes of one job. Units are sharded over `shard`; `replicate` holds copies of each shard and
// `site` connects groups that synchronise rarely.
template <class M>
concept Mesh = requires(const M& mesh) {
  requires Collective<std::remove_cvref_t<decltype(mesh.shard)>>;
  requires Collective<std::remove_cvref_t<decltype(mesh.replicate)>>;
  requires Collective<std::remove_cvref_t<decltype(mesh.site)>>;
};

}  // namespace mfsdp::inline MFSDP_ABI
