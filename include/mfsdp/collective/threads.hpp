// thread_world: ranks as threads of one process, the embedded engine and the reference.
//
// A collective is posted on a board that all ranks see. When every rank has posted, each rank does
// its own share of the work out of the others' memory: it fills its own unit buffer, or sums its
// own pieces. So a byte is copied once, nobody waits for a rank that has already posted, and the
// order of summation is the order of ranks. A group that is split off has a board of its own.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <numeric>
#include <span>
#include <string_view>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "mfsdp/collective/rank_order_sum.hpp"
#include "mfsdp/collective/thread_board.hpp"

namespace mfsdp::inline MFSDP_ABI {

struct thread_world_options {
  // How long the destructor of a request may wait, and a split; operations bring deadlines of their
  // own.
  std::chrono::milliseconds timeout = std::chrono::minutes(2);
};

// One rank's view of a group: a thread_world or a part of it. Copies are the same rank; use it from
// that rank's thread only.
class thread_collective {
  struct started {
    std::shared_ptr<detail::thread_board> board{};
    int rank = 0;
    std::int64_t number = 0;
    // Reads the ranks' inputs, writes this rank's output; returns the bytes read from other ranks.
    std::int64_t (*transfer)(const started&, std::span<const void* const> sources) = nullptr;
    void* output = nullptr;
    std::span<const piece> pieces;
    reduce_into into = reduce_into::write;
    bool done = true;

    std::int64_t operator()(std::span<const void* const> sources) const {
      return transfer(*this, sources);
    }
  };

 public:
  class request {
   public:
    request() = default;
    request(request&& other) noexcept : op_(std::exchange(other.op_, {})) {}
    request& operator=(request&& other) noexcept {
      request moved(std::move(other));
      std::swap(op_, moved.op_);
      return *this;
    }
    ~request() {
      if (op_.board != nullptr) op_.board->settle(op_.rank, op_.number, op_.done);
    }

    bool test() {
      if (!op_.done) op_.done = op_.board->try_transfer(op_.rank, op_.number, op_);
      return op_.done;
    }
    void wait(deadline until) {
      if (op_.done) return;
      op_.board->await_transfer(op_.rank, op_.number, until, op_);
      op_.done = true;
    }
    void drain(deadline until) {
      if (op_.board == nullptr) return;
      wait(until);
      op_.board->drain(op_.rank, op_.number, until);
      op_.board.reset();
    }

   private:
    friend class thread_collective;
    explicit request(const started& op) : op_(op) {}
    started op_;
  };

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return board_->size(); }

  // Bytes that this rank has copied or summed out of the memory of other ranks of the group so far.
  [[nodiscard]] std::int64_t bytes_read() const { return board_->bytes_read(rank_); }

  template <class T>
  request start_all_gather(std::span<const T> shard, std::span<T> full,
                           std::span<const piece> pieces, std::string_view label) {
    return start("all-gather", label, shard, full, pieces, reduce_into::write, &gather<T>);
  }

  template <class From, class To>
  request start_reduce_scatter(std::span<const From> full, std::span<To> shard,
                               std::span<const piece> pieces, reduce_into into,
                               std::string_view label) {
    return start(into == reduce_into::add ? "adding reduce-scatter" : "reduce-scatter", label, full,
                 shard, pieces, into, &reduce<From, To, false>);
  }

  // Every rank sums everything: (size - 1) times the bytes of the pieces are read.
  template <class From, class To>
  request start_all_reduce(std::span<const From> full, std::span<To> local,
                           std::span<const piece> pieces, reduce_into into,
                           std::string_view label) {
    return start(into == reduce_into::add ? "adding all-reduce" : "all-reduce", label, full, local,
                 pieces, into, &reduce<From, To, true>);
  }

  // The ranks of one color, in the order of ranks. A collective call; the group fails with the
  // world and the world with the group.
  [[nodiscard]] thread_collective split(int color) {
    std::vector<int> colors(static_cast<std::size_t>(size()));
    std::vector<piece> pieces;
    for (int r = 0; r < size(); ++r) pieces.push_back({r, r, 0, 1});
    request all = start_all_gather(std::span<const int>(&color, 1), std::span<int>(colors),
                                   std::span<const piece>(pieces), "split");
    const std::int64_t number = all.op_.number;
    const deadline until = std::chrono::steady_clock::now() + board_->timeout();
    all.wait(until);
    all.drain(until);
    const auto before = std::span(colors).first(static_cast<std::size_t>(rank_));
    return {board_->part(number, color, colors),
            static_cast<int>(std::ranges::count(before, color))};
  }

 private:
  friend class thread_world;
  thread_collective(std::shared_ptr<detail::thread_board> board, int rank)
      : board_(std::move(board)), rank_(rank) {}

  template <class From, class To>
  request start(std::string_view kind, std::string_view label, std::span<const From> input,
                std::span<To> output, std::span<const piece> pieces, reduce_into into,
                decltype(started::transfer) transfer) {
    static_assert(std::is_trivially_copyable_v<From> && std::is_trivially_copyable_v<To>);
    index_t elements = 0;
    for (const piece& p : pieces) elements += p.count;
    const std::int64_t number =
        board_->post(rank_, {kind, label, elements, sizeof(From)}, input.data());
    return request({board_, rank_, number, transfer, output.data(), pieces, into, false});
  }

  template <class T>
  static std::int64_t gather(const started& op, std::span<const void* const> sources) {
    std::int64_t bytes_read = 0;
    for (const piece& p : op.pieces) {
      const T* shard = static_cast<const T*>(sources[static_cast<std::size_t>(p.rank)]);
      std::copy_n(shard + p.local, p.count, static_cast<T*>(op.output) + p.full);
      if (p.rank != op.rank) bytes_read += p.count * static_cast<std::int64_t>(sizeof(T));
    }
    return bytes_read;
  }

  template <class From, class To, bool Everywhere>
  static std::int64_t reduce(const started& op, std::span<const void* const> sources) {
    std::int64_t bytes_read = 0;
    for (const piece& p : op.pieces) {
      if (!Everywhere && p.rank != op.rank) continue;
      detail::add_in_rank_order<From>(sources, p, static_cast<To*>(op.output) + p.local, op.into);
      bytes_read += p.count * static_cast<std::int64_t>(sizeof(From) * (sources.size() - 1));
    }
    return bytes_read;
  }

  std::shared_ptr<detail::thread_board> board_;  // may outlive the world's run
  int rank_;
};

// Runs one function on every rank.
class thread_world {
 public:
  // Errors: spec_error if ranks < 1.
  explicit thread_world(int ranks, thread_world_options options = {})
      : ranks_(ranks), options_(options) {
    if (ranks < 1)
      throw spec_error(fmt::format("thread_world needs at least one rank, not {}", ranks));
  }

  [[nodiscard]] int size() const { return ranks_; }

  // Calls body(thread_collective) on every rank, each in a thread of its own, and returns when all
  // have ended. If a rank throws, the others throw rank_failure out of their next or current
  // collective, and run rethrows the first exception.
  template <class Body>
  void run(Body&& body) {
    const auto ranks = std::make_shared<detail::thread_ranks>(ranks_, options_.timeout);
    std::vector<int> members(static_cast<std::size_t>(ranks_));
    std::iota(members.begin(), members.end(), 0);
    const auto board = std::make_shared<detail::thread_board>(ranks, std::move(members));
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(ranks_));
    for (int rank = 0; rank < ranks_; ++rank) {
      // A thread that cannot be started is a rank that has failed.
      try {
        threads.emplace_back([&, rank] { run_rank(*ranks, thread_collective(board, rank), body); });
      } catch (const std::system_error& e) {
        ranks->fail(rank, e.what(), std::current_exception());
        break;
      }
    }
    for (std::thread& thread : threads) thread.join();
    ranks->rethrow_failure();
  }

 private:
  template <class Body>
  static void run_rank(detail::thread_ranks& ranks, const thread_collective& collective,
                       Body& body) {
    const int rank = collective.rank();
    try {
      body(thread_collective(collective));
      ranks.leave(rank);
    } catch (const std::exception& e) {
      ranks.fail(rank, e.what(), std::current_exception());
    } catch (...) {
      ranks.fail(rank, "an exception of unknown type", std::current_exception());
    }
  }

  int ranks_;
  thread_world_options options_;
};

}  // namespace mfsdp::inline MFSDP_ABI
