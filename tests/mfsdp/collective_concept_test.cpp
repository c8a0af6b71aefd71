// The smallest Collective, and for each requirement a type that fails in this one alone.
#include <span>
#include <string_view>

#include "mfsdp/concepts.hpp"

namespace collective_concept_test {

namespace {

using mfsdp::AllGather, mfsdp::AllReduce, mfsdp::Collective, mfsdp::deadline, mfsdp::piece;
using mfsdp::reduce_into, mfsdp::ReduceScatter, mfsdp::Request;

template <class... Part>
struct composed : Part... {};

// The archetypes' members, one at a time, so that a mutant can leave one out or change it.
struct with_test {
  bool test();
};
struct with_wait {
  void wait(deadline);
};
struct with_drain {
  void drain(deadline);
};
struct move_only {
  move_only() = default;
  move_only(move_only&&) = default;
  move_only& operator=(move_only&&) = default;
};
using request_archetype = composed<move_only, with_test, with_wait, with_drain>;

static_assert(Request<request_archetype>);
static_assert(!Request<composed<move_only, with_wait, with_drain>>);
static_assert(!Request<composed<move_only, with_test, with_drain>>);
static_assert(!Request<composed<move_only, with_test, with_wait>>);

struct int_test {
  int test();
};
struct wait_without_deadline {
  void wait();
};
struct drain_without_deadline {
  void drain();
};
struct pinned {
  pinned() = default;
  pinned(pinned&&) = delete;
};
struct without_default {
  explicit without_default(int);
};
static_assert(!Request<composed<move_only, int_test, with_wait, with_drain>>);
static_assert(!Request<composed<move_only, with_test, wait_without_deadline, with_drain>>);
static_assert(!Request<composed<move_only, with_test, with_wait, drain_without_deadline>>);
static_assert(!Request<composed<pinned, with_test, with_wait, with_drain>>);
static_assert(!Request<composed<without_default, with_test, with_wait, with_drain>>);

struct with_request {
  using request = request_archetype;
};
struct with_rank {
  int rank() const;
};
struct with_size {
  int size() const;
};
using base = composed<with_request, with_rank, with_size>;

static_assert(Collective<base>);
static_assert(!Collective<composed<with_rank, with_size>>);
static_assert(!Collective<composed<with_request, with_size>>);
static_assert(!Collective<composed<with_request, with_rank>>);

struct undrained_request {
  using request = composed<move_only, with_test, with_wait>;
};
struct mutable_rank {
  int rank();
};
struct long_rank {
  long rank() const;
};
struct mutable_size {
  int size();
};
struct unsigned_size {
  unsigned size() const;
};
static_assert(!Collective<composed<undrained_request, with_rank, with_size>>);
static_assert(!Collective<composed<with_request, mutable_rank, with_size>>);
static_assert(!Collective<composed<with_request, long_rank, with_size>>);
static_assert(!Collective<composed<with_request, with_rank, mutable_size>>);
static_assert(!Collective<composed<with_request, with_rank, unsigned_size>>);
static_assert(!Collective<composed<move_only, with_request, with_rank, with_size>>);

using in = std::span<const float>;
using out = std::span<float>;
using pieces = std::span<const piece>;

struct with_all_gather {
  request_archetype start_all_gather(in, out, pieces, std::string_view);
};
struct with_reduce_scatter {
  request_archetype start_reduce_scatter(in, out, pieces, reduce_into, std::string_view);
};
struct with_all_reduce {
  request_archetype start_all_reduce(in, out, pieces, reduce_into, std::string_view);
};

using all_three = composed<base, with_all_gather, with_reduce_scatter, with_all_reduce>;
static_assert(AllGather<all_three, float> && ReduceScatter<all_three, float> &&
              AllReduce<all_three, float>);
static_assert(!AllGather<all_three, double> && !ReduceScatter<all_three, double> &&
              !AllReduce<all_three, double>);

// Each operation serves without the others, and not without the base.
static_assert(AllGather<composed<base, with_all_gather>, float>);
static_assert(ReduceScatter<composed<base, with_reduce_scatter>, float>);
static_assert(AllReduce<composed<base, with_all_reduce>, float>);
static_assert(!AllGather<composed<base, with_reduce_scatter, with_all_reduce>, float>);
static_assert(!ReduceScatter<composed<base, with_all_gather, with_all_reduce>, float>);
static_assert(!AllReduce<composed<base, with_all_gather, with_reduce_scatter>, float>);
static_assert(!AllGather<composed<with_request, with_size, with_all_gather>, float>);
static_assert(!ReduceScatter<composed<with_request, with_size, with_reduce_scatter>, float>);
static_assert(!AllReduce<composed<with_request, with_size, with_all_reduce>, float>);

struct gather_returns_nothing {
  void start_all_gather(in, out, pieces, std::string_view);
};
struct gather_returns_other_request {
  composed<with_test, with_wait, with_drain> start_all_gather(in, out, pieces, std::string_view);
};
struct gather_without_label {
  request_archetype start_all_gather(in, out, pieces);
};
struct gather_writes_shard {
  request_archetype start_all_gather(out, out, pieces, std::string_view);
};
struct gather_writes_pieces {
  request_archetype start_all_gather(in, out, std::span<piece>, std::string_view);
};
static_assert(!AllGather<composed<base, gather_returns_nothing>, float>);
static_assert(!AllGather<composed<base, gather_returns_other_request>, float>);
static_assert(!AllGather<composed<base, gather_without_label>, float>);
static_assert(!AllGather<composed<base, gather_writes_shard>, float>);
static_assert(!AllGather<composed<base, gather_writes_pieces>, float>);

struct scatter_only_writes {
  request_archetype start_reduce_scatter(in, out, pieces, std::string_view);
};
struct scatter_returns_nothing {
  void start_reduce_scatter(in, out, pieces, reduce_into, std::string_view);
};
struct scatter_writes_full {
  request_archetype start_reduce_scatter(out, out, pieces, reduce_into, std::string_view);
};
static_assert(!ReduceScatter<composed<base, scatter_only_writes>, float>);
static_assert(!ReduceScatter<composed<base, scatter_returns_nothing>, float>);
static_assert(!ReduceScatter<composed<base, scatter_writes_full>, float>);

struct reduce_only_writes {
  request_archetype start_all_reduce(in, out, pieces, std::string_view);
};
struct reduce_returns_nothing {
  void start_all_reduce(in, out, pieces, reduce_into, std::string_view);
};
struct reduce_writes_full {
  request_archetype start_all_reduce(out, out, pieces, reduce_into, std::string_view);
};
static_assert(!AllReduce<composed<base, reduce_only_writes>, float>);
static_assert(!AllReduce<composed<base, reduce_returns_nothing>, float>);
static_assert(!AllReduce<composed<base, reduce_writes_full>, float>);

}  // namespace

}  // namespace collective_concept_test
