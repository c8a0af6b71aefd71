// thread_world: ranks as threads of one process, the embedded engine and the reference.
//
// A collective is posted on a board that all ranks see. When every rank has posted, each rank does
// its own share of the work out of the others' memory: it fills its own unit buffer, or sums its
// own pieces. So a byte is copied once, nobody waits for a rank that has already posted, and the
// order of summation is the order of ranks.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
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

// What all ranks must agree on when they start an operation.
struct thread_operation {
  std::string_view kind;
  std::string_view label;
  index_t elements = 0;
  std::size_t element_size = 0;
  friend bool operator==(const thread_operation&, const thread_operation&) = default;
};

// What the ranks of a thread_world share. Every member function may be called from any rank.
class thread_board {
 public:
  thread_board(int ranks, thread_world_options options)
      : ranks_(ranks),
        timeout_(options.timeout),
        next_(at(ranks), 0),
        left_(at(ranks), false),
        waits_(at(ranks)),
        bytes_read_(at(ranks), 0) {}

  [[nodiscard]] int ranks() const { return ranks_; }

  [[nodiscard]] std::int64_t bytes_read(int rank) {
    std::unique_lock lock(mutex_);
    return bytes_read_[at(rank)];
  }

  // Publishes this rank's input to its next operation; returns the operation's number.
  std::int64_t post(int rank, const thread_operation& operation, const void* source) {
    std::unique_lock lock(mutex_);
    if (failure_) throw_failure(rank);
    const std::int64_t number = next_[at(rank)];
    if (number == oldest_ + std::ssize(entries_)) entries_.emplace_back(operation, rank, ranks_);
    entry& e = entry_of(number);
    if (e.operation != operation) {
      const auto started = [](int by, const thread_operation& o) {
        return fmt::format("rank {} started {} '{}' of {} elements of {} bytes", by, o.kind,
                           o.label, o.elements, o.element_size);
      };
      give_up(rank,
              fmt::format("collective {} differs between ranks: {}, {}; all ranks must make "
                          "the same calls in the same order",
                          number, started(e.first_rank, e.operation), started(rank, operation)));
    }
    e.sources[at(rank)] = source;
    ++next_[at(rank)];
    if (all_posted(number)) changed_.notify_all();
    return number;
  }

  // Runs the transfer if every rank has posted. Returns whether it ran. The transfer returns how
  // many bytes it has read from other ranks.
  template <class Transfer>
  bool try_transfer(int rank, std::int64_t number, const Transfer& transfer) {
    std::unique_lock lock(mutex_);
    if (!poll(rank, number, [&](int other) { return ready(number, other); })) return false;
    run(lock, rank, number, transfer);
    return true;
  }

  template <class Transfer>
  void await_transfer(int rank, std::int64_t number, deadline until, const Transfer& transfer) {
    std::unique_lock lock(mutex_);
    await(lock, rank, number, until, [&](int other) { return ready(number, other); });
    run(lock, rank, number, transfer);
  }

  // Waits until no rank needs the input of this operation any more.
  void drain(int rank, std::int64_t number, deadline until) {
    std::unique_lock lock(mutex_);
    if (drained(number)) return;  // what is over is over, even if a rank has failed since
    await(lock, rank, number, until, [&](int other) { return finished(number, other); });
  }

  // Makes the memory behind a request safe to free, whatever state the world is in.
  void settle(int rank, std::int64_t number, bool transferred) noexcept {
    std::unique_lock lock(mutex_);
    if (drained(number)) return;
    const bool unwinding = std::uncaught_exceptions() > 0;
    if (!failure_ && !unwinding_ && (unwinding || !transferred)) {
      unwinding_ =
          failure_of(rank, describe(number, rank, "gave it up before every rank had finished"));
      // The exception that unwinds this rank says more; it follows in fail().
      if (!unwinding) record(*unwinding_);
      changed_.notify_all();
    }
    const auto safe = [&] {
      return drained(number) || ((failure_ || unwinding_) && entry_of(number).running == 0);
    };
    if (changed_.wait_until(lock, std::chrono::steady_clock::now() + timeout_, safe)) return;
    const auto done = [&](int other) { return finished(number, other); };
    if (!failure_) record(failure_of(rank, overdue(number, rank, done)));
    changed_.wait(lock, safe);
  }

  // A rank's function has returned.
  void leave(int rank) {
    std::unique_lock lock(mutex_);
    left_[at(rank)] = true;
    if (!failure_ && unwound(rank)) record(*unwinding_);
    // Who waits for this rank will see that it has left; the others may be stuck among themselves.
    const bool missed = std::ranges::any_of(
        waits_, [&](const waiting& w) { return w.joined != nullptr && !(*w.joined)(rank); });
    if (!failure_ && !missed && standoff()) record(failure_of(rank, describe_standoff()));
    changed_.notify_all();
  }

  // A rank's function has thrown. The first failure is the cause that all ranks report.
  void fail(int rank, const std::string& what, std::exception_ptr cause) {
    std::unique_lock lock(mutex_);
    left_[at(rank)] = true;
    if (!failure_ || failure_->rank == rank) record({rank, what, std::move(cause)});
  }

  void rethrow_failure() {
    std::unique_lock lock(mutex_);
    if (failure_) std::rethrow_exception(failure_->cause);
  }

 private:
  // One operation, from the first post until every rank has finished its transfer.
  struct entry {
    entry(const thread_operation& o, int rank, int ranks)
        : label(o.label),
          operation{o.kind, label, o.elements, o.element_size},
          first_rank(rank),
          sources(at(ranks), nullptr),
          finished(at(ranks), false) {}
    entry(const entry&) = delete;
    entry& operator=(const entry&) = delete;

    const std::string label;  // a copy, since a failed rank frees its own
    const thread_operation operation;
    const int first_rank;
    int running = 0;
    std::vector<const void*> sources;
    std::vector<bool> finished;
  };

  struct failure {
    int rank;
    std::string what;
    std::exception_ptr cause;
  };

  // What a blocked rank waits for.
  struct waiting {
    std::int64_t number = 0;
    const std::function<bool(int)>* joined = nullptr;
  };

  struct wait_scope {
    wait_scope(waiting& slot, const waiting& what) : slot_(slot) { slot_ = what; }
    ~wait_scope() { slot_ = {}; }
    wait_scope(const wait_scope&) = delete;
    wait_scope& operator=(const wait_scope&) = delete;
    waiting& slot_;
  };

  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

  entry& entry_of(std::int64_t number) {
    return entries_[static_cast<std::size_t>(number - oldest_)];
  }

  [[nodiscard]] bool unwound(int rank) const { return unwinding_ && unwinding_->rank == rank; }

  // Whether a rank's input may be read.
  [[nodiscard]] bool ready(std::int64_t number, int rank) const {
    return next_[at(rank)] > number && !unwound(rank);
  }
  [[nodiscard]] bool finished(std::int64_t number, int rank) {
    return number < oldest_ || entry_of(number).finished[at(rank)];
  }
  [[nodiscard]] bool all_posted(std::int64_t number) const {
    return std::ranges::all_of(next_, [&](std::int64_t next) { return next > number; });
  }
  [[nodiscard]] bool drained(std::int64_t number) {
    return number < oldest_ || all_finished(entry_of(number));
  }
  static bool all_finished(const entry& e) {
    return std::ranges::all_of(e.finished, std::identity{});
  }

  template <class Transfer>
  void run(std::unique_lock<std::mutex>& lock, int rank, std::int64_t number,
           const Transfer& transfer) {
    entry& e = entry_of(number);  // stays until this rank has finished
    ++e.running;
    lock.unlock();
    const std::int64_t bytes = transfer(std::span<const void* const>(e.sources));
    lock.lock();
    --e.running;
    e.finished[at(rank)] = true;
    bytes_read_[at(rank)] += bytes;
    if (all_finished(e) || failure_ || unwinding_) changed_.notify_all();
    while (!entries_.empty() && all_finished(entries_.front())) {
      entries_.pop_front();
      ++oldest_;
    }
  }

  // Whether every rank has joined; throws when that will never be.
  template <class Joined>
  bool poll(int rank, std::int64_t number, const Joined& joined) {
    if (!failure_ && unwound(rank)) record(*unwinding_);
    if (failure_) throw_failure(rank);
    bool all = true;
    for (int other = 0; other < ranks_; ++other) {
      if (joined(other)) continue;
      if (left_[at(other)]) {
        give_up(rank, describe(number, rank,
                               fmt::format("waits for rank {}, which has returned", other)));
      }
      all = false;
    }
    return all;
  }

  template <class Joined>
  void await(std::unique_lock<std::mutex>& lock, int rank, std::int64_t number, deadline until,
             const Joined& joined) {
    if (poll(rank, number, joined)) return;
    const std::function<bool(int)> joined_by = joined;
    const wait_scope waits(waits_[at(rank)], {number, &joined_by});
    if (standoff()) give_up(rank, describe_standoff());
    // What is over is over, even if a rank has failed since.
    const auto over = [&] { return number < oldest_ || poll(rank, number, joined); };
    if (!changed_.wait_until(lock, until, over)) give_up(rank, overdue(number, rank, joined));
  }

  // Whether every rank waits for another or has returned, so that no deadline need be waited for.
  [[nodiscard]] bool standoff() const {
    for (int rank = 0; rank < ranks_; ++rank) {
      if (!left_[at(rank)] && !misses_any(rank)) return false;
    }
    return std::ranges::any_of(waits_, [](const waiting& w) { return w.joined != nullptr; });
  }

  [[nodiscard]] bool misses_any(int rank) const {
    const auto* joined = waits_[at(rank)].joined;
    if (joined == nullptr) return false;
    for (int other = 0; other < ranks_; ++other) {
      if (!(*joined)(other)) return true;
    }
    return false;
  }

  // Ranks that a waiting rank misses.
  [[nodiscard]] std::string missing(int rank) const {
    std::string list;
    for (int other = 0; other < ranks_; ++other) {
      if ((*waits_[at(rank)].joined)(other)) continue;
      list += fmt::format("{}{}", list.empty() ? "" : ", ", other);
    }
    return list;
  }

  [[nodiscard]] std::string describe_standoff() {
    std::string what = "no rank can go on, since they made different calls:";
    for (int rank = 0; rank < ranks_; ++rank) {
      if (waits_[at(rank)].joined == nullptr) {
        what += fmt::format(" rank {} has returned;", rank);
      } else {
        what += " " + describe(waits_[at(rank)].number, rank, "waits for " + missing(rank)) + ";";
      }
    }
    return what + " all ranks must make the same calls in the same order";
  }

  [[nodiscard]] std::string describe(std::int64_t number, int rank, std::string_view what) {
    const thread_operation& o = entry_of(number).operation;
    return fmt::format("{} '{}' (collective {}): rank {} {}", o.kind, o.label, number, rank, what);
  }

  template <class Joined>
  [[nodiscard]] std::string overdue(std::int64_t number, int rank, const Joined& joined) {
    std::string missing;
    for (int other = 0; other < ranks_; ++other) {
      if (!joined(other)) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", other);
    }
    return describe(number, rank, "reached its deadline waiting for rank " + missing);
  }

  static failure failure_of(int rank, const std::string& what) {
    return {rank, what, std::make_exception_ptr(collective_error(what))};
  }

  // From here no transfer starts.
  void record(failure first) {
    failure_ = std::move(first);
    changed_.notify_all();
  }

  [[noreturn]] void give_up(int rank, const std::string& what) {
    record(failure_of(rank, what));
    throw collective_error(what);
  }

  [[noreturn]] void throw_failure(int rank) const {
    if (failure_->rank == rank) throw collective_error(failure_->what);
    throw rank_failure(fmt::format("rank {} failed first: {}", failure_->rank, failure_->what));
  }

  const int ranks_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<entry> entries_;       // the operations that are not finished, by number
  std::int64_t oldest_ = 0;         // number of the first of them
  std::vector<std::int64_t> next_;  // number of each rank's next operation
  std::vector<bool> left_;
  std::vector<waiting> waits_;  // of each rank
  std::vector<std::int64_t> bytes_read_;
  std::optional<failure> unwinding_;  // a rank is being unwound: no transfer starts
  std::optional<failure> failure_;
};

}  // namespace detail

// One rank's view of a thread_world. Copies are the same rank; use it from that rank's thread only.
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
  [[nodiscard]] int size() const { return board_->ranks(); }

  // Bytes that this rank has copied or summed out of other ranks' memory so far.
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
    const auto board = std::make_shared<detail::thread_board>(ranks_, options_);
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(ranks_));
    for (int rank = 0; rank < ranks_; ++rank) {
      // A thread that cannot be started is a rank that has failed.
      try {
        threads.emplace_back([&board, &body, rank] { run_rank(board, body, rank); });
      } catch (const std::system_error& e) {
        board->fail(rank, e.what(), std::current_exception());
        break;
      }
    }
    for (std::thread& thread : threads) thread.join();
    board->rethrow_failure();
  }

 private:
  template <class Body>
  static void run_rank(const std::shared_ptr<detail::thread_board>& board, Body& body, int rank) {
    try {
      body(thread_collective(board, rank));
      board->leave(rank);
    } catch (const std::exception& e) {
      board->fail(rank, e.what(), std::current_exception());
    } catch (...) {
      board->fail(rank, "an exception of unknown type", std::current_exception());
    }
  }

  int ranks_;
  thread_world_options options_;
};

}  // namespace mfsdp::inline MFSDP_ABI
