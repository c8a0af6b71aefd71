// thread_world: ranks as threads of one process, the embedded engine and the reference.
//
// A collective is posted on a board that all ranks see. When every rank has posted, each rank does
// its own share of the work out of the others' memory: it fills its own unit buffer, or sums its
// own pieces. So a byte is copied once, nobody waits for a rank that has already posted, and the
// order of summation is the order of ranks.
#pragma once

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"

namespace mfsdp::inline MFSDP_ABI {

struct thread_world_options {
  // How long a rank may wait where an operation sets no deadline of its own.
  std::chrono::milliseconds timeout = std::chrono::minutes(2);
};

namespace detail {

// What the ranks of a thread_world share. Every member function may be called from any rank.
class thread_board {
 public:
  thread_board(int ranks, thread_world_options options)
      : ranks_(ranks),
        timeout_(options.timeout),
        entries_(capacity),
        next_(static_cast<std::size_t>(ranks), 0),
        left_(static_cast<std::size_t>(ranks), false) {
    for (entry& e : entries_) {
      e.sources.resize(static_cast<std::size_t>(ranks));
      e.state.resize(static_cast<std::size_t>(ranks));
    }
  }

  [[nodiscard]] int ranks() const { return ranks_; }

  // Publishes this rank's input to the next operation; returns the operation's number.
  std::int64_t post(int rank, std::string_view label, index elements, const void* source) {
    std::unique_lock lock(mutex_);
    const std::int64_t number = next_[at(rank)];
    entry& e = entries_[slot(number)];
    // The board holds a window of operations; a rank that runs ahead of it waits for the slowest.
    await(lock, rank, std::chrono::steady_clock::now() + timeout_, label, number,
          [&] {
            return !unwinding_ && (e.number == number || e.number < 0 || e.finished == ranks_);
          },
          [&](int other) { return next_[at(other)] > number - capacity; });
    if (e.number != number) {
      e = {number, label, elements, 0, 0, 0, rank, std::move(e.sources), std::move(e.state)};
      std::fill(e.state.begin(), e.state.end(), progress::absent);
    } else if (e.label != label || e.elements != elements) {
      const std::string what = fmt::format(
          "collective {} differs between ranks: rank {} started '{}' of {} elements, rank {} started "
          "'{}' of {}; all ranks must make the same calls in the same order",
          number, e.first_rank, e.label, e.elements, rank, label, elements);
      record_failure(rank, what, std::make_exception_ptr(collective_error(what)));
      throw collective_error(what);
    }
    ++next_[at(rank)];
    e.sources[at(rank)] = source;
    e.state[at(rank)] = progress::posted;
    if (++e.posted == ranks_) changed_.notify_all();
    return number;
  }

  // Runs the transfer if every rank has posted. Returns whether it ran.
  template <class Transfer>
  bool try_transfer(int rank, std::int64_t number, Transfer&& transfer) {
    std::unique_lock lock(mutex_);
    if (failure_) throw_failure(rank);
    entry& e = entries_[slot(number)];
    if (e.posted != ranks_ || unwinding_) return false;
    run(lock, rank, e, transfer);
    return true;
  }

  template <class Transfer>
  void await_transfer(int rank, std::int64_t number, std::string_view label, deadline until,
                      Transfer&& transfer) {
    std::unique_lock lock(mutex_);
    entry& e = entries_[slot(number)];
    await(lock, rank, until, label, number, [&] { return e.posted == ranks_ && !unwinding_; },
          [&](int other) { return e.state[at(other)] != progress::absent; });
    run(lock, rank, e, transfer);
  }

  // Waits until no rank needs the input of this operation any more.
  void drain(int rank, std::int64_t number, std::string_view label, deadline until) {
    std::unique_lock lock(mutex_);
    entry& e = entries_[slot(number)];
    await(lock, rank, until, label, number, [&] { return drained(e, number); },
          [&](int other) { return e.state[at(other)] == progress::finished; });
  }

  // Makes the memory behind a request safe to free, whatever state the world is in.
  void settle(int rank, std::int64_t number, std::string_view label, bool transferred) noexcept {
    std::unique_lock lock(mutex_);
    entry& e = entries_[slot(number)];
    if (drained(e, number)) return;
    if (!failure_ && (!transferred || std::uncaught_exceptions() > 0)) {
      // From here no transfer starts; the cause follows when this rank's function ends.
      unwinding_ = true;
      abandoned_ = {rank, std::string(label)};
    }
    changed_.wait_until(lock, std::chrono::steady_clock::now() + timeout_, [&] {
      return drained(e, number) || ((failure_ || unwinding_) && e.running == 0);
    });
  }

  // A rank's function has returned.
  void leave(int rank) {
    std::unique_lock lock(mutex_);
    left_[at(rank)] = true;
    if (unwinding_ && abandoned_.first == rank && !failure_) {
      const std::string what =
          fmt::format("rank {} abandoned '{}' before it was complete", rank, abandoned_.second);
      record_failure(rank, what, std::make_exception_ptr(collective_error(what)));
    }
    changed_.notify_all();
  }

  // A rank's function has thrown. The first failure is the cause that all ranks report.
  void fail(int rank, const std::string& what, std::exception_ptr cause) {
    std::unique_lock lock(mutex_);
    left_[at(rank)] = true;
    if (!failure_ || failure_->rank == rank) record_failure(rank, what, std::move(cause));
  }

  void rethrow_failure() {
    std::unique_lock lock(mutex_);
    if (failure_) std::rethrow_exception(failure_->cause);
  }

 private:
  static constexpr std::int64_t capacity = 64;

  enum class progress : char { absent, posted, finished };

  struct entry {
    std::int64_t number = -1;
    std::string_view label;
    index elements = 0;
    int posted = 0;
    int running = 0;
    int finished = 0;
    int first_rank = 0;
    std::vector<const void*> sources;
    std::vector<progress> state;  // of each rank
  };

  struct failure {
    int rank;
    std::string what;
    std::exception_ptr cause;
  };

  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  static std::size_t slot(std::int64_t number) {
    return static_cast<std::size_t>(number % capacity);
  }
  [[nodiscard]] bool drained(const entry& e, std::int64_t number) const {
    return e.number != number || e.finished == ranks_;
  }

  template <class Transfer>
  void run(std::unique_lock<std::mutex>& lock, int rank, entry& e, Transfer&& transfer) {
    ++e.running;
    lock.unlock();
    transfer(std::span<const void* const>(e.sources));
    lock.lock();
    --e.running;
    e.state[at(rank)] = progress::finished;
    if (++e.finished == ranks_ || failure_ || unwinding_) changed_.notify_all();
  }

  // Waits for `ready`. `joined(rank)` tells who has done its part, for the message and to notice a
  // rank that will never come.
  template <class Ready, class Joined>
  void await(std::unique_lock<std::mutex>& lock, int rank, deadline until, std::string_view label,
             std::int64_t number, Ready&& ready, Joined&& joined) {
    const auto absent = [&](int other) { return !joined(other) && left_[at(other)]; };
    const auto someone_left = [&] {
      for (int other = 0; other < ranks_; ++other) {
        if (absent(other)) return true;
      }
      return false;
    };
    const bool woken = changed_.wait_until(lock, until,
                                           [&] { return failure_ || ready() || someone_left(); });
    if (failure_) throw_failure(rank);
    if (ready()) return;
    std::string missing;
    for (int other = 0; other < ranks_; ++other) {
      if (woken ? absent(other) : !joined(other)) {
        missing += fmt::format("{}{}", missing.empty() ? "" : ", ", other);
      }
    }
    const std::string what =
        woken ? fmt::format("'{}' (collective {}): rank {} waits for rank {}, which has returned",
                            label, number, rank, missing)
              : fmt::format("'{}' (collective {}): rank {} reached its deadline waiting for rank {}",
                            label, number, rank, missing);
    record_failure(rank, what, std::make_exception_ptr(collective_error(what)));
    throw collective_error(what);
  }

  void record_failure(int rank, const std::string& what, std::exception_ptr cause) {
    failure_ = std::make_unique<failure>(failure{rank, what, std::move(cause)});
    changed_.notify_all();
  }

  [[noreturn]] void throw_failure(int rank) const {
    if (failure_->rank == rank) throw collective_error(failure_->what);
    throw rank_failure(fmt::format("rank {} failed first: {}", failure_->rank, failure_->what));
  }

  const int ranks_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<entry> entries_;       // a window of operations, by number
  std::vector<std::int64_t> next_;   // number of each rank's next operation
  std::vector<bool> left_;
  bool unwinding_ = false;           // a rank is being unwound: no transfer may start
  std::pair<int, std::string> abandoned_;
  std::unique_ptr<failure> failure_;
};

}  // namespace detail

// One rank's view of a thread_world. Copies are the same rank; use it from that rank's thread only.
class thread_collective {
 public:
  class request {
    [[nodiscard]] auto work() const {
      return [this](std::span<const void* const> sources) { transfer_(*this, sources); };
    }

   public:
    request() = default;
    request(request&& other) noexcept { swap(other); }
    request& operator=(request&& other) noexcept {
      request(std::move(other)).swap(*this);
      return *this;
    }
    ~request() {
      if (board_ != nullptr) board_->settle(rank_, number_, label_, done_);
    }

    bool test() {
      if (!done_) done_ = board_->try_transfer(rank_, number_, work());
      return done_;
    }
    void wait(deadline until) {
      if (done_) return;
      board_->await_transfer(rank_, number_, label_, until, work());
      done_ = true;
    }
    void drain(deadline until) {
      if (board_ == nullptr) return;
      wait(until);
      board_->drain(rank_, number_, label_, until);
      board_ = nullptr;
    }

   private:
    friend class thread_collective;
    // Reads the ranks' inputs and writes this rank's output.
    using transfer = void (*)(const request&, std::span<const void* const> sources);

    void swap(request& other) noexcept {
      std::swap(board_, other.board_);
      std::swap(rank_, other.rank_);
      std::swap(number_, other.number_);
      std::swap(label_, other.label_);
      std::swap(done_, other.done_);
      std::swap(transfer_, other.transfer_);
      std::swap(output_, other.output_);
      std::swap(pieces_, other.pieces_);
      std::swap(into_, other.into_);
      std::swap(bytes_read_, other.bytes_read_);
    }

    detail::thread_board* board_ = nullptr;
    int rank_ = 0;
    std::int64_t number_ = 0;
    std::string_view label_;
    bool done_ = true;
    transfer transfer_ = nullptr;
    void* output_ = nullptr;
    std::span<const piece> pieces_;
    reduce_into into_ = reduce_into::write;
    std::int64_t* bytes_read_ = nullptr;
  };

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return board_->ranks(); }

  // Bytes that this rank has copied or summed out of other ranks' memory so far.
  [[nodiscard]] std::int64_t bytes_read() const { return *bytes_read_; }

  template <class T>
  request start_all_gather(std::span<const T> shard, std::span<T> full,
                           std::span<const piece> pieces, std::string_view label) {
    return start(shard.data(), full.data(), pieces, reduce_into::write, label, &gather<T>);
  }

  template <class T>
  request start_reduce_scatter(std::span<const T> full, std::span<T> shard,
                               std::span<const piece> pieces, reduce_into into,
                               std::string_view label) {
    return start(full.data(), shard.data(), pieces, into, label, &reduce<T, false>);
  }

  // Every rank sums everything: (size - 1) times the bytes of the pieces are read.
  template <class T>
  request start_all_reduce(std::span<const T> full, std::span<T> local,
                           std::span<const piece> pieces, reduce_into into,
                           std::string_view label) {
    return start(full.data(), local.data(), pieces, into, label, &reduce<T, true>);
  }

 private:
  friend class thread_world;
  thread_collective(detail::thread_board* board, int rank)
      : board_(board), rank_(rank), bytes_read_(std::make_shared<std::int64_t>(0)) {}

  request start(const void* input, void* output, std::span<const piece> pieces, reduce_into into,
                std::string_view label, request::transfer transfer) {
    index elements = 0;
    for (const piece& p : pieces) elements += p.count;
    request started;
    started.number_ = board_->post(rank_, label, elements, input);
    started.board_ = board_;
    started.label_ = label;
    started.rank_ = rank_;
    started.done_ = false;
    started.transfer_ = transfer;
    started.output_ = output;
    started.pieces_ = pieces;
    started.into_ = into;
    started.bytes_read_ = bytes_read_.get();
    return started;
  }

  template <class T>
  static void gather(const request& r, std::span<const void* const> sources) {
    static_assert(std::is_trivially_copyable_v<T>);
    T* full = static_cast<T*>(r.output_);
    for (const piece& p : r.pieces_) {
      const T* shard = static_cast<const T*>(sources[static_cast<std::size_t>(p.rank)]);
      const std::size_t bytes = static_cast<std::size_t>(p.count) * sizeof(T);
      std::memcpy(full + p.full, shard + p.local, bytes);
      if (p.rank != r.rank_) *r.bytes_read_ += static_cast<std::int64_t>(bytes);
    }
  }

  template <class T, bool Everywhere>
  static void reduce(const request& r, std::span<const void* const> sources) {
    for (const piece& p : r.pieces_) {
      if (!Everywhere && p.rank != r.rank_) continue;
      add_in_rank_order(sources, p, static_cast<T*>(r.output_) + p.local, r.into_);
      *r.bytes_read_ += p.count * static_cast<std::int64_t>(sizeof(T) * (sources.size() - 1));
    }
  }

  template <class T>
  static void add_in_rank_order(std::span<const void* const> sources, const piece& p, T* output,
                                reduce_into into) {
    std::array<T, block_elements> sum;  // stays in the first-level cache
    for (index done = 0; done < p.count;) {
      const index count = std::min<index>(p.count - done, static_cast<index>(block_elements));
      const auto input = [&](std::size_t rank) {
        return static_cast<const T*>(sources[rank]) + p.full + done;
      };
      std::copy_n(input(0), count, sum.data());
      for (std::size_t rank = 1; rank < sources.size(); ++rank) {
        const T* term = input(rank);
        for (index i = 0; i < count; ++i) sum[static_cast<std::size_t>(i)] += term[i];
      }
      T* out = output + done;
      if (into == reduce_into::add) {
        for (index i = 0; i < count; ++i) out[i] += sum[static_cast<std::size_t>(i)];
      } else {
        std::copy_n(sum.data(), count, out);
      }
      done += count;
    }
  }

  detail::thread_board* board_;
  int rank_;
  std::shared_ptr<std::int64_t> bytes_read_;
};

// Runs one function on every rank.
class thread_world {
 public:
  // Errors: spec_error if ranks < 1.
  explicit thread_world(int ranks, thread_world_options options = {})
      : ranks_(ranks), options_(options) {
    if (ranks < 1) throw spec_error(fmt::format("thread_world needs at least one rank, not {}", ranks));
  }

  [[nodiscard]] int size() const { return ranks_; }

  // Calls body(thread_collective) on every rank, each in a thread of its own, and returns when all
  // have ended. If a rank throws, the others throw rank_failure out of their next or current
  // collective, and run rethrows the first exception.
  template <class Body>
  void run(Body&& body) {
    detail::thread_board board(ranks_, options_);
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(ranks_));
    for (int rank = 0; rank < ranks_; ++rank) {
      threads.emplace_back([&board, &body, rank] {
        try {
          body(thread_collective(&board, rank));
          board.leave(rank);
        } catch (const std::exception& e) {
          board.fail(rank, e.what(), std::current_exception());
        } catch (...) {
          board.fail(rank, "an exception of unknown type", std::current_exception());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    board.rethrow_failure();
  }

 private:
  int ranks_;
  thread_world_options options_;
};

}  // namespace mfsdp::inline MFSDP_ABI
