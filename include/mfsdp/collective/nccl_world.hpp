// nccl_world: the GPUs of a job, a process for each; nccl_threads: those of one process, a thread
// for each.
#pragma once

#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "mfsdp/collective/nccl.hpp"
#include "mfsdp/collective/rendezvous.hpp"

namespace mfsdp::inline MFSDP_ABI {

// This process as a rank of a job. Blocks until all ranks have come. A rank that throws, or whose
// process ends, is told to the others at once, over the connections by which they met.
//   mfsdp::nccl_world world;   // under torchrun or srun
//   world.run([&](mfsdp::nccl_collective comm) { ... });
class nccl_world {
 public:
  // Errors: spec_error if the launcher's variables make no sense, or there is no device for this
  // rank; collective_error if the ranks do not meet before nccl_options::timeout.
  explicit nccl_world(job here = job_from_environment(), nccl_options options = {})
      : job_(std::move(here)),
        options_(std::move(options)),
        device_(device_of(job_)),
        meeting_(std::make_shared<rendezvous>(job_, options_.timeout)) {}

  [[nodiscard]] int rank() const { return job_.rank; }
  [[nodiscard]] int size() const { return job_.size; }
  [[nodiscard]] int local_rank() const { return job_.local_rank; }
  [[nodiscard]] int device() const { return device_; }

  // Calls body(nccl_collective) with the device current, and returns when what it has started is
  // over. If a rank throws, its exception leaves its own run; the others throw rank_failure out of
  // their next or current collective.
  template <class Body>
  void run(Body&& body) {
    const auto broadcast = [&](std::span<char> bytes) {
      const std::string all =
          meeting_->share(std::string_view(bytes.data(), bytes.size()), options_.timeout);
      if (all.size() != bytes.size()) {
        throw collective_error("rank 0 runs another version of this program");
      }
      std::memcpy(bytes.data(), all.data(), bytes.size());
    };
    nccl_communicator::by_broadcast(rank(), size(), device_, broadcast, options_, meeting_)
        .run(std::forward<Body>(body));
  }

 private:
  // A process that sees one device has it to itself, whatever its number on the machine.
  static int device_of(const job& here) {
    int devices = 0;
    cuda::require(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
    if (devices == 1) return 0;
    if (here.local_rank < devices) return here.local_rank;
    throw spec_error(fmt::format(
        "rank {} is process {} of its machine, which has {} devices; start one process for each",
        here.rank, here.local_rank, devices));
  }

  job job_;
  nccl_options options_;
  int device_;
  std::shared_ptr<rendezvous> meeting_;
};

namespace detail {

// Notices between threads.
class thread_notices {
 public:
  class of_rank : public rank_notices {
   public:
    of_rank(std::shared_ptr<thread_notices> all, int rank) : all_(std::move(all)), rank_(rank) {}
    void tell(std::string_view cause) override {
      const std::scoped_lock guard(all_->mutex_);
      if (!all_->first_) all_->first_ = failure{rank_, std::string(cause)};
    }
    std::optional<failure> heard() override {
      auto first = all_->first();
      return first && first->rank != rank_ ? first : std::nullopt;
    }

   private:
    std::shared_ptr<thread_notices> all_;
    int rank_;
  };

  [[nodiscard]] std::optional<rank_notices::failure> first() {
    const std::scoped_lock guard(mutex_);
    return first_;
  }

 private:
  std::mutex mutex_;
  std::optional<rank_notices::failure> first_;
};

}  // namespace detail

// Ranks as threads of this process, rank r on devices[r].
class nccl_threads {
 public:
  // Errors: spec_error without devices, or with options that name a stream: each rank has its own.
  explicit nccl_threads(std::vector<int> devices, nccl_options options = {})
      : devices_(std::move(devices)), options_(std::move(options)) {
    if (devices_.empty() || options_.compute) {
      throw spec_error(
          "nccl_threads needs a device at least, and makes the compute streams itself");
    }
  }

  [[nodiscard]] int size() const { return static_cast<int>(devices_.size()); }

  // As thread_world::run.
  template <class Body>
  void run(Body&& body) {
    ncclUniqueId id{};
    detail::require_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
    const auto notices = std::make_shared<detail::thread_notices>();
    std::vector<std::exception_ptr> thrown(devices_.size());
    const auto run_rank = [&](int rank) {
      const auto place = static_cast<std::size_t>(rank);
      const auto own = std::make_shared<detail::thread_notices::of_rank>(notices, rank);
      try {
        nccl_communicator(id, rank, size(), devices_[place], options_, own).run(body);
      } catch (const std::exception& e) {
        own->tell(e.what());
        thrown[place] = std::current_exception();
      } catch (...) {
        own->tell("an exception of unknown type");
        thrown[place] = std::current_exception();
      }
    };
    std::vector<std::thread> threads;
    threads.reserve(devices_.size());
    for (int rank = 0; rank < size(); ++rank) {
      try {
        threads.emplace_back(run_rank, rank);
      } catch (const std::system_error& e) {  // a rank that has failed
        detail::thread_notices::of_rank(notices, rank).tell(e.what());
        thrown[static_cast<std::size_t>(rank)] = std::current_exception();
        break;
      }
    }
    for (std::thread& thread : threads) thread.join();
    if (const auto first = notices->first()) {
      std::rethrow_exception(thrown[static_cast<std::size_t>(first->rank)]);
    }
  }

 private:
  std::vector<int> devices_;
  nccl_options options_;
};

}  // namespace mfsdp::inline MFSDP_ABI
