// nccl_collective: a rank's view of a communicator of NCCL.
//
// An operation is queued on a stream of its communicator, behind what the compute stream has to do
// when it is started; `wait` puts what the compute stream gets to do later behind the operation. So
// neither blocks the host, and buffers may be used on the compute stream as if the calls did their
// work at once. docs/nccl.md says what does block, and what happens when a rank fails.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "mfsdp/collective/nccl_engine.hpp"
#include "mfsdp/collective/nccl_start.hpp"
#include "mfsdp/collective/nccl_sums.hpp"

namespace mfsdp::inline MFSDP_ABI {

namespace detail {

// Sums for which there is a kernel (cuda/instantiate.cuh).
template <class From, class To>
concept NcclSum =
    (std::is_same_v<From, To> && (std::is_same_v<From, double> || StoredElement<From>)) ||
    (StoredElement<From> && std::is_same_v<To, float>);

}  // namespace detail

// One rank's view of a communicator. Copies are the same rank; use it from that rank's thread only.
// Operands are in memory of the device, or control messages in host memory: up to 64 MiB, which are
// copied, and whose wait() blocks if they are outputs.
class nccl_collective {
  using engine = detail::nccl_engine;
  using group = detail::nccl_group;
  using operation = detail::nccl_operation;

 public:
  class request {
   public:
    request() = default;
    request(request&& other) noexcept
        : engine_(std::move(other.engine_)),
          group_(other.group_),
          op_(std::move(other.op_)),
          back_(other.back_),
          waited_(other.waited_) {}
    request& operator=(request&& other) noexcept {
      request moved(std::move(other));
      std::swap(engine_, moved.engine_);
      std::swap(group_, moved.group_);
      std::swap(op_, moved.op_);
      std::swap(back_, moved.back_);
      std::swap(waited_, moved.waited_);
      return *this;
    }
    // What the compute stream gets to do later, the reuse of freed memory included, comes after the
    // operation.
    ~request() {
      if (op_ == nullptr) return;
      const auto guard = engine_->lock();
      try {
        if (!waited_ && !op_->over && !engine_->failed()) engine_->precede_compute(*op_);
      } catch (const error& e) {
        engine_->fail(e.what());
      }
      engine_->release(*group_, std::move(op_));
    }

    bool test() {
      if (op_ == nullptr || waited_) return true;
      const auto guard = engine_->lock();
      engine_->look();
      engine_->throw_if_failed();
      if (!op_->over) return false;
      back_.copy();
      return waited_ = true;
    }
    // Blocks only for an output in host memory. For one of the device, a deadline that passes is
    // noticed by the engine, and told by later calls.
    void wait(deadline until) {
      if (op_ == nullptr || waited_) return;
      if (back_.to != nullptr) {
        engine_->await(*op_, until);
        back_.copy();
      } else {
        const auto guard = engine_->lock();
        engine_->throw_if_failed();
        op_->patience = std::chrono::duration_cast<std::chrono::milliseconds>(
            until - std::chrono::steady_clock::now());
        if (op_->until) op_->until = until;
        engine_->precede_compute(*op_);
      }
      waited_ = true;
    }
    // After it, what is queued on the compute stream may write the input; an input in host memory
    // was copied when the operation was started.
    void drain(deadline until) { wait(until); }

   private:
    friend class nccl_collective;
    std::shared_ptr<engine> engine_;
    group* group_ = nullptr;
    std::shared_ptr<operation> op_;
    detail::nccl_host_output back_;
    bool waited_ = false;
  };

  [[nodiscard]] int rank() const { return group_->rank; }
  [[nodiscard]] int size() const { return group_->size; }
  [[nodiscard]] int device() const { return engine_->device(); }
  // Where operands are computed and used; for a cuda_backend(device(), compute_stream()).
  [[nodiscard]] cudaStream_t compute_stream() const { return engine_->compute(); }

  // One broadcast for each piece, in one NCCL group.
  template <class T>
  request start_all_gather(std::span<const T> shard, std::span<T> full,
                           std::span<const piece> pieces, std::string_view label) {
    static_assert(std::is_trivially_copyable_v<T>);
    detail::nccl_start now(*engine_, *group_, "all-gather", label, pieces, sizeof(T));
    const T* from = now.input(shard);
    T* to = now.output(full, pieces, true, -1);
    now.begin();
    if (has_elements(pieces)) {
      now.grouped([&](ncclComm_t comm, cudaStream_t stream, const auto& check) {
        for (const piece& p : pieces) {
          if (p.count == 0) continue;
          T* whole = to + p.full;
          check(ncclBroadcast(p.rank == rank() ? from + p.local : whole, whole,
                              static_cast<std::size_t>(p.count) * sizeof(T), ncclInt8, p.rank, comm,
                              stream));
        }
      });
    }
    return started(now);
  }

  // Errors: usage_error if the types differ and sums are NCCL's.
  template <class From, class To>
    requires detail::NcclSum<From, To>
  request start_reduce_scatter(std::span<const From> full, std::span<To> shard,
                               std::span<const piece> pieces, reduce_into into,
                               std::string_view label) {
    require_summable<From, To>("reduce-scatter", label);
    detail::nccl_start now(*engine_, *group_,
                           into == reduce_into::add ? "adding reduce-scatter" : "reduce-scatter",
                           label, pieces, sizeof(From));
    const From* from = now.input(full);
    To* to = now.output(shard, pieces, false, rank());
    now.begin();
    if (now.sums() == sum_order::rank) {
      detail::scatter_in_rank_order<From, To>(now, from, to, pieces, into);
    } else if constexpr (std::is_same_v<From, To>) {
      detail::scatter_by_nccl<To>(now, from, to, pieces, into);
    }
    return started(now);
  }

  // Errors: as above.
  template <class From, class To>
    requires detail::NcclSum<From, To>
  request start_all_reduce(std::span<const From> full, std::span<To> local,
                           std::span<const piece> pieces, reduce_into into,
                           std::string_view label) {
    require_summable<From, To>("all-reduce", label);
    detail::nccl_start now(*engine_, *group_,
                           into == reduce_into::add ? "adding all-reduce" : "all-reduce", label,
                           pieces, sizeof(From));
    const From* from = now.input(full);
    To* to = now.output(local, pieces, false, -1);
    now.begin();
    if (now.sums() == sum_order::rank) {
      detail::all_reduce_in_rank_order<From, To>(now, from, to, pieces, into);
    } else if constexpr (std::is_same_v<From, To>) {
      detail::all_reduce_by_nccl<To>(now, from, to, pieces, into);
    }
    return started(now);
  }

  // The ranks of one color, in the order of ranks: a communicator with a stream of its own, which
  // lives as long as that of all ranks. A collective call, which blocks. Errors: spec_error if the
  // color is negative; as the creation of a nccl_communicator.
  [[nodiscard]] nccl_collective split(int color) {
    if (color < 0) throw spec_error(fmt::format("rank {}: the color {} of a split", rank(), color));
    const std::vector<int> colors = gather<int>(std::array{color}, "colors of a split");
    const auto of_color = [&](int r) { return colors[static_cast<std::size_t>(r)] == color; };
    int place = 0;
    int members = 0;
    int first = size();
    for (int r = size() - 1; r >= 0; --r) {
      if (!of_color(r)) continue;
      first = r;
      ++members;
      if (r < rank()) ++place;
    }
    ncclUniqueId id{};
    if (place == 0) detail::require_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
    const std::vector<char> ids =
        gather<char>(std::span<const char>(id.internal), "communicators of a split");
    std::memcpy(id.internal, ids.data() + static_cast<std::size_t>(first) * sizeof id.internal,
                sizeof id.internal);
    nccl_collective part(engine_, engine_->create(id, place, members));
    part.check();
    return part;
  }

  // Returns when nothing that this rank has started is under way, in any of its communicators, on
  // the device either. Where a trainer blocks anyhow, this reports failures by their names.
  // Errors: collective_error, rank_failure.
  void synchronize(deadline until) { engine_->synchronize(until); }

 private:
  friend class nccl_communicator;
  nccl_collective(std::shared_ptr<engine> e, group& g) : engine_(std::move(e)), group_(&g) {}

  static bool has_elements(std::span<const piece> pieces) {
    return std::ranges::any_of(pieces, [](const piece& p) { return p.count > 0; });
  }

  template <class From, class To>
  void require_summable(std::string_view kind, std::string_view label) const {
    if (std::is_same_v<From, To> || engine_->options().sums == sum_order::rank) return;
    throw usage_error(
        fmt::format("{} '{}': with sum_order::nccl sums are of the type that travels; give the "
                    "precision equal types for gradients and their sums, or take sum_order::rank",
                    kind, label));
  }

  request started(detail::nccl_start& now) {
    request r;
    r.engine_ = engine_;
    r.group_ = group_;
    std::tie(r.op_, r.back_) = now.finish();
    return r;
  }

  // What all ranks give, in their order.
  template <class T>
  std::vector<T> gather(std::span<const T> own, std::string_view label) {
    std::vector<piece> pieces;
    const index_t count = std::ssize(own);
    for (int r = 0; r < size(); ++r) pieces.push_back({r, r * count, 0, count});
    std::vector<T> all(own.size() * pieces.size());
    start_all_gather(own, std::span<T>(all), std::span<const piece>(pieces), label)
        .wait(deadline_after(engine_->options().timeout));
    return all;
  }

  // Gathers and sums a little, unevenly, which also connects all ranks. Errors: collective_error
  // that says what has come from whom; spec_error if ranks have other options.
  void check() {
    const nccl_options& options = engine_->options();
    const std::array<std::int64_t, 3> mine{static_cast<std::int64_t>(options.sums),
                                           options.compare_calls, options.scratch_bytes};
    const auto all = gather<std::int64_t>(mine, "options");
    for (int r = 0; r < size(); ++r) {
      if (std::equal(mine.begin(), mine.end(), all.begin() + 3 * r)) continue;
      throw spec_error(
          fmt::format("ranks {} and {} have different nccl_options: sums, compare_calls, or "
                      "scratch_bytes {} and {}; all ranks must have the same",
                      rank(), r, mine[2], all[static_cast<std::size_t>(3 * r + 2)]));
    }
    group_->compares = options.compare_calls && size() > 1;
    std::vector<piece> pieces;  // of 1 to 7 elements: every rank talks to every other one
    index_t total = 0;
    for (int r = 0; r < size(); ++r) {
      pieces.push_back({r, total, 0, 1 + (5 * r + 3) % 7});
      total += pieces.back().count;
    }
    const auto value = [](const piece& p, index_t i) {
      return static_cast<float>(10 * p.rank + static_cast<int>(i));
    };
    const piece& own = pieces[static_cast<std::size_t>(rank())];
    std::vector<float> shard;
    for (index_t i = 0; i < own.count; ++i) shard.push_back(value(own, i));
    std::vector<float> full(static_cast<std::size_t>(total), -1.0f);
    const deadline until = deadline_after(options.timeout);
    start_all_gather(std::span<const float>(shard), std::span(full), std::span<const piece>(pieces),
                     "self-check")
        .wait(until);
    for (const piece& p : pieces) {
      for (index_t i = 0; i < p.count; ++i) {
        require_checked(p, i, full[static_cast<std::size_t>(p.full + i)], value(p, i), "gathered");
      }
    }
    start_reduce_scatter(std::span<const float>(full), std::span(shard),
                         std::span<const piece>(pieces), reduce_into::write, "self-check")
        .wait(until);
    for (index_t i = 0; i < own.count; ++i) {
      require_checked(own, i, shard[static_cast<std::size_t>(i)],
                      static_cast<float>(size()) * value(own, i), "summed");
    }
  }

  void require_checked(const piece& p, index_t i, float got, float due,
                       std::string_view how) const {
    if (got == due) return;
    throw collective_error(
        fmt::format("self-check of NCCL on rank {}: of rank {}'s {} elements number {} was {} as "
                    "{} instead of {}; NCCL_DEBUG=INFO shows how the ranks are connected",
                    rank(), p.rank, p.count, i, how, got, due));
  }

  std::shared_ptr<engine> engine_;
  group* group_;  // of the engine
};

}  // namespace mfsdp::inline MFSDP_ABI
