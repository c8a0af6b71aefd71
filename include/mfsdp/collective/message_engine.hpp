// message_engine: all that moves for one rank, and the thread that moves it while the rank
// computes.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
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
class message_engine : public std::enable_shared_from_this<message_engine<Wire>> {
 public:
  using operation = message_operation<Wire>;
  using group = message_group<Wire>;
  using handle = typename Wire::handle;

  message_engine(Wire wire, message_options options)
      : options_(std::move(options)), world_{std::move(wire)} {
    if (options_.parcel_bytes < 64 || options_.parcel_bytes > (index_t{1} << 30) ||
        options_.parcels_ahead < 1 || options_.timeout <= std::chrono::milliseconds::zero()) {
      throw spec_error(fmt::format(
          "message_options: parcel_bytes {} is not in 64 to 2^30, parcels_ahead {} below 1, or "
          "timeout {} ms not positive",
          options_.parcel_bytes, options_.parcels_ahead, options_.timeout.count()));
    }
    for (int rank = 0; rank < world_.wire.size(); ++rank) world_.members.push_back(rank);
    left_.assign(world_.members.size(), false);
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

  // What a message belongs to: an operation, or a notice if `owner` is null.
  struct purpose {
    operation* owner = nullptr;
    std::size_t slot = 0;
    int part = 0;
  };

  // Ranks are those of the group.
  void send(group& g, const void* from, index_t bytes, int to, std::int64_t tag,
            const purpose& what) {
    handles_.push_back(g.wire.send(from, static_cast<std::size_t>(bytes), to, tag));
    entries_.push_back({what, g.world_rank(to), -1});
  }
  void receive(group& g, void* to, index_t bytes, int from, std::int64_t tag, const purpose& what) {
    handles_.push_back(g.wire.receive(to, static_cast<std::size_t>(bytes), from, tag));
    entries_.push_back({what, from < 0 ? from : g.world_rank(from), bytes});
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
    std::ranges::sort(completed_, std::greater<>{}, &message_completion::position);
    events_.clear();
    for (const message_completion& c : completed_) {
      events_.push_back({entries_[c.position], c});
      drop(c.position);
    }
    for (std::size_t i = 0; i < events_.size(); ++i) {
      const auto [message, completion] = events_[i];
      require_whole(message, completion);
      const purpose& what = message.what;
      if (what.owner != nullptr) {
        guarded([&what] { what.owner->advance(what.slot, what.part); });
      } else {
        hear(what);
      }
    }
    operations_.remove_if([](const auto& op) { return op->over(); });
    return true;
  }

  // Waits until done() with the lock; throws after the deadline or when somebody has failed. After
  // a failure nothing counts as complete, since what came last may have been taken from freed
  // memory.
  template <class Done>
  void await(std::unique_lock<std::mutex>& lock, operation& op, deadline until, const Done& done) {
    ++waiting_;
    const struct scope {
      message_engine& engine;
      ~scope() {
        if (--engine.waiting_ == 0) engine.changed_.notify_all();  // the thread takes over
      }
    } leave{*this};
    const auto patience = clock::now() + std::chrono::seconds(1);
    bool asked = false;
    for (int idle = 0;;) {
      throw_if_failed();
      if (done()) return;
      if (poll()) {
        idle = 0;
        continue;
      }
      const auto now = clock::now();
      if (now >= until) give_up(lock, op);
      if (returned_ && !asked && now >= patience) {
        asked = true;
        require_present(lock, op);
        continue;
      }
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

  void throw_if_failed() {
    if (given_up_ && std::uncaught_exceptions() <= exceptions_) fail(*given_up_);
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
    // What unwinds this rank says more, if it gets as far as report().
    const std::string what = op.describe("gave it up before every rank had finished");
    if (!unwinding || !managed_) {
      fail(what);
    } else if (!given_up_) {
      given_up_ = what;
    }
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
    if (std::uncaught_exceptions() > exceptions_) {
      fail("an exception has ended it");
    } else if (given_up_) {
      fail(*given_up_);
    }
    if (!failure_) tell_all({.what = notice::subject::left, .rank = world_.wire.rank()});
    const auto others = all_ranks_but(world_.wire.size(), world_.wire.rank());
    const auto all_left = [&] {
      return std::ranges::all_of(others,
                                 [&](int rank) { return left_[static_cast<std::size_t>(rank)]; });
    };
    const auto over = [&] {
      return failure_ || (all_left() && operations_.empty() && outgoing_.empty());
    };
    // Others may work for as long as they like, as long as they are there.
    while (!over()) {
      poll_until(guard, clock::now() + options_.timeout, over);
      if (over()) break;
      if (all_left()) fail("has returned and has messages left that nobody takes");
      call_roll(guard, world_);
      std::string silent;
      for (const int rank : others) {
        if (!left_[static_cast<std::size_t>(rank)] && !answer_of(rank)) append(silent, rank);
      }
      if (!failure_ && !silent.empty()) {
        fail(fmt::format("has returned and waits for rank {}, which does not answer", silent));
      }
    }
    // Notices that are on their way get a moment to arrive.
    poll_until(guard, clock::now() + std::chrono::seconds(1), [&] { return outgoing_.empty(); });
  }

  // A group for a color, after an exchange of colors and counts of splits on `of`; every rank of it
  // calls this. `id` is equal on the ranks of the group, and larger than those of their others.
  std::shared_ptr<group> split(group& of, int color, std::span<const int> ranks, std::int64_t id,
                               deadline until) {
    auto guard = lock();
    throw_if_failed();
    auto splitting = of.wire.begin_split(color, ranks);
    std::optional<Wire> wire;
    poll_until(guard, until, [&] {
      if (!failure_) wire = splitting.take();
      return failure_ || wire;
    });
    if (!failure_ && !wire) fail("split: reached its deadline waiting for the ranks of the group");
    throw_if_failed();
    std::shared_ptr<group> part(new group{std::move(*wire)},
                                [self = this->shared_from_this()](group* g) { self->forget(g); });
    for (const int r : ranks) part->members.push_back(of.world_rank(r));
    part->id = id;
    splits_ = id;
    groups_.push_back(part.get());
    return part;
  }
  [[nodiscard]] std::int64_t splits() {
    const auto guard = lock();
    return splits_;
  }

 private:
  using block = std::vector<std::max_align_t>;
  using clock = std::chrono::steady_clock;

  struct failure {
    int rank;
    std::string what;
  };

  struct entry {
    purpose what;
    int peer = 0;            // in the world
    std::int64_t bytes = 0;  // of a receive; -1 of a send
  };

  static constexpr std::int64_t notice_tag = 0;
  static constexpr int hearing = -1;  // part of the entry of the notice that is being received

  // The last view of a group is gone; what its ranks still need of this one comes first.
  void forget(group* part) noexcept {
    std::unique_lock guard(mutex_);
    const auto busy = [&] {
      return std::ranges::any_of(operations_, [&](const auto& op) { return &op->of() == part; });
    };
    const bool unwinding = std::uncaught_exceptions() > exceptions_;
    if (!unwinding && !given_up_) {
      poll_until(guard, clock::now() + options_.timeout, [&] { return failure_ || !busy(); });
      if (!failure_ && busy()) fail("reached its deadline waiting for the ranks of a group");
    }
    if (failure_ || busy()) {
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
    receive(world_, heard_.get(), sizeof(notice), -1, notice_tag, {nullptr, 0, hearing});
  }

  void hear(const purpose& event) {
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
        left_[static_cast<std::size_t>(n.rank)] = true;
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

  // A rank that cannot be told may be dead, which others find out.
  void tell(int rank, const notice& n) noexcept {
    outgoing_.emplace_back(++notices_, n);
    try {
      send(world_, &outgoing_.back().second, sizeof(notice), rank, notice_tag,
           {nullptr, notices_, 0});
    } catch (const collective_error&) {
      outgoing_.pop_back();
    }
  }
  void tell_all(const notice& n) {
    for (const int rank : all_ranks_but(world_.wire.size(), world_.wire.rank())) tell(rank, n);
  }

  // Ranks that make different calls may get messages that are meant for another.
  void require_whole(const entry& e, const message_completion& c) {
    if (!c.failed && (e.bytes < 0 || c.bytes == e.bytes)) return;
    const std::string what =
        e.bytes < 0 ? fmt::format("could not send to rank {}", e.peer)
                    : fmt::format(
                          "got {} bytes from rank {} where {} were due; all ranks must "
                          "make the same calls in the same order",
                          c.failed ? "other" : std::to_string(c.bytes), e.peer, e.bytes);
    fail(e.what.owner != nullptr ? e.what.owner->describe(what) : what);
    throw_if_failed();
  }

  // Asks all ranks of the world whether they are there, and how far they are in a group; present_
  // gets the answers of a second.
  void call_roll(std::unique_lock<std::mutex>& guard, const group& g) {
    present_.clear();
    tell_all({.what = notice::subject::roll_call, .rank = world_.wire.rank(), .group = g.id});
    poll_until(guard, clock::now() + std::chrono::seconds(1),
               [&] { return failure_ || present_.size() + 1 >= world_.members.size(); });
  }
  [[nodiscard]] const notice* answer_of(int rank) const {
    const auto answer = std::ranges::find(present_, rank, &notice::rank);
    return answer == present_.end() ? nullptr : &*answer;
  }

  static void append(std::string& list, int rank) {
    list += fmt::format("{}{}", list.empty() ? "" : ", ", rank);
  }

  // Ranks whose messages an operation waits for, or that have not taken its own.
  [[nodiscard]] std::vector<int> awaited(const operation& op, bool sends) const {
    std::vector<int> ranks;
    for (const entry& e : entries_) {
      if (e.what.owner == &op && sends == (e.bytes < 0)) ranks.push_back(e.peer);
    }
    std::ranges::sort(ranks);
    ranks.erase(std::ranges::unique(ranks).begin(), ranks.end());
    return ranks;
  }

  // Who waits for a rank that has returned without having come to the operation waits for ever.
  void require_present(std::unique_lock<std::mutex>& guard, operation& op) {
    call_roll(guard, op.of());
    throw_if_failed();
    for (const int rank : awaited(op, false)) {
      const notice* answer = answer_of(rank);
      if (!left_[static_cast<std::size_t>(rank)] || answer == nullptr ||
          answer->number > op.number()) {
        continue;
      }
      fail(op.describe(fmt::format("waits for rank {}, which has returned", rank)));
      throw_if_failed();
    }
  }

  // The deadline has passed; says who is missing.
  [[noreturn]] void give_up(std::unique_lock<std::mutex>& guard, operation& op) {
    call_roll(guard, op.of());
    throw_if_failed();
    std::string silent;  // of the world, since a rank that is late may itself wait for one of them
    std::string late;
    for (const int rank : all_ranks_but(world_.wire.size(), world_.wire.rank())) {
      const notice* answer = answer_of(rank);
      const bool member = std::ranges::find(op.of().members, rank) != op.of().members.end();
      if (answer == nullptr) {
        if (member || !left_[static_cast<std::size_t>(rank)]) append(silent, rank);
      } else if (member && answer->number <= op.number()) {
        append(late, rank);
      }
    }
    std::string what = "reached its deadline waiting for rank ";
    if (!silent.empty()) {
      what += silent + ", which does not answer";
    } else if (!late.empty()) {
      what += late + ", which has not come to it";
    } else {
      std::vector<int> ranks = awaited(op, false);
      const bool sends = ranks.empty();
      if (sends) ranks = awaited(op, true);
      std::string slow;
      for (const int rank : ranks) append(slow, rank);
      what += slow + (sends ? " to receive" : " to send");
    }
    fail(op.describe(what));
    throw collective_error(failure_->what);
  }

  // Takes an operation's messages back. What cannot be taken back is given a moment to complete;
  // then nothing of this process moves any more, so that nothing is written to what may be freed.
  void withdraw(std::unique_lock<std::mutex>& guard, operation& op) noexcept {
    op.stop();
    if (!withdraw_until_) withdraw_until_ = clock::now() + std::chrono::seconds(1);
    const auto pending = [&] {
      return std::ranges::any_of(entries_, [&](const entry& e) { return e.what.owner == &op; });
    };
    for (std::size_t i = 0; i < entries_.size();) {
      if (entries_[i].what.owner == &op && withdrawn(handles_[i])) {
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

  // Once set, for the whole process: progress is one thing for all that its threads have started.
  inline static std::atomic<bool> silent_ = false;

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
  std::vector<entry> entries_;                        // what each of them belongs to
  std::vector<message_completion> completed_;
  std::vector<std::pair<entry, message_completion>> events_;
  std::vector<std::unique_ptr<block>> storage_;
  std::vector<std::byte*> blocks_;  // that are free
  std::unique_ptr<notice> heard_ = std::make_unique<notice>();
  std::list<std::pair<std::size_t, notice>> outgoing_;
  std::size_t notices_ = 0;
  std::vector<notice> present_;  // answers to a roll call
  std::vector<bool> left_;
  std::optional<failure> failure_;
  std::optional<std::string> given_up_;              // while an exception passed that may be caught
  std::optional<clock::time_point> withdraw_until_;  // for all requests that an exception destroys
  int waiting_ = 0;                                  // threads that poll themselves
  bool managed_ = false;   // somebody calls report() when an exception passes
  bool returned_ = false;  // any other rank
  bool leaving_ = false;
  bool stopping_ = false;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace mfsdp::inline MFSDP_ABI::detail
