// thread_world: ranks as threads of one process, the embedded engine and the reference.
//
// A collective is posted on a board that all ranks see. When every rank has posted, each rank does
// its own share of the work out of the others' memory: it fills its own unit buffer, or sums its
// own pieces. So a byte is copied once, nobody waits for a rank that has already posted, and the
// order of summation is the order of ranks. A group that is split off has a board of its own.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"

namespace mfsdp::inline MFSDP_ABI {

struct thread_world_options {
  // How long the destructor of a request may wait; operations bring deadlines of their own.
  std::chrono::milliseconds timeout = std::chrono::minutes(2);
};

namespace detail {

class thread_board;

// What a blocked rank waits for: that every rank of a group has started an operation, or that every
// rank has finished it. Ranks are those of the world; who is not in the group need not join.
struct thread_wait {
  thread_board* board = nullptr;
  std::int64_t number = 0;  // of the operation
  bool to_finish = false;

  [[nodiscard]] bool joined(int rank) const;
  [[nodiscard]] bool running() const;  // whether any rank reads the others' inputs
  [[nodiscard]] std::string describe(int rank, std::string_view does) const;
};

// The ranks of a thread_world, whatever groups they form: who has returned, who waits for whom, and
// the first failure, which ends all waits in all groups. One lock guards this and the boards.
class thread_ranks {
 public:
  thread_ranks(int count, thread_world_options options)
      : timeout_(options.timeout), left_(at(count), false), waits_(at(count)) {}

  [[nodiscard]] int count() const { return static_cast<int>(left_.size()); }
  [[nodiscard]] std::chrono::milliseconds timeout() const { return timeout_; }
  [[nodiscard]] std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }

  // A rank's function has returned.
  void leave(int rank) {
    const std::unique_lock guard(mutex_);
    left_[at(rank)] = true;
    if (!failure_ && unwound(rank)) record(*unwinding_);
    // Who waits for this rank will see that it has left; the others may be stuck among themselves.
    const bool missed = std::ranges::any_of(
        waits_, [&](const thread_wait& w) { return w.board != nullptr && !w.joined(rank); });
    if (!failure_ && !missed && standoff()) record(failure_of(rank, describe_standoff()));
    changed_.notify_all();
  }

  // A rank's function has thrown. The first failure is the cause that all ranks report.
  void fail(int rank, const std::string& what, std::exception_ptr cause) {
    const std::unique_lock guard(mutex_);
    left_[at(rank)] = true;
    if (!failure_ || failure_->rank == rank) record({rank, what, std::move(cause)});
  }

  void rethrow_failure() {
    const std::unique_lock guard(mutex_);
    if (failure_) std::rethrow_exception(failure_->cause);
  }

  // ----- what boards use, with the lock

  void notify() { changed_.notify_all(); }

  // Whether memory may go away, so that no transfer may start.
  [[nodiscard]] bool stopped() const { return failure_ || unwinding_; }
  // Whether this is on account of one rank, or of all.
  [[nodiscard]] bool stopped_by(int rank) const { return failure_ || unwound(rank); }

  void throw_if_failed(int rank) const {
    if (!failure_) return;
    if (failure_->rank == rank) throw collective_error(failure_->what);
    throw rank_failure(fmt::format("rank {} failed first: {}", failure_->rank, failure_->what));
  }

  [[noreturn]] void give_up(int rank, const std::string& what) {
    record(failure_of(rank, what));
    throw collective_error(what);
  }

  // Whether every rank has joined; throws when that will never be.
  bool poll(int rank, const thread_wait& wait) {
    if (!misses_any(wait)) return true;  // what is over is over, even if a rank has failed since
    if (!failure_ && unwound(rank)) record(*unwinding_);
    throw_if_failed(rank);
    for (int other = 0; other < count(); ++other) {
      if (!left_[at(other)] || wait.joined(other)) continue;
      give_up(rank,
              wait.describe(rank, fmt::format("waits for rank {}, which has returned", other)));
    }
    return false;
  }

  void await(std::unique_lock<std::mutex>& guard, int rank, const thread_wait& wait,
             deadline until) {
    if (poll(rank, wait)) return;
    const wait_scope waits(waits_[at(rank)], wait);
    if (standoff()) give_up(rank, describe_standoff());
    if (!changed_.wait_until(guard, until, [&] { return poll(rank, wait); })) {
      give_up(rank, overdue(rank, wait));
    }
  }

  // Makes the memory behind a request safe to free, whatever state the world is in.
  void settle(std::unique_lock<std::mutex>& guard, int rank, const thread_wait& wait,
              bool transferred) noexcept {
    if (!misses_any(wait)) return;
    const bool unwinding = std::uncaught_exceptions() > 0;
    if (!stopped() && (unwinding || !transferred)) {
      unwinding_ =
          failure_of(rank, wait.describe(rank, "gave it up before every rank had finished"));
      // The exception that unwinds this rank says more; it follows in fail().
      if (!unwinding) record(*unwinding_);
      changed_.notify_all();
    }
    const auto safe = [&] { return !misses_any(wait) || (stopped() && !wait.running()); };
    if (changed_.wait_until(guard, std::chrono::steady_clock::now() + timeout_, safe)) return;
    if (!failure_) record(failure_of(rank, overdue(rank, wait)));
    changed_.wait(guard, safe);
  }

 private:
  struct failure {
    int rank;
    std::string what;
    std::exception_ptr cause;
  };

  struct wait_scope {
    wait_scope(thread_wait& slot, const thread_wait& what) : slot_(slot) { slot_ = what; }
    ~wait_scope() { slot_ = {}; }
    wait_scope(const wait_scope&) = delete;
    wait_scope& operator=(const wait_scope&) = delete;
    thread_wait& slot_;
  };

  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

  [[nodiscard]] bool unwound(int rank) const { return unwinding_ && unwinding_->rank == rank; }

  [[nodiscard]] bool misses_any(const thread_wait& wait) const {
    for (int other = 0; other < count(); ++other) {
      if (!wait.joined(other)) return true;
    }
    return false;
  }

  // Whether every rank waits for another or has returned, so that no deadline need be waited for.
  [[nodiscard]] bool standoff() const {
    for (int rank = 0; rank < count(); ++rank) {
      const thread_wait& wait = waits_[at(rank)];
      if (!left_[at(rank)] && (wait.board == nullptr || !misses_any(wait))) return false;
    }
    return std::ranges::any_of(waits_, [](const thread_wait& w) { return w.board != nullptr; });
  }

  [[nodiscard]] std::string describe_standoff() const {
    std::string what = "no rank can go on, since they made different calls:";
    for (int rank = 0; rank < count(); ++rank) {
      const thread_wait& wait = waits_[at(rank)];
      if (wait.board == nullptr) {
        what += fmt::format(" rank {} has returned;", rank);
      } else {
        what += " " + wait.describe(rank, "waits for " + missing(wait)) + ";";
      }
    }
    return what + " all ranks must make the same calls in the same order";
  }

  [[nodiscard]] std::string overdue(int rank, const thread_wait& wait) const {
    return wait.describe(rank, "reached its deadline waiting for rank " + missing(wait));
  }

  [[nodiscard]] std::string missing(const thread_wait& wait) const {
    std::string list;
    for (int other = 0; other < count(); ++other) {
      if (!wait.joined(other)) list += fmt::format("{}{}", list.empty() ? "" : ", ", other);
    }
    return list;
  }

  static failure failure_of(int rank, const std::string& what) {
    return {rank, what, std::make_exception_ptr(collective_error(what))};
  }

  // From here no transfer starts.
  void record(failure first) {
    failure_ = std::move(first);
    changed_.notify_all();
  }

  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> left_;
  std::vector<thread_wait> waits_;    // of each rank
  std::optional<failure> unwinding_;  // a rank is being unwound: no transfer starts
  std::optional<failure> failure_;
};

// What all ranks must agree on when they start an operation.
struct thread_operation {
  std::string_view kind;
  std::string_view label;
  index_t elements = 0;
  std::size_t element_size = 0;
  friend bool operator==(const thread_operation&, const thread_operation&) = default;
};

// What the ranks of a group share: its operations. Every public member function may be called from
// any rank, and takes its rank in the group; everywhere else, and in errors, ranks are the world's.
class thread_board {
 public:
  thread_board(std::shared_ptr<thread_ranks> ranks, std::vector<int> members)
      : ranks_(std::move(ranks)),
        members_(std::move(members)),
        next_(at(ranks_->count()), std::numeric_limits<std::int64_t>::max()),
        bytes_read_(members_.size(), 0) {
    for (const int member : members_) next_[at(member)] = 0;
  }

  [[nodiscard]] int size() const { return static_cast<int>(members_.size()); }
  [[nodiscard]] std::chrono::milliseconds timeout() const { return ranks_->timeout(); }

  [[nodiscard]] std::int64_t bytes_read(int rank) const {
    const auto guard = ranks_->lock();
    return bytes_read_[at(rank)];
  }

  // Publishes this rank's input to its next operation; returns the operation's number.
  std::int64_t post(int rank, const thread_operation& operation, const void* source) {
    const auto guard = ranks_->lock();
    const int member = members_[at(rank)];
    ranks_->throw_if_failed(member);
    const std::int64_t number = next_[at(member)];
    if (number == oldest_ + std::ssize(entries_)) {
      entries_.emplace_back(operation, member, members_, ranks_->count());
    }
    entry& e = entry_of(number);
    if (e.operation != operation) {
      const auto started = [](int by, const thread_operation& o) {
        return fmt::format("rank {} started {} '{}' of {} elements of {} bytes", by, o.kind,
                           o.label, o.elements, o.element_size);
      };
      ranks_->give_up(
          member,
          fmt::format("collective {} differs between ranks: {}, {}; all ranks must make "
                      "the same calls in the same order",
                      number, started(e.first_rank, e.operation), started(member, operation)));
    }
    e.sources[at(rank)] = source;
    ++next_[at(member)];
    if (std::ranges::all_of(next_, [&](std::int64_t next) { return next > number; })) {
      ranks_->notify();
    }
    return number;
  }

  // Runs the transfer if every rank has posted. Returns whether it ran. The transfer returns how
  // many bytes it has read from other ranks.
  template <class Transfer>
  bool try_transfer(int rank, std::int64_t number, const Transfer& transfer) {
    auto guard = ranks_->lock();
    if (!ranks_->poll(members_[at(rank)], {this, number, false})) return false;
    run(guard, rank, number, transfer);
    return true;
  }

  template <class Transfer>
  void await_transfer(int rank, std::int64_t number, deadline until, const Transfer& transfer) {
    auto guard = ranks_->lock();
    ranks_->await(guard, members_[at(rank)], {this, number, false}, until);
    run(guard, rank, number, transfer);
  }

  // Waits until no rank needs the input of this operation any more.
  void drain(int rank, std::int64_t number, deadline until) {
    auto guard = ranks_->lock();
    ranks_->await(guard, members_[at(rank)], {this, number, true}, until);
  }

  void settle(int rank, std::int64_t number, bool transferred) noexcept {
    auto guard = ranks_->lock();
    ranks_->settle(guard, members_[at(rank)], {this, number, true}, transferred);
  }

  // The group of one color, for a split that all ranks know to be complete.
  [[nodiscard]] std::shared_ptr<thread_board> part(std::int64_t split, int color,
                                                   std::span<const int> colors) {
    const auto guard = ranks_->lock();
    std::shared_ptr<thread_board>& group = parts_[{split, color}];
    if (group == nullptr) {
      std::vector<int> members;
      for (std::size_t rank = 0; rank < colors.size(); ++rank) {
        if (colors[rank] == color) members.push_back(members_[rank]);
      }
      group = std::make_shared<thread_board>(ranks_, std::move(members));
    }
    return group;
  }

 private:
  friend thread_wait;

  // One operation, from the first post until every rank has finished its transfer.
  struct entry {
    entry(const thread_operation& o, int rank, std::span<const int> members, int ranks)
        : label(o.label),
          operation{o.kind, label, o.elements, o.element_size},
          first_rank(rank),
          sources(members.size(), nullptr),
          finished(at(ranks), true) {
      for (const int member : members) finished[at(member)] = false;
    }
    entry(const entry&) = delete;
    entry& operator=(const entry&) = delete;

    const std::string label;  // a copy, since a failed rank frees its own
    const thread_operation operation;
    const int first_rank;
    int running = 0;
    std::vector<const void*> sources;  // by rank in the group
    std::vector<bool> finished;        // by rank; true for who is not in the group
  };

  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

  entry& entry_of(std::int64_t number) {
    return entries_[static_cast<std::size_t>(number - oldest_)];
  }

  static bool all_finished(const entry& e) {
    return std::ranges::all_of(e.finished, std::identity{});
  }

  template <class Transfer>
  void run(std::unique_lock<std::mutex>& guard, int rank, std::int64_t number,
           const Transfer& transfer) {
    entry& e = entry_of(number);  // stays until this rank has finished
    ++e.running;
    guard.unlock();
    const std::int64_t bytes = transfer(std::span<const void* const>(e.sources));
    guard.lock();
    --e.running;
    e.finished[at(members_[at(rank)])] = true;
    bytes_read_[at(rank)] += bytes;
    if (all_finished(e) || ranks_->stopped()) ranks_->notify();
    while (!entries_.empty() && all_finished(entries_.front())) {
      entries_.pop_front();
      ++oldest_;
    }
  }

  const std::shared_ptr<thread_ranks> ranks_;
  const std::vector<int> members_;
  std::deque<entry> entries_;  // the operations that are not finished, by number
  std::int64_t oldest_ = 0;    // number of the first of them
  std::vector<std::int64_t>
      next_;  // number of each rank's next operation; no end outside the group
  std::vector<std::int64_t> bytes_read_;  // by rank in the group
  std::map<std::pair<std::int64_t, int>, std::shared_ptr<thread_board>> parts_;
};

// Whether it is outside the group or inside, no input may be read once a rank is being unwound.
inline bool thread_wait::joined(int rank) const {
  const auto i = static_cast<std::size_t>(rank);
  if (number < board->oldest_) return true;
  if (to_finish) return board->entry_of(number).finished[i];
  return board->next_[i] > number && !board->ranks_->stopped_by(rank);
}
inline bool thread_wait::running() const {
  return number >= board->oldest_ && board->entry_of(number).running > 0;
}
inline std::string thread_wait::describe(int rank, std::string_view does) const {
  const thread_operation& o = board->entry_of(number).operation;
  return fmt::format("{} '{}' (collective {}): rank {} {}", o.kind, o.label, number, rank, does);
}

}  // namespace detail

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
      add_in_rank_order<From>(sources, p, static_cast<To*>(op.output) + p.local, op.into);
      bytes_read += p.count * static_cast<std::int64_t>(sizeof(From) * (sources.size() - 1));
    }
    return bytes_read;
  }

  template <class From, class To>
  static void add_in_rank_order(std::span<const void* const> sources, const piece& p, To* output,
                                reduce_into into) {
    std::array<To, block_elements> sum;  // stays in the first-level cache
    for (index_t done = 0; done < p.count;) {
      const index_t count = std::min<index_t>(p.count - done, static_cast<index_t>(block_elements));
      const auto input = [&](std::size_t rank) {
        return static_cast<const From*>(sources[rank]) + p.full + done;
      };
      const auto widen = [](From term) { return static_cast<To>(term); };
      std::transform(input(0), input(0) + count, sum.data(), widen);
      for (std::size_t rank = 1; rank < sources.size(); ++rank) {
        const From* term = input(rank);
        for (index_t i = 0; i < count; ++i) {
          To& total = sum[static_cast<std::size_t>(i)];
          total = total + widen(term[i]);
        }
      }
      To* out = output + done;
      if (into == reduce_into::add) {
        for (index_t i = 0; i < count; ++i) out[i] = out[i] + sum[static_cast<std::size_t>(i)];
      } else {
        std::copy_n(sum.data(), count, out);
      }
      done += count;
    }
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
    const auto ranks = std::make_shared<detail::thread_ranks>(ranks_, options_);
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
