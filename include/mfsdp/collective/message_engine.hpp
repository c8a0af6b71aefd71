// message_engine: all that moves for one rank, and the thread that moves it while the rank
// computes.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "mfsdp/collective/message_operation.hpp"
#include "mfsdp/collective/message_wire.hpp"
#include "mfsdp/error.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// What ranks say to each other apart from operations.
struct notice {
  enum class subject : std::int64_t { failed, left, roll_call, present };
  subject what = subject::failed;
  std::int64_t rank = 0;    // of the sender, in the world
  std::int64_t group = 0;   // of a roll call
  std::int64_t number = 0;  // how many operations of the group the sender has started
  std::array<char, 992> text{};

  void say(std::string_view message) { message.copy(text.data(), text.size() - 1); }
};

// All that moves for one rank: operations of all of its groups, notices, and the thread.
template <MessageWire Wire>
class message_engine {
 public:
  using operation = message_operation<Wire>;
  using group = message_group<Wire>;
  using handle = typename Wire::handle;

  message_engine(Wire wire, message_options options)
      : options_(std::move(options)), world_{std::move(wire)} {
    if (options_.parcel_bytes < 64 || options_.parcels_ahead < 1 ||
        options_.timeout <= std::chrono::milliseconds::zero()) {
      throw spec_error(fmt::format(
          "message_options: parcel_bytes {} is below 64, parcels_ahead {} below 1, or timeout {} "
          "ms not positive",
          options_.parcel_bytes, options_.parcels_ahead, options_.timeout.count()));
    }
    for (int rank = 0; rank < world_.wire.size(); ++rank) world_.members.push_back(rank);
    left_.assign(world_.members.size(), std::nullopt);
    groups_.push_back(&world_);
    listen();
    thread_ = std::thread([this] { progress(); });
  }
  message_engine(const message_engine&) = delete;
  message_engine& operator=(const message_engine&) = delete;

  ~message_engine() {
    leave();
    {
      const std::unique_lock lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    thread_.join();
    std::erase_if(handles_, [](handle& h) { return withdrawn(h); });
    if (!failure_) world_.wire.free();
    if (!handles_.empty()) {
      // After a failure. What is still under way keeps its memory until the process ends.
      (void)new auto(std::tuple(std::move(heard_), std::move(outgoing_), std::move(storage_),
                                std::move(operations_)));
    }
  }

  [[nodiscard]] group& world() { return world_; }
  [[nodiscard]] const message_options& options() const { return options_; }

  // ----- what operations use, with the lock

  // One message of an operation, or of the engine if `owner` is null.
  struct under_way {
    operation* owner = nullptr;
    std::size_t slot = 0;
    int part = 0;
  };

  void track(handle h, const under_way& what) {
    handles_.push_back(std::move(h));
    entries_.push_back(what);
  }

  [[nodiscard]] std::byte* take_block() {
    if (blocks_.empty()) {
      storage_.push_back(std::make_unique<block>(
          static_cast<std::size_t>(options_.parcel_bytes) / sizeof(std::max_align_t) + 1));
      return reinterpret_cast<std::byte*>(storage_.back()->data());
    }
    std::byte* memory = blocks_.back();
    blocks_.pop_back();
    return memory;
  }
  void give_block(std::byte* memory) { blocks_.push_back(memory); }

  // ----- what collectives use

  [[nodiscard]] std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }

  void add(const std::shared_ptr<operation>& op) {
    throw_if_failed();
    operations_.push_back(op);
    guarded([&] { op->begin(); });
    if (op->over()) operations_.pop_back();
    changed_.notify_all();
  }

  // Lets everything move on; whether anything did.
  bool poll() {
    if (silent_) return false;
    completed_.clear();
    guarded([&] { Wire::poll(std::span<handle>(handles_), completed_); });
    if (completed_.empty()) return false;
    std::ranges::sort(completed_, std::greater<>{});
    events_.clear();
    for (const std::size_t i : completed_) {
      events_.push_back(entries_[i]);
      drop(i);
    }
    // In the order in which they were started, as far as that is known.
    std::ranges::reverse(events_);
    for (std::size_t i = 0; i < events_.size(); ++i) {
      const under_way event = events_[i];
      if (event.owner != nullptr) {
        guarded([&] { event.owner->advance(event.slot, event.part); });
      } else {
        hear(event);
      }
    }
    operations_.remove_if([](const auto& op) { return op->over(); });
    return true;
  }

  // Waits until done() with the lock; throws after the deadline or when somebody has failed.
  template <class Done>
  void await(std::unique_lock<std::mutex>& lock, operation& op, deadline until, const Done& done) {
    ++waiting_;
    const struct scope {
      int& count;
      ~scope() { --count; }
    } leave{waiting_};
    int idle = 0;
    while (!done()) {
      throw_if_failed();
      if (poll()) {
        idle = 0;
        continue;
      }
      const auto now = std::chrono::steady_clock::now();
      if (now >= until) give_up(lock, op);
      if (returned_) missing_rank(op, now);
      lock.unlock();
      // Busy at first, since most waits are short.
      if (++idle < 1000) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
      lock.lock();
    }
  }

  [[nodiscard]] bool failed() const { return failure_.has_value(); }

  void throw_if_failed() const {
    if (!failure_) return;
    if (failure_->rank == world_.wire.rank()) throw collective_error(failure_->what);
    throw rank_failure(fmt::format("rank {} failed first: {}", failure_->rank, failure_->what));
  }

  // From here nothing starts. The first failure is the cause that all ranks report.
  void fail(const std::string& what) {
    if (failure_) return;
    failure_ = failure{world_.wire.rank(), what};
    notice n{.what = notice::subject::failed, .rank = world_.wire.rank()};
    n.say(what);
    tell_all(n);
    changed_.notify_all();
  }

  // An operation whose request is destroyed: makes its memory safe to free.
  void settle(operation& op, bool waited) noexcept {
    std::unique_lock guard(mutex_);
    if (op.over()) return;
    const bool unwinding = std::uncaught_exceptions() > 0;
    try {
      if (!failure_ && !unwinding && waited) {
        await(guard, op, std::chrono::steady_clock::now() + options_.timeout,
              [&] { return op.input_free(); });
        return;
      }
    } catch (const collective_error&) {
    }
    if (!unwinding || !managed_) fail(op.describe("gave it up before every rank had finished"));
    withdraw(guard, op);
  }

  // A rank's function has thrown; says so to the others.
  void report(const std::string& what) {
    const std::unique_lock guard(mutex_);
    fail(what);
  }
  void manage() { managed_ = true; }

  // This rank makes no more calls. Waits until nobody needs anything of it.
  void leave() noexcept {
    std::unique_lock guard(mutex_);
    if (std::exchange(leaving_, true)) return;
    if (!failure_ && std::uncaught_exceptions() > exceptions_) {
      fail("an exception has ended it");
    }
    notice n{.what = notice::subject::left, .rank = world_.wire.rank()};
    if (!failure_) tell_all(n);
    const auto all_left = [&] {
      for (std::size_t rank = 0; rank < left_.size(); ++rank) {
        if (!left_[rank] && static_cast<int>(rank) != world_.wire.rank()) return false;
      }
      return operations_.empty() && outgoing_.empty();
    };
    poll_until(guard, clock::now() + options_.timeout, [&] { return failure_ || all_left(); });
    if (!failure_ && !all_left()) {
      std::string absent;
      for (std::size_t rank = 0; rank < left_.size(); ++rank) {
        if (left_[rank] || static_cast<int>(rank) == world_.wire.rank()) continue;
        absent += fmt::format("{}{}", absent.empty() ? "" : ", ", rank);
      }
      fail(fmt::format("has returned and reached its deadline waiting for rank {} to return",
                       absent));
    }
    // Notices that are on their way get a moment to arrive.
    poll_until(guard, clock::now() + std::chrono::seconds(1), [&] { return outgoing_.empty(); });
  }

  // A group for a color; every rank of `of` calls it, after an exchange that found all of them
  // here: the wire has no deadline. The group must not outlive the engine.
  std::shared_ptr<group> split(group& of, int color, std::span<const int> ranks) {
    std::shared_ptr<group> part(new group{of.wire.split(color, ranks)},
                                [this](group* g) { forget(g); });
    for (const int r : ranks) part->members.push_back(of.members[static_cast<std::size_t>(r)]);
    const std::unique_lock guard(mutex_);
    part->id = ++splits_;
    groups_.push_back(part.get());
    return part;
  }

 private:
  using block = std::vector<std::max_align_t>;
  using clock = std::chrono::steady_clock;

  struct failure {
    int rank;
    std::string what;
  };

  static constexpr std::int64_t notice_tag = 0;
  static constexpr int hearing = -1;  // part of the entry of the notice that is being received

  // The last view of a group is gone; what its ranks still need of this one comes first.
  void forget(group* part) noexcept {
    std::unique_lock guard(mutex_);
    const auto busy = [&] {
      return std::ranges::any_of(operations_, [&](const auto& op) { return &op->of() == part; });
    };
    poll_until(guard, clock::now() + options_.timeout, [&] { return failure_ || !busy(); });
    if (!failure_ && busy()) fail("reached its deadline waiting for the ranks of a group");
    if (failure_) {
      kept_.emplace_back(part);  // operations may still name it
      return;
    }
    std::erase(groups_, part);
    part->wire.free();
    delete part;
  }

  // Lets things move until done() or the time is over. Failures are found in failure_.
  template <class Done>
  void poll_until(std::unique_lock<std::mutex>& guard, clock::time_point until, const Done& done) {
    while (!done() && clock::now() < until) {
      try {
        if (poll()) continue;
      } catch (const collective_error&) {
      }
      guard.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      guard.lock();
    }
  }

  // Calls of the wire, whose errors are failures of this rank.
  template <class Call>
  void guarded(const Call& call) {
    try {
      call();
    } catch (const collective_error& e) {
      fail(e.what());
      throw;
    }
  }

  void progress() {
    std::unique_lock guard(mutex_);
    while (!stopping_) {
      bool moved = false;
      if (waiting_ == 0) {
        try {
          moved = poll();
        } catch (const collective_error&) {  // the rank's own thread reports it
        }
      }
      if (moved) {
        guard.unlock();
        std::this_thread::yield();
        guard.lock();
        continue;
      }
      const auto pause = operations_.empty() || waiting_ > 0 ? std::chrono::microseconds(5000)
                                                             : std::chrono::microseconds(50);
      changed_.wait_for(guard, pause);
    }
  }

  void drop(std::size_t i) {
    handles_[i] = std::move(handles_.back());
    handles_.pop_back();
    entries_[i] = entries_.back();
    entries_.pop_back();
  }

  void listen() {
    track(world_.wire.receive(heard_.get(), sizeof(notice), -1, notice_tag), {nullptr, 0, hearing});
  }

  void hear(const under_way& event) {
    if (event.part != hearing) {
      std::erase_if(outgoing_, [&](const auto& n) { return n.first == event.slot; });
      return;
    }
    const notice n = *heard_;
    listen();
    switch (n.what) {
      case notice::subject::failed:
        if (!failure_) failure_ = failure{static_cast<int>(n.rank), n.text.data()};
        [[fallthrough]];
      case notice::subject::left:
        left_[static_cast<std::size_t>(n.rank)] = clock::now();
        returned_ = true;
        break;
      case notice::subject::roll_call: {
        notice answer{
            .what = notice::subject::present, .rank = world_.wire.rank(), .group = n.group};
        for (const group* g : groups_) {
          if (g->id == n.group) answer.number = g->started;
        }
        tell(static_cast<int>(n.rank), answer);
        break;
      }
      case notice::subject::present:
        present_.push_back(n);
        break;
    }
    changed_.notify_all();
  }

  void tell(int rank, const notice& n) {
    outgoing_.emplace_back(++notices_, n);
    track(world_.wire.send(&outgoing_.back().second, sizeof(notice), rank, notice_tag),
          {nullptr, notices_, 0});
  }
  void tell_all(const notice& n) {
    for (const int rank : all_ranks_but(world_.wire.size(), world_.wire.rank())) {
      try {
        tell(rank, n);
      } catch (const collective_error&) {  // that rank may be dead
      }
    }
  }

  // Who waits for a rank that has returned waits for ever. What that rank has sent before may still
  // be on its way, so this waits a little.
  void missing_rank(operation& op, clock::time_point now) {
    for (const int rank : op.awaited()) {
      const auto& left = left_[static_cast<std::size_t>(rank)];
      if (!left || now < *left + std::chrono::seconds(1)) continue;
      fail(op.describe(fmt::format("waits for rank {}, which has returned", rank)));
      throw_if_failed();
    }
  }

  // The deadline has passed: asks all ranks of the group who is there, and says who is missing.
  [[noreturn]] void give_up(std::unique_lock<std::mutex>& guard, operation& op) {
    const group& g = op.of();
    present_.clear();
    const notice call{
        .what = notice::subject::roll_call, .rank = world_.wire.rank(), .group = g.id};
    for (const int rank : g.members) {
      if (rank != world_.wire.rank()) tell(rank, call);
    }
    const auto until = clock::now() + std::min<std::chrono::milliseconds>(
                                          options_.timeout, std::chrono::milliseconds(1000));
    poll_until(guard, until, [&] { return failure_ || present_.size() + 1 >= g.members.size(); });
    throw_if_failed();
    std::string silent;
    std::string late;
    const auto list = [](std::string& to, int rank) {
      to += fmt::format("{}{}", to.empty() ? "" : ", ", rank);
    };
    for (const int rank : g.members) {
      if (rank == world_.wire.rank()) continue;
      const auto answer = std::ranges::find(present_, rank, &notice::rank);
      if (answer == present_.end()) {
        list(silent, rank);
      } else if (answer->number <= op.number()) {
        list(late, rank);
      }
    }
    std::string what = "reached its deadline waiting for rank ";
    if (!silent.empty()) {
      what += silent + ", which does not answer";
    } else if (!late.empty()) {
      what += late + ", which has not come to it";
    } else {
      for (const int rank : op.awaited()) list(late, rank);
      what += late.empty() ? std::string("to receive") : late;
    }
    fail(op.describe(what));
    throw_if_failed();
    throw collective_error(what);  // not reached
  }

  // Takes an operation's messages back. What cannot be taken back is given a moment to complete;
  // then nothing of this rank moves any more, so that nothing is written to what may be freed.
  void withdraw(std::unique_lock<std::mutex>& guard, operation& op) noexcept {
    op.stop();
    if (!withdraw_until_) withdraw_until_ = clock::now() + std::chrono::seconds(1);
    const auto pending = [&] {
      return std::ranges::any_of(entries_, [&](const under_way& e) { return e.owner == &op; });
    };
    for (std::size_t i = 0; i < entries_.size();) {
      if (entries_[i].owner == &op && withdrawn(handles_[i])) {
        drop(i);
      } else {
        ++i;
      }
    }
    poll_until(guard, *withdraw_until_, [&] { return !pending(); });
    if (pending()) silent_ = true;
  }

  static bool withdrawn(handle& h) noexcept {
    try {
      return Wire::cancel(h);
    } catch (const collective_error&) {
      return false;
    }
  }

  const message_options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
  group world_;
  std::vector<group*> groups_;
  std::vector<std::unique_ptr<group>> kept_;
  std::int64_t splits_ = 0;
  std::list<std::shared_ptr<operation>> operations_;  // that are not over
  std::vector<handle> handles_;                       // messages under way
  std::vector<under_way> entries_;                    // what each of them belongs to
  std::vector<std::size_t> completed_;
  std::vector<under_way> events_;
  std::vector<std::unique_ptr<block>> storage_;
  std::vector<std::byte*> blocks_;  // that are free
  std::unique_ptr<notice> heard_ = std::make_unique<notice>();
  std::list<std::pair<std::size_t, notice>> outgoing_;
  std::size_t notices_ = 0;
  std::vector<notice> present_;  // answers to a roll call
  std::vector<std::optional<clock::time_point>> left_;
  std::optional<failure> failure_;
  std::optional<clock::time_point> withdraw_until_;  // for all requests that an exception destroys
  int waiting_ = 0;                                  // threads that poll themselves
  bool managed_ = false;   // somebody calls report() when an exception passes
  bool returned_ = false;  // any other rank
  bool leaving_ = false;
  bool stopping_ = false;
  bool silent_ = false;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace mfsdp::inline MFSDP_ABI::detail
