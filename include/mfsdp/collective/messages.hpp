// messages: a Collective out of messages between ranks, for engines that can send and receive.
//
// Each owner's pieces travel along a route (routes.hpp), cut into parcels that follow one another,
// so that a rank passes on one parcel while it receives the next. Inputs and outputs are not
// copied, but for small pieces, which share a parcel. Operations move on whenever a rank of this
// process waits or tests, and between that by a thread that does nothing else.
//
// Every operation begins with a small message to the next rank that says what was started, so that
// ranks that make different calls learn it at once. A rank that fails tells all others; one that
// finds a deadline passed first asks who is still there.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
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
#include <type_traits>
#include <utility>
#include <vector>

#include "mfsdp/collective/routes.hpp"
#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"

namespace mfsdp::inline MFSDP_ABI {

// What carries the messages of one group of ranks. Calls come from one thread at a time, except
// split.
//   handle             a message under way, default-constructible
//   rank, size         of this group
//   tags               how many tags there are, 0 up to this; 2^15 at least
//   send, receive      start one; memory stays until it is complete. -1 receives from any rank
//   poll(handles, done)   appends the positions of the handles that are complete; those may be
//                      dropped. Throws collective_error if the engine reports an error
//   cancel(handle)     gives up a receive; true if nothing will be written to its memory
//   one_node           whether all ranks share memory
//   split(color, ranks)   the group of these ranks, which have this color; all ranks call it
//   free()             gives the group back; called on all ranks, unless one has failed
template <class W>
concept MessageWire = std::movable<W> && std::default_initializable<typename W::handle> &&
                      requires(W w, std::span<typename W::handle> handles,
                               std::vector<std::size_t>& done, const void* from, void* to) {
                        { w.rank() } -> std::same_as<int>;
                        { w.size() } -> std::same_as<int>;
                        { w.tags() } -> std::same_as<std::int64_t>;
                        { w.one_node() } -> std::same_as<bool>;
                        {
                          w.send(from, std::size_t{1}, 0, std::int64_t{0})
                        } -> std::same_as<typename W::handle>;
                        {
                          w.receive(to, std::size_t{1}, 0, std::int64_t{0})
                        } -> std::same_as<typename W::handle>;
                        W::poll(handles, done);
                        { W::cancel(handles[0]) } -> std::same_as<bool>;
                        { w.split(0, std::span<const int>()) } -> std::same_as<W>;
                        w.free();
                      };

struct message_options {
  // How long a destructor may wait, and a rank that has returned for the others: a rank that works
  // alone for longer needs more. Operations bring deadlines of their own.
  std::chrono::milliseconds timeout = std::chrono::minutes(2);
  // How gathers and sums travel; if not given, direct between ranks that share memory, and
  // otherwise what `net` makes the quickest. `ring` gives up the order of ranks in sums: results
  // then depend on who owns what.
  std::optional<travel> gathers{};
  std::optional<travel> sums{};
  fabric net{};
  index_t parcel_bytes = 256 * 1024;
  int parcels_ahead = 4;  // on each route, sent or received before the first of them is complete
};

namespace detail {

// ------------------------------------------------------------------------------------- arithmetic

// What an operation does to elements, without their types.
struct message_arithmetic {
  index_t term_size = 0;  // bytes of what a rank holds
  index_t sum_size = 0;   // bytes of a sum, and of the output
  bool same = true;       // one type
  void (*begin)(const std::byte* term, std::byte* sum, index_t count) = nullptr;
  void (*add)(const std::byte* term, std::byte* sum, index_t count) = nullptr;
  void (*put)(const std::byte* sum, std::byte* output, index_t count, reduce_into) = nullptr;
};

template <class From, class To>
[[nodiscard]] constexpr message_arithmetic arithmetic_of() {
  static_assert(std::is_trivially_copyable_v<From> && std::is_trivially_copyable_v<To>);
  // Buffers hold elements at multiples of their size.
  return {sizeof(From),
          sizeof(To),
          std::is_same_v<From, To>,
          [](const std::byte* term, std::byte* sum, index_t count) {
            const From* in = reinterpret_cast<const From*>(term);
            To* out = reinterpret_cast<To*>(sum);
            for (index_t i = 0; i < count; ++i) out[i] = static_cast<To>(in[i]);
          },
          [](const std::byte* term, std::byte* sum, index_t count) {
            const From* in = reinterpret_cast<const From*>(term);
            To* out = reinterpret_cast<To*>(sum);
            for (index_t i = 0; i < count; ++i) out[i] = out[i] + static_cast<To>(in[i]);
          },
          [](const std::byte* sum, std::byte* output, index_t count, reduce_into into) {
            const To* in = reinterpret_cast<const To*>(sum);
            To* out = reinterpret_cast<To*>(output);
            if (into == reduce_into::write) {
              std::copy_n(in, count, out);
            } else {
              for (index_t i = 0; i < count; ++i) out[i] = out[i] + in[i];
            }
          }};
}

// ---------------------------------------------------------------------------------------- parcels

// What travels at once: parts of one owner's pieces.
struct parcel {
  struct stretch {
    index_t in = 0;   // in the input
    index_t out = 0;  // in the output
    index_t count = 0;
  };
  std::vector<stretch> stretches{};
  index_t count = 0;
};

// Large pieces are cut evenly, small ones share a parcel.
[[nodiscard]] inline std::vector<parcel> parcels_of(std::span<const piece> pieces, int owner,
                                                    bool gathers, index_t largest) {
  std::vector<parcel> parcels;
  bool open = false;
  for (const piece& p : pieces) {
    if (p.rank != owner) continue;
    const index_t in = gathers ? p.local : p.full;
    const index_t out = gathers ? p.full : p.local;
    const bool small = p.count <= largest / 16;
    if (small && open && parcels.back().count + p.count <= largest) {
      parcels.back().stretches.push_back({in, out, p.count});
      parcels.back().count += p.count;
      continue;
    }
    const index_t parts = (p.count + largest - 1) / largest;
    for (index_t i = 0; i < parts; ++i) {
      const index_t begin = p.count * i / parts;
      const index_t count = p.count * (i + 1) / parts - begin;
      parcels.push_back({{{in + begin, out + begin, count}}, count});
    }
    open = small;
  }
  return parcels;
}

// Cuts the pieces of an all-reduce evenly over the ranks, whoever holds them.
[[nodiscard]] inline std::vector<piece> spread(std::span<const piece> pieces, int ranks) {
  index_t total = 0;
  for (const piece& p : pieces) total += p.count;
  const index_t share = std::max<index_t>(1, (total + ranks - 1) / ranks);
  std::vector<piece> cut;
  index_t done = 0;
  for (piece p : pieces) {
    while (p.count > 0) {
      const index_t count = std::min(p.count, share - done % share);
      cut.push_back({static_cast<int>(done / share), p.full, p.local, count});
      p.full += count;
      p.local += count;
      p.count -= count;
      done += count;
    }
  }
  return cut;
}

// ----------------------------------------------------------------------------------------- notices

// The first message of every operation, from each rank to the next.
struct operation_header {
  std::array<char, 24> kind{};
  std::array<char, 88> label{};  // shortened
  std::int64_t elements = 0;
  std::int64_t element_size = 0;

  static operation_header of(std::string_view kind, std::string_view label, index_t elements,
                             index_t element_size) {
    operation_header header{.elements = elements, .element_size = element_size};
    kind.copy(header.kind.data(), header.kind.size() - 1);
    label.copy(header.label.data(), header.label.size() - 1);
    return header;
  }
  [[nodiscard]] std::string text(int rank) const {
    return fmt::format("rank {} started {} '{}' of {} elements of {} bytes", rank, kind.data(),
                       label.data(), elements, element_size);
  }
  friend bool operator==(const operation_header&, const operation_header&) = default;
};

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

// ---------------------------------------------------------------------------------------- the
// engine

template <MessageWire Wire>
class message_operation;

// A group of ranks: the world of an engine or a part of it.
template <MessageWire Wire>
struct message_group {
  Wire wire;
  std::int64_t id = 0;         // equal on all of its ranks
  std::vector<int> members{};  // as ranks of the world
  std::int64_t started = 0;    // operations
  std::deque<bool> over{};     // of the last operations, from the oldest that is not over
  std::int64_t bytes_sent = 0;
  std::int64_t messages_sent = 0;

  [[nodiscard]] std::string name_of(int rank) const {
    return fmt::format("{}", members[static_cast<std::size_t>(rank)]);
  }
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
      handles_[i] = std::move(handles_.back());
      handles_.pop_back();
      entries_[i] = entries_.back();
      entries_.pop_back();
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
    const auto until = std::chrono::steady_clock::now() + options_.timeout;
    while (!failure_ && !all_left()) {
      if (!poll()) {
        if (std::chrono::steady_clock::now() >= until) {
          std::string absent;
          for (std::size_t rank = 0; rank < left_.size(); ++rank) {
            if (left_[rank] || static_cast<int>(rank) == world_.wire.rank()) continue;
            absent += fmt::format("{}{}", absent.empty() ? "" : ", ", rank);
          }
          fail(fmt::format("has returned and reached its deadline waiting for rank {} to return",
                           absent));
          break;
        }
        guard.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(50));
        guard.lock();
      }
    }
    deliver(guard);
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

  void forget(group* part) {
    const std::unique_lock guard(mutex_);
    std::erase(groups_, part);
    if (!failure_) part->wire.free();
    delete part;
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

  // Gives the notices that are on their way a moment to arrive.
  void deliver(std::unique_lock<std::mutex>& guard) {
    const auto until = clock::now() + std::chrono::seconds(1);
    while (!outgoing_.empty() && clock::now() < until) {
      try {
        if (poll()) continue;
      } catch (const collective_error&) {
        return;
      }
      guard.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      guard.lock();
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
    while (present_.size() + 1 < g.members.size() && clock::now() < until && !failure_) {
      if (poll()) continue;
      guard.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      guard.lock();
    }
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
    try {
      for (std::size_t i = 0; i < entries_.size();) {
        if (entries_[i].owner == &op && withdrawn(handles_[i])) {
          handles_[i] = std::move(handles_.back());
          handles_.pop_back();
          entries_[i] = entries_.back();
          entries_.pop_back();
        } else {
          ++i;
        }
      }
      while (pending() && clock::now() < *withdraw_until_) {
        if (poll()) continue;
        guard.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(50));
        guard.lock();
      }
    } catch (const collective_error&) {
    }
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

// One collective operation of one rank.
template <MessageWire Wire>
class message_operation {
 public:
  using engine = message_engine<Wire>;
  using group = message_group<Wire>;

  struct description {
    std::string_view kind;
    std::string_view label;
    bool gathers = false;
    reduce_into into = reduce_into::write;
    const void* input = nullptr;
    void* output = nullptr;
    message_arithmetic arithmetic{};
  };

  // `routes` are this rank's, of owners that have pieces.
  message_operation(engine& e, group& g, const description& what, std::span<const piece> pieces,
                    std::vector<route> routes)
      : engine_(e),
        group_(g),
        label_(what.label),
        what_(what),
        number_(g.started),
        routes_(std::move(routes)) {
    what_.label = label_;
    index_t elements = 0;
    for (const piece& p : pieces) elements += p.count;
    header_ = operation_header::of(what.kind, what.label, elements, what.arithmetic.term_size);
    const index_t largest =
        std::max<index_t>(1, e.options().parcel_bytes /
                                 std::max(what.arithmetic.term_size, what.arithmetic.sum_size));
    parcels_.resize(static_cast<std::size_t>(g.wire.size()));
    for (const route& r : routes_) {
      std::vector<parcel>& parcels = parcels_[at(r.owner)];
      if (parcels.empty()) parcels = parcels_of(pieces, r.owner, what.gathers, largest);
      const auto count = std::ssize(parcels);
      if (r.keep) output_pending_ += count;
      if (reads_input(r)) input_pending_ += count;
      pending_ += count;
    }
    lanes_.resize(routes_.size());
  }

  // Everything below with the engine's lock.

  void begin() {
    const int ranks = group_.wire.size();
    const int rank = group_.wire.rank();
    const std::int64_t window = (group_.wire.tags() - 1) / (2 * ranks + 1);
    if (std::ssize(group_.over) >= window) {
      throw collective_error(describe("is one of too many at a time; wait for earlier ones first"));
    }
    ++group_.started;
    group_.over.push_back(false);
    first_tag_ = 1 + number_ % window * (2 * ranks + 1);
    if (ranks > 1) {
      pending_ += 2;
      ++output_pending_;
      engine_.track(group_.wire.receive(&other_header_, sizeof other_header_,
                                        (rank + ranks - 1) % ranks, first_tag_),
                    {this, header_slot, 0});
      engine_.track(group_.wire.send(&header_, sizeof header_, (rank + 1) % ranks, first_tag_),
                    {this, header_slot, 1});
    }
    for (std::size_t l = 0; l < lanes_.size(); ++l) move_on(l);
    retire();
  }

  // A message is complete.
  void advance(std::size_t which, int part) {
    if (stopped_) return;
    if (which == header_slot) {
      --pending_;
      if (part == 0) {
        if (other_header_ != header_) disagree();
        --output_pending_;
      }
    } else if (part == sent) {
      if (--slots_[which].sends == 0) finish(which);
      move_on(slots_[which].lane);
    } else {
      slots_[which].arrived[static_cast<std::size_t>(part)] = true;
      move_on(slots_[which].lane);
    }
    retire();
  }

  // The output is complete and no longer used.
  [[nodiscard]] bool output_complete() const { return output_pending_ == 0; }
  [[nodiscard]] bool input_free() const { return input_pending_ == 0; }
  [[nodiscard]] bool over() const { return pending_ == 0 || stopped_; }
  void stop() { stopped_ = true; }

  [[nodiscard]] std::int64_t number() const { return number_; }
  [[nodiscard]] const group& of() const { return group_; }

  [[nodiscard]] std::string describe(const std::string& what) const {
    return fmt::format("{} '{}' (collective {}): rank {} {}", what_.kind, label_, number_,
                       group_.name_of(group_.wire.rank()), what);
  }

  // Ranks of the world whose messages have not come.
  [[nodiscard]] std::vector<int> awaited() const {
    std::vector<int> ranks;
    for (const slot& s : slots_) {
      if (!s.busy) continue;
      for (std::size_t i = 0; i < s.arrived.size(); ++i) {
        const int rank = group_.members[at(routes_[s.lane].terms[i])];
        if (!s.arrived[i] && std::ranges::find(ranks, rank) == ranks.end()) ranks.push_back(rank);
      }
    }
    std::ranges::sort(ranks);
    return ranks;
  }

 private:
  static constexpr std::size_t header_slot = static_cast<std::size_t>(-1);
  static constexpr int sent = -1;

  struct lane {
    std::size_t next = 0;  // parcel
    int active = 0;
    std::deque<std::size_t> unsent{};  // slots, in order
  };

  // One parcel on one route.
  struct slot {
    bool busy = false;
    bool holds_input = false;
    bool holds_output = false;
    std::size_t lane = 0;
    const parcel* what = nullptr;
    std::vector<bool> arrived{};         // by term
    std::vector<std::byte*> messages{};  // by term; null for this rank's own
    std::vector<std::byte*> blocks{};    // to give back
    std::size_t added = 0;               // terms
    std::byte* sum = nullptr;
    int sends = 0;
  };

  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

  [[nodiscard]] bool own(int term) const { return term == group_.wire.rank(); }
  [[nodiscard]] bool reads_input(const route& r) const {
    return std::ranges::any_of(r.terms, [this](int term) { return own(term); });
  }
  // One term that needs no sum is passed on as it is.
  [[nodiscard]] bool passes(const route& r) const {
    return r.terms.size() == 1 &&
           (!own(r.terms[0]) || what_.arithmetic.same || (!r.sends_sum && !r.keep));
  }

  // Whether a sum can grow in the output.
  [[nodiscard]] bool in_place(const route& r, const parcel& p) const {
    return r.keep && what_.into == reduce_into::write && p.stretches.size() == 1;
  }

  [[nodiscard]] const std::byte* input(index_t element) const {
    return static_cast<const std::byte*>(what_.input) + element * what_.arithmetic.term_size;
  }
  [[nodiscard]] std::byte* output(index_t element) const {
    return static_cast<std::byte*>(what_.output) + element * what_.arithmetic.sum_size;
  }

  std::byte* block_for(slot& s) {
    s.blocks.push_back(engine_.take_block());
    return s.blocks.back();
  }

  // Messages between two ranks match in the order in which they are started, so the parcels of a
  // route are sent in their order, however they arrive.
  void move_on(std::size_t l) {
    const std::vector<parcel>& parcels = parcels_[at(routes_[l].owner)];
    lane& way = lanes_[l];
    for (;;) {
      while (way.next < parcels.size() && way.active < engine_.options().parcels_ahead) {
        ++way.active;
        way.unsent.push_back(open(l, parcels[way.next++]));
      }
      if (way.unsent.empty() || !process(way.unsent.front())) return;
      way.unsent.pop_front();
    }
  }

  // Starts what a parcel needs from other ranks.
  std::size_t open(std::size_t l, const parcel& p) {
    std::size_t i = 0;
    while (i < slots_.size() && slots_[i].busy) ++i;
    if (i == slots_.size()) slots_.emplace_back();
    slot& s = slots_[i];
    const route& r = routes_[l];
    s.busy = true;
    s.holds_input = reads_input(r);
    s.holds_output = r.keep;
    s.lane = l;
    s.what = &p;
    s.added = 0;
    s.sum = nullptr;
    s.arrived.assign(r.terms.size(), false);
    s.messages.assign(r.terms.size(), nullptr);
    const index_t bytes =
        p.count * (r.receives_sum ? what_.arithmetic.sum_size : what_.arithmetic.term_size);
    for (std::size_t t = 0; t < r.terms.size(); ++t) {
      if (own(r.terms[t])) {
        s.arrived[t] = true;
        continue;
      }
      // The first term is where the sum grows.
      const bool direct = t == 0 && in_place(r, p) && (r.receives_sum || what_.arithmetic.same);
      s.messages[t] = direct ? output(p.stretches[0].out) : block_for(s);
      engine_.track(group_.wire.receive(s.messages[t], static_cast<std::size_t>(bytes), r.terms[t],
                                        first_tag_ + 1 + 2 * r.owner + r.receive_leg),
                    {this, i, static_cast<int>(t)});
    }
    return i;
  }

  // Adds what has arrived, in order; when all has, keeps the result and sends it on. Whether that
  // is done.
  bool process(std::size_t i) {
    slot& s = slots_[i];
    const route& r = routes_[s.lane];
    if (passes(r)) {
      if (s.arrived[0]) pass_on(i);
      return s.arrived[0];
    }
    for (; s.added < r.terms.size() && s.arrived[s.added]; ++s.added) add_term(s, r, s.added);
    if (s.added < r.terms.size()) return false;
    if (r.keep) keep(s, s.sum);
    s.holds_input = false;
    s.holds_output = s.holds_output && in_place(r, *s.what);
    send(i, s.sum, what_.arithmetic.sum_size);
    return true;
  }

  void add_term(slot& s, const route& r, std::size_t t) {
    const message_arithmetic& a = what_.arithmetic;
    if (t == 0) {
      if (s.messages[0] != nullptr && (r.receives_sum || a.same)) {
        s.sum = s.messages[0];
        return;
      }
      s.sum = in_place(r, *s.what) ? output(s.what->stretches[0].out) : block_for(s);
    }
    const auto combine = t == 0 ? a.begin : a.add;
    if (s.messages[t] != nullptr) {
      combine(s.messages[t], s.sum, s.what->count);
      return;
    }
    std::byte* sum = s.sum;
    for (const parcel::stretch& part : s.what->stretches) {
      combine(input(part.in), sum, part.count);
      sum += part.count * a.sum_size;
    }
  }

  // A term as it is: from this rank's input, or from a message.
  void pass_on(std::size_t i) {
    slot& s = slots_[i];
    const route& r = routes_[s.lane];
    const message_arithmetic& a = what_.arithmetic;
    if (s.messages[0] != nullptr) {
      if (r.keep) keep(s, s.messages[0]);
      s.holds_output = s.holds_output && in_place(r, *s.what);
      send(i, s.messages[0], r.receives_sum ? a.sum_size : a.term_size);
      return;
    }
    const std::vector<parcel::stretch>& parts = s.what->stretches;
    if (r.keep) {
      for (const parcel::stretch& part : parts) {
        a.put(input(part.in), output(part.out), part.count, what_.into);
      }
      s.holds_output = false;
    }
    const std::byte* data = input(parts[0].in);
    if (parts.size() > 1 && !r.to.empty()) {
      std::byte* end = block_for(s);
      data = end;
      for (const parcel::stretch& part : parts) {
        end = std::copy_n(input(part.in), part.count * a.term_size, end);
      }
      s.holds_input = false;
    }
    send(i, data, a.term_size);
  }

  void keep(const slot& s, const std::byte* sum) {
    for (const parcel::stretch& part : s.what->stretches) {
      if (sum != output(part.out))
        what_.arithmetic.put(sum, output(part.out), part.count, what_.into);
      sum += part.count * what_.arithmetic.sum_size;
    }
  }

  void send(std::size_t i, const std::byte* data, index_t element_size) {
    slot& s = slots_[i];
    const route& r = routes_[s.lane];
    if (!s.holds_input && reads_input(r)) --input_pending_;
    if (!s.holds_output && r.keep) --output_pending_;
    const index_t bytes = s.what->count * element_size;
    s.sends = static_cast<int>(r.to.size());
    for (const int to : r.to) {
      engine_.track(group_.wire.send(data, static_cast<std::size_t>(bytes), to,
                                     first_tag_ + 1 + 2 * r.owner + r.send_leg),
                    {this, i, sent});
      group_.bytes_sent += bytes;
      ++group_.messages_sent;
    }
    if (r.to.empty()) finish(i);
  }

  void finish(std::size_t i) {
    slot& s = slots_[i];
    for (std::byte* memory : s.blocks) engine_.give_block(memory);
    s.blocks.clear();
    s.busy = false;
    if (s.holds_input) --input_pending_;
    if (s.holds_output) --output_pending_;
    --pending_;
    --lanes_[s.lane].active;
  }

  // Tags are free again when all operations before are over, too.
  void retire() {
    if (pending_ > 0) return;
    const auto oldest = group_.started - std::ssize(group_.over);
    group_.over[static_cast<std::size_t>(number_ - oldest)] = true;
    while (!group_.over.empty() && group_.over.front()) group_.over.pop_front();
  }

  [[noreturn]] void disagree() {
    const int ranks = group_.wire.size();
    const int rank = group_.wire.rank();
    throw collective_error(fmt::format(
        "collective {} differs between ranks: {}, {}; all ranks must make the same calls in the "
        "same order",
        number_, other_header_.text(group_.members[at((rank + ranks - 1) % ranks)]),
        header_.text(group_.members[at(rank)])));
  }

  engine& engine_;
  group& group_;
  const std::string label_;
  description what_;
  const std::int64_t number_;
  std::int64_t first_tag_ = 0;
  operation_header header_;
  operation_header other_header_;
  std::vector<route> routes_;
  std::vector<std::vector<parcel>> parcels_;  // by owner
  std::vector<lane> lanes_;                   // by route
  std::deque<slot> slots_;
  std::int64_t output_pending_ = 0;  // parcels that still need the output
  std::int64_t input_pending_ = 0;
  std::int64_t pending_ = 0;  // parcels, and the header's two messages
  bool stopped_ = false;
};

}  // namespace detail

// A rank's view of a group. Copies are the same rank; use it from that rank's thread only. The last
// copy waits for the other ranks to let go of theirs.
template <MessageWire Wire>
class message_collective {
  using engine = detail::message_engine<Wire>;
  using group = detail::message_group<Wire>;
  using operation = detail::message_operation<Wire>;

 public:
  class request {
   public:
    request() = default;
    request(request&& other) noexcept
        : engine_(std::move(other.engine_)),
          group_(std::move(other.group_)),
          op_(std::move(other.op_)),
          waited_(other.waited_) {}
    request& operator=(request&& other) noexcept {
      request moved(std::move(other));
      std::swap(engine_, moved.engine_);
      std::swap(group_, moved.group_);
      std::swap(op_, moved.op_);
      std::swap(waited_, moved.waited_);
      return *this;
    }
    ~request() {
      if (op_ != nullptr) engine_->settle(*op_, waited_);
    }

    bool test() {
      if (op_ == nullptr || waited_) return true;
      const auto lock = engine_->lock();
      if (!op_->output_complete()) {
        engine_->throw_if_failed();
        engine_->poll();
      }
      waited_ = op_->output_complete();
      return waited_;
    }
    void wait(deadline until) {
      if (op_ == nullptr || waited_) return;
      auto lock = engine_->lock();
      engine_->await(lock, *op_, until, [this] { return op_->output_complete(); });
      waited_ = true;
    }
    void drain(deadline until) {
      if (op_ == nullptr) return;
      wait(until);
      {
        auto lock = engine_->lock();
        engine_->await(lock, *op_, until, [this] { return op_->input_free(); });
      }
      op_.reset();
    }

   private:
    friend class message_collective;
    request(std::shared_ptr<engine> e, std::shared_ptr<group> g, std::shared_ptr<operation> op)
        : engine_(std::move(e)), group_(std::move(g)), op_(std::move(op)) {}

    std::shared_ptr<engine> engine_;
    std::shared_ptr<group> group_;
    std::shared_ptr<operation> op_;
    bool waited_ = false;
  };

  explicit message_collective(Wire wire, message_options options = {})
      : message_collective(std::make_shared<engine>(std::move(wire), std::move(options))) {}

  [[nodiscard]] int rank() const { return group_->wire.rank(); }
  [[nodiscard]] int size() const { return group_->wire.size(); }

  // What this rank has sent in this group so far, not counting the small messages that begin an
  // operation.
  [[nodiscard]] std::int64_t bytes_sent() const {
    const auto lock = engine_->lock();
    return group_->bytes_sent;
  }
  [[nodiscard]] std::int64_t messages_sent() const {
    const auto lock = engine_->lock();
    return group_->messages_sent;
  }

  template <class T>
  request start_all_gather(std::span<const T> shard, std::span<T> full,
                           std::span<const piece> pieces, std::string_view label) {
    const travel how = choose(pieces, sizeof(T), false);
    std::vector<route> routes;
    for (const int owner : owners(pieces)) {
      routes.push_back(gather_route(how, owner, rank(), size()));
    }
    return start({"all-gather", label, true, reduce_into::write, shard.data(), full.data(),
                  detail::arithmetic_of<T, T>()},
                 pieces, std::move(routes));
  }

  template <class From, class To>
  request start_reduce_scatter(std::span<const From> full, std::span<To> shard,
                               std::span<const piece> pieces, reduce_into into,
                               std::string_view label) {
    const travel how = choose(pieces, sizeof(From), true);
    std::vector<route> routes;
    for (const int owner : owners(pieces)) {
      std::ranges::move(sum_routes(how, owner, rank(), size()), std::back_inserter(routes));
    }
    return start({into == reduce_into::add ? "adding reduce-scatter" : "reduce-scatter", label,
                  false, into, full.data(), shard.data(), detail::arithmetic_of<From, To>()},
                 pieces, std::move(routes));
  }

  // Each rank sums an even share, which then reaches the others.
  template <class From, class To>
  request start_all_reduce(std::span<const From> full, std::span<To> local,
                           std::span<const piece> pieces, reduce_into into,
                           std::string_view label) {
    const std::vector<piece> shares = detail::spread(pieces, size());
    const travel how = choose(shares, sizeof(From), true);
    std::vector<route> routes;
    for (const int owner : owners(shares)) {
      std::ranges::move(all_sum_routes(how, owner, rank(), size()), std::back_inserter(routes));
    }
    return start({into == reduce_into::add ? "adding all-reduce" : "all-reduce", label, false, into,
                  full.data(), local.data(), detail::arithmetic_of<From, To>()},
                 shares, std::move(routes));
  }

  // The ranks of one color, in the order of ranks. A collective call.
  [[nodiscard]] message_collective split(int color) {
    const std::vector<std::int64_t> mine{color};
    std::vector<std::int64_t> colors(static_cast<std::size_t>(size()));
    std::vector<piece> pieces;
    for (int r = 0; r < size(); ++r) pieces.push_back({r, r, 0, 1});
    {
      request all = start_all_gather(std::span<const std::int64_t>(mine),
                                     std::span<std::int64_t>(colors), pieces, "split");
      const deadline until = std::chrono::steady_clock::now() + engine_->options().timeout;
      all.wait(until);
      all.drain(until);
    }
    std::vector<int> ranks;
    for (int r = 0; r < size(); ++r) {
      if (colors[static_cast<std::size_t>(r)] == color) ranks.push_back(r);
    }
    return message_collective(engine_, engine_->split(*group_, color, ranks));
  }

  // Calls body(message_collective) as one rank of all, and returns when every rank has returned. An
  // exception of the body is told to the other ranks, and leaves. Errors: collective_error if a
  // rank has failed, or does not return before the timeout.
  template <class Body>
  void run(Body&& body) {
    engine_->manage();
    try {
      body(message_collective(*this));
    } catch (const std::exception& e) {
      engine_->report(e.what());
      throw;
    } catch (...) {
      engine_->report("an exception of unknown type");
      throw;
    }
    engine_->leave();
    const auto lock = engine_->lock();
    engine_->throw_if_failed();
  }

 private:
  explicit message_collective(std::shared_ptr<engine> e) : engine_(e), group_(e, &e->world()) {}
  message_collective(std::shared_ptr<engine> e, std::shared_ptr<group> g)
      : engine_(std::move(e)), group_(std::move(g)) {}

  [[nodiscard]] std::vector<int> owners(std::span<const piece> pieces) const {
    std::vector<bool> owns(static_cast<std::size_t>(size()), false);
    for (const piece& p : pieces) owns[static_cast<std::size_t>(p.rank)] = true;
    std::vector<int> ranks;
    for (int r = 0; r < size(); ++r) {
      if (owns[static_cast<std::size_t>(r)]) ranks.push_back(r);
    }
    return ranks;
  }

  [[nodiscard]] travel choose(std::span<const piece> pieces, std::size_t element_size,
                              bool sums) const {
    const message_options& options = engine_->options();
    if (const auto& given = sums ? options.sums : options.gathers; given) return *given;
    if (group_->wire.one_node()) return travel::direct;
    std::vector<index_t> bytes(static_cast<std::size_t>(size()), 0);
    for (const piece& p : pieces) {
      bytes[static_cast<std::size_t>(p.rank)] += p.count * static_cast<index_t>(element_size);
    }
    const travel other = sums ? travel::chain : travel::ring;
    const auto seconds = [&](travel how) {
      return travel_seconds(how, bytes, options.parcel_bytes, options.net);
    };
    return seconds(other) < seconds(travel::direct) ? other : travel::direct;
  }

  request start(const typename operation::description& what, std::span<const piece> pieces,
                std::vector<route> routes) {
    auto lock = engine_->lock();
    auto op = std::make_shared<operation>(*engine_, *group_, what, pieces, std::move(routes));
    engine_->add(op);
    return request(engine_, group_, std::move(op));
  }

  std::shared_ptr<engine> engine_;
  std::shared_ptr<group> group_;
};

}  // namespace mfsdp::inline MFSDP_ABI
