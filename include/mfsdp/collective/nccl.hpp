// nccl_communicator: ranks as GPUs, each with a process or a thread, over NCCL.
#pragma once

#include <exception>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "mfsdp/collective/nccl_collective.hpp"

namespace mfsdp::inline MFSDP_ABI {

// All ranks, each with a device: makes a communicator and gives it back. Move-only. The destructor
// waits for what is under way, for nccl_options::timeout at most; while an exception passes it
// aborts, which fails the other ranks.
class nccl_communicator {
 public:
  // Of the ranks that present this id. Blocks until all have come. `notices` tells failures between
  // ranks; without it, they learn of them by their deadlines. Errors: spec_error, device_error;
  // collective_error if a rank does not come, or a small gather and sum come out wrong.
  nccl_communicator(const ncclUniqueId& id, int rank, int size, int device,
                    nccl_options options = {}, std::shared_ptr<rank_notices> notices = {})
      : engine_(
            std::make_shared<detail::nccl_engine>(device, std::move(options), std::move(notices))),
        group_(&engine_->create(id, rank, size)) {
    check();
  }

  // broadcast(bytes) brings the bytes of rank 0, a std::span<char>, to all ranks:
  //   [](std::span<char> b) { MPI_Bcast(b.data(), int(b.size()), MPI_CHAR, 0, MPI_COMM_WORLD); }
  template <class Broadcast>
  [[nodiscard]] static nccl_communicator by_broadcast(int rank, int size, int device,
                                                      Broadcast&& broadcast,
                                                      nccl_options options = {},
                                                      std::shared_ptr<rank_notices> notices = {}) {
    ncclUniqueId id{};
    if (rank == 0) detail::require_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
    broadcast(std::span<char>(id.internal));
    return {id, rank, size, device, std::move(options), std::move(notices)};
  }

  // On a communicator of the caller's, which should not block (ncclConfig_t::blocking = 0): NCCL
  // cannot be interrupted otherwise. It is not destroyed; but after a failure it has been aborted,
  // since nothing else ends what is under way, and failed() says so. Meanwhile nobody else uses it.
  [[nodiscard]] static nccl_communicator borrow(ncclComm_t comm, nccl_options options = {},
                                                std::shared_ptr<rank_notices> notices = {}) {
    int device = 0;
    detail::require_nccl(ncclCommCuDevice(comm, &device), "ncclCommCuDevice", comm);
    return {std::make_shared<detail::nccl_engine>(device, std::move(options), std::move(notices)),
            comm};
  }

  nccl_communicator(nccl_communicator&&) = default;
  nccl_communicator& operator=(nccl_communicator&&) = delete;
  ~nccl_communicator() {
    if (engine_ != nullptr) engine_->close();
  }

  [[nodiscard]] nccl_collective collective() const { return {engine_, *group_}; }
  [[nodiscard]] bool failed() const {
    const auto guard = engine_->lock();
    return engine_->failed();
  }
  // Gives up: aborts what is under way, and tells the other ranks why.
  void fail(std::string_view cause) {
    const auto guard = engine_->lock();
    engine_->fail(cause);
  }

  // Calls body(nccl_collective), and returns when what it has started is over. What it throws is
  // told to the other ranks, which then throw rank_failure, and leaves. Errors: also those of what
  // was under way.
  template <class Body>
  void run(Body&& body) {
    try {
      const cuda::device_scope here(engine_->device());
      body(collective());
      engine_->synchronize(deadline_after(engine_->options().timeout));
    } catch (const std::exception& e) {
      fail(e.what());
      throw;
    } catch (...) {
      fail("an exception of unknown type");
      throw;
    }
  }

 private:
  nccl_communicator(std::shared_ptr<detail::nccl_engine> e, ncclComm_t comm)
      : engine_(std::move(e)), group_(&engine_->borrow(comm)) {
    check();
  }

  void check() {
    try {
      collective().check();
    } catch (const std::exception& e) {
      fail(e.what());
      throw;
    }
  }

  std::shared_ptr<detail::nccl_engine> engine_;
  detail::nccl_group* group_;
};

}  // namespace mfsdp::inline MFSDP_ABI
