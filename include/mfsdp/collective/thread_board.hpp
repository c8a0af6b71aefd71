// What ranks as threads share: the operations of each group on a board of its own, and, over all
// groups, who has failed.
#pragma once

#include <algorithm>
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
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

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
  // `timeout`: how long the destructor of a request may wait.
  thread_ranks(int count, std::chrono::milliseconds timeout)
      : timeout_(timeout), left_(at(count), false), waits_(at(count)) {}

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

  // Whether inputs may go away, so that no transfer may start; on account of the rank that is being
  // unwound, and after a failure of all.
  [[nodiscard]] bool stopped() const { return failure_ || unwinding_; }
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
        what += fmt::format(" {};", wait.describe(rank, "waits for " + missing(wait)));
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

  // Makes the memory behind a request safe to free.
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

// A rank that is being unwound keeps transfers of all groups from starting, as others may free
// their inputs without waiting.
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

}  // namespace mfsdp::inline MFSDP_ABI::detail
