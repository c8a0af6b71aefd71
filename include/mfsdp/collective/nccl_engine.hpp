// nccl_engine: the communicators of one rank, what is under way in them, and who watches over it.
//
// What is started is queued on streams, and the host goes on. So nobody may be waiting when a rank
// does not come, and who waits then may do so inside the CUDA runtime. A thread looks after it:
// when something fails, or has made no progress for as long as its deadline allows, all
// communicators of the rank are aborted, which ends the kernels that wait; every later call throws
// the first cause.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "mfsdp/collective/nccl_operation.hpp"
#include "mfsdp/collective/rank_notices.hpp"
#include "mfsdp/concepts.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

class nccl_engine {
  using clock = std::chrono::steady_clock;

 public:
  // Errors: spec_error, device_error.
  nccl_engine(int device, nccl_options options, std::shared_ptr<rank_notices> notices)
      : device_(device), options_(std::move(options)), notices_(std::move(notices)) {
    if (options_.timeout <= std::chrono::milliseconds::zero() ||
        options_.scratch_bytes < (index_t{64} << 10)) {
      throw spec_error(
          fmt::format("nccl_options: timeout {} ms not positive, or scratch_bytes {} below 64 KiB",
                      options_.timeout.count(), options_.scratch_bytes));
    }
    const cuda::device_scope here(device_);
    if (!options_.compute) own_compute_.emplace();
    watcher_ = std::thread([this] { watch(); });
  }
  nccl_engine(const nccl_engine&) = delete;
  nccl_engine& operator=(const nccl_engine&) = delete;

  ~nccl_engine() {
    close();
    {
      const std::scoped_lock guard(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    watcher_.join();
    bool idle = false;
    try {
      const cuda::device_scope here(device_);
      idle = wait_for_streams(deadline_after(options_.timeout));
      if (idle) groups_.clear();
      own_compute_.reset();
    } catch (const error&) {  // of a device that is gone
    }
    // What the device may still touch stays until the process ends.
    if (!idle) (void)new auto(std::move(groups_));
  }

  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] const nccl_options& options() const { return options_; }
  [[nodiscard]] cudaStream_t compute() const {
    return options_.compute ? *options_.compute : own_compute_->get();
  }
  [[nodiscard]] std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }

  // The ranks that present this id, which takes until all have come. Errors: collective_error.
  nccl_group& create(const ncclUniqueId& id, int rank, int size) {
    const cuda::device_scope here(device_);
    auto fresh = std::make_unique<nccl_group>();
    fresh->rank = rank;
    fresh->size = size;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const std::unique_lock guard(mutex_);
    throw_if_failed();
    const ncclResult_t code = ncclCommInitRankConfig(&fresh->comm, size, id, rank, &config);
    groups_.push_back(std::move(fresh));
    nccl_group& group = *groups_.back();
    settle(group, code, fmt::format("the communicator of {} ranks", size));
    return group;
  }

  // A communicator of the caller's.
  nccl_group& borrow(ncclComm_t comm) {
    const cuda::device_scope here(device_);
    auto fresh = std::make_unique<nccl_group>();
    fresh->comm = comm;
    fresh->borrowed = true;
    require_nccl(ncclCommUserRank(comm, &fresh->rank), "ncclCommUserRank", comm);
    require_nccl(ncclCommCount(comm, &fresh->size), "ncclCommCount", comm);
    const std::unique_lock guard(mutex_);
    groups_.push_back(std::move(fresh));
    return *groups_.back();
  }

  // Waits until nothing is under way, and gives the communicators back. If that takes too long,
  // after a failure, and at once while an exception passes, since the other ranks may then wait for
  // what does not come, they are aborted. Later calls throw.
  void close() noexcept {
    try {
      if (std::uncaught_exceptions() > exceptions_) {
        const std::unique_lock guard(mutex_);
        fail("an exception has ended the communicator");
      }
      const deadline until = deadline_after(options_.timeout);
      synchronize(until);
      const std::unique_lock guard(mutex_);
      const cuda::device_scope here(device_);
      finalize(until);
    } catch (const error&) {  // kept for whoever asks
    }
    const std::unique_lock guard(mutex_);
    if (!failure_) failure_ = failure{"the communicator is closed", false};
    abort();
  }

  // Returns when nothing is under way, for the device either.
  void synchronize(deadline until) {
    await(until, [this] {
      for (const auto& group : groups_) {
        if (!group->under_way.empty()) return group->under_way.front().get();
      }
      return static_cast<nccl_operation*>(nullptr);
    });
  }

  // Polls until the operation is over.
  void await(nccl_operation& op, deadline until) {
    await(until, [&op] { return op.over ? nullptr : &op; });
  }

  // ----- with the lock

  void throw_if_failed() const {
    if (!failure_) return;
    if (failure_->of_another) throw rank_failure(failure_->what);
    throw collective_error(failure_->what);
  }
  [[nodiscard]] bool failed() const { return failure_.has_value(); }

  // The first cause stays. Tells the other ranks, and aborts.
  void fail(std::string_view what, bool of_another = false) noexcept {
    if (failure_) return;
    failure_ = failure{std::string(what), of_another};
    if (notices_ && !of_another) notices_->tell(what);
    abort();
  }

  // Whether somebody has failed, or something has come to its end or its deadline.
  void look() noexcept {
    if (failure_) return;
    listen();
    if (failure_) return;
    try {
      for (const auto& group : groups_) {
        if (!failure_ && group->comm != nullptr) look_at(*group);
      }
    } catch (const error& e) {
      fail(e.what());
    }
  }

  // What a call of NCCL that does not block has begun is complete when this returns.
  void settle(nccl_group& group, ncclResult_t code, std::string_view what) {
    const deadline begun = clock::now();
    const deadline until = deadline_after(options_.timeout);
    while (code == ncclInProgress) {
      ncclResult_t asked = ncclCommGetAsyncError(group.comm, &code);
      if (!accepted(asked)) code = asked;
      if (code != ncclInProgress) break;
      listen();
      throw_if_failed();
      if (clock::now() > until) {
        fail(fmt::format("{}: rank {} reached its deadline; another rank has not come to it", what,
                         group.rank));
        throw_if_failed();
      }
      // Mostly a launch, which takes some ten microseconds.
      if (clock::now() < begun + std::chrono::milliseconds(1)) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
    if (code == ncclSuccess) return;
    fail(fmt::format("{}: rank {}: {}", what, group.rank, nccl_reason("NCCL", code, group.comm)));
    throw_if_failed();
  }

  [[nodiscard]] std::shared_ptr<nccl_operation> take(nccl_group& group) {
    if (group.idle.empty()) return std::make_shared<nccl_operation>();
    auto op = std::move(group.idle.back());
    group.idle.pop_back();
    op->until.reset();
    op->told = nullptr;
    op->over = op->released = false;
    return op;
  }
  // What is queued in a communicator comes after what the others have been given so far: kernels of
  // two that run at once wait for each other for ever where ranks have begun them in different
  // orders. All ranks start operations in one order.
  void follow_others(nccl_group& group) const {
    for (const auto& other : groups_) {
      if (other.get() == &group || other->under_way.empty()) continue;
      other->under_way.back()->done.precede(group.stream.get());
    }
  }
  void add(nccl_group& group, const std::shared_ptr<nccl_operation>& op) {
    group.under_way.push_back(op);
    changed_.notify_all();
  }
  // Its request is gone.
  void release(nccl_group& group, std::shared_ptr<nccl_operation> op) {
    op->released = true;
    if (op->over) keep(group, std::move(op));
  }

  // What the compute stream gets to do from here on comes after the operation.
  void precede_compute(const nccl_operation& op) const {
    const cuda::device_scope here(device_);
    op.done.precede(compute());
  }

  // A block for an operand of this size.
  [[nodiscard]] staging_block take_block(nccl_group& group, std::size_t bytes) const {
    const auto fits = std::ranges::find_if(
        group.blocks, [&](const staging_block& b) { return b.device.bytes() >= bytes; });
    if (fits != group.blocks.end()) {
      staging_block block = std::move(*fits);
      group.blocks.erase(fits);
      return block;
    }
    std::size_t size = 4096;
    while (size < bytes) size *= 2;
    return {cuda::pinned_buffer<std::byte>(size), device_memory(size)};
  }

 private:
  struct failure {
    std::string what;
    bool of_another = false;
  };

  void listen() noexcept {
    const auto heard = notices_ ? notices_->heard() : std::nullopt;
    if (heard) fail(fmt::format("rank {} failed first: {}", heard->rank, heard->cause), true);
  }

  template <class Pending>
  void await(deadline until, const Pending& pending) {
    while (true) {
      {
        const std::unique_lock guard(mutex_);
        look();
        throw_if_failed();
        const nccl_operation* op = pending();
        if (op == nullptr) return;
        if (clock::now() > until) {
          fail(late(*op));
          throw_if_failed();
        }
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  [[nodiscard]] std::string late(const nccl_operation& op) const {
    return fmt::format(
        "{}: rank {} reached its deadline; another rank has not come to it, or makes other calls",
        op.name(), groups_.front()->rank);
  }

  void look_at(nccl_group& group) {
    while (!group.under_way.empty()) {
      nccl_operation& front = *group.under_way.front();
      if (front.told != nullptr && front.heard.done()) compare(group, front);
      if (failure_ || !front.done.done()) break;
      auto op = std::move(group.under_way.front());
      group.under_way.pop_front();
      op->over = true;
      if (op->released) keep(group, std::move(op));
    }
    if (failure_) return;
    ncclResult_t code = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(group.comm, &code);
    if (!accepted(asked)) code = asked;
    nccl_operation* first = group.under_way.empty() ? nullptr : group.under_way.front().get();
    if (!accepted(code)) {
      fail(fmt::format("{}: rank {}: {}", first != nullptr ? first->name() : "between collectives",
                       groups_.front()->rank, nccl_reason("NCCL", code, group.comm)));
      return;
    }
    if (first == nullptr) return;
    if (!first->until && first->ready.done()) first->until = deadline_after(first->patience);
    if (first->until && clock::now() > *first->until) fail(late(*first));
  }

  void compare(const nccl_group& group, nccl_operation& op) {
    const call_text* all = std::exchange(op.told, nullptr);
    const call_text& mine = all[group.rank];
    for (int r = 0; r < group.size; ++r) {
      if (all[r] == mine) continue;
      fail(
          fmt::format("collective {} differs between ranks: rank {} started {}, rank {} started "
                      "{}; all ranks must make the same calls in the same order",
                      op.number, group.rank, mine.data(), r, all[r].data()));
      return;
    }
  }

  void keep(nccl_group& group, std::shared_ptr<nccl_operation> op) {
    std::ranges::move(op->blocks, std::back_inserter(group.blocks));
    op->blocks.clear();
    group.idle.push_back(std::move(op));
  }

  void finalize(deadline until) {
    for (const auto& group : groups_) {
      if (group->comm == nullptr || group->borrowed) continue;
      ncclResult_t code = ncclCommFinalize(group->comm);
      while (code == ncclInProgress && clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
        const ncclResult_t asked = ncclCommGetAsyncError(group->comm, &code);
        if (!accepted(asked)) code = asked;
      }
      if (code != ncclSuccess) continue;  // aborted below
      (void)ncclCommDestroy(group->comm);
      group->comm = nullptr;
    }
    for (const auto& group : groups_) {
      if (group->borrowed) group->comm = nullptr;
    }
  }

  // After an abort, too, copies may be under way.
  [[nodiscard]] bool wait_for_streams(deadline until) const {
    for (const auto& group : groups_) {
      const cuda::event last;
      last.record(group->stream.get());
      while (!last.done()) {
        if (clock::now() > until) return false;
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
    return true;
  }

  // In one NCCL group: all are told to end before any of them waits for its kernels.
  void abort() noexcept {
    (void)ncclGroupStart();
    for (const auto& group : groups_) {
      if (group->comm != nullptr) (void)ncclCommAbort(std::exchange(group->comm, nullptr));
    }
    (void)ncclGroupEnd();
  }

  void watch() {
    (void)cudaSetDevice(device_);  // not another one, which calls would set up
    std::unique_lock guard(mutex_);
    while (!stopping_) {
      changed_.wait_for(guard, std::chrono::milliseconds(20));
      if (!stopping_) look();
    }
  }

  const int device_;
  const nccl_options options_;
  const std::shared_ptr<rank_notices> notices_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<cuda::stream> own_compute_;
  std::vector<std::unique_ptr<nccl_group>> groups_;
  std::optional<failure> failure_;
  bool stopping_ = false;
  const int exceptions_ = std::uncaught_exceptions();
  std::thread watcher_;
};

}  // namespace mfsdp::inline MFSDP_ABI::detail
