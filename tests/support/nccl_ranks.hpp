// Ranks of the emulated NCCL, each a thread with a device, a stream and a communicator that blocks.
#pragma once

#include <doctest/doctest.h>
#include <nccl.h>

#include <thread>
#include <vector>

#include "mfsdp/cuda/runtime.hpp"

namespace mfsdp_test {

struct nccl_rank {
  int rank;
  ncclComm_t comm = nullptr;  // null: the body has ended it
  mfsdp::cuda::stream stream{};
};

// Calls body(nccl_rank&) for each rank, on the device of its number, and ends the communicators
// when all have returned.
template <class Body>
void on_each_rank(int size, const Body& body) {
  ncclUniqueId id{};
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  const auto in_threads = [size](const auto& each) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&each, rank] {
        cudaSetDevice(rank);
        each(rank);
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  std::vector<ncclComm_t> left(static_cast<std::size_t>(size));
  in_threads([&](int rank) {
    nccl_rank here{.rank = rank};
    CHECK(ncclCommInitRank(&here.comm, size, id, rank) == ncclSuccess);
    body(here);
    left[static_cast<std::size_t>(rank)] = here.comm;
  });
  in_threads([&](int rank) {
    const ncclComm_t comm = left[static_cast<std::size_t>(rank)];
    if (comm != nullptr) ncclCommDestroy(comm);
  });
}

}  // namespace mfsdp_test
