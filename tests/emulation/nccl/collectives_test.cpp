// The emulated NCCL: what it moves, when, and what it refuses.
#include <doctest/doctest.h>

#include <array>
#include <thread>
#include <vector>

#include "emulation/nccl.hpp"
#include "emulation/session.hpp"
#include "mfsdp/cuda/runtime.hpp"
#include "mfsdp/dtype.hpp"

namespace {

using emulation::configuration, emulation::session;

// What a rank has: a device, a stream, a communicator, and memory on the device.
struct nccl_rank {
  int rank, size;
  ncclComm_t comm = nullptr;
  mfsdp::cuda::stream stream{};

  nccl_rank(const ncclUniqueId& id, int which, int ranks) : rank(which), size(ranks) {
    REQUIRE(ncclCommInitRank(&comm, size, id, rank) == ncclSuccess);
  }

  template <class T>
  T* put(const std::vector<T>& values) {
    void* memory = nullptr;
    REQUIRE(cudaMalloc(&memory, values.size() * sizeof(T)) == cudaSuccess);
    REQUIRE(cudaMemcpyAsync(memory, values.data(), values.size() * sizeof(T),
                            cudaMemcpyHostToDevice, stream.get()) == cudaSuccess);
    return static_cast<T*>(memory);
  }
  template <class T>
  std::vector<T> take(T* memory, std::size_t count) {
    std::vector<T> values(count);
    REQUIRE(cudaMemcpyAsync(values.data(), memory, count * sizeof(T), cudaMemcpyDeviceToHost,
                            stream.get()) == cudaSuccess);
    cudaFree(memory);
    return values;
  }
};

// Calls body(rank) in a thread for each rank, and ends the communicators.
template <class Body>
void on_each_rank(int size, const Body& body) {
  ncclUniqueId id{};
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      cudaSetDevice(rank);
      nccl_rank here(id, rank, size);
      body(here);
      if (here.comm != nullptr) ncclCommDestroy(here.comm);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void expect_nccl_error(std::string_view part) {
  const auto found = emulation::take_errors();
  REQUIRE_MESSAGE(!found.empty(), "expected an error with: " << part);
  CHECK_MESSAGE(found[0].find(part) != std::string::npos, found[0] << "\nexpected: " << part);
}

constexpr std::chrono::milliseconds soon{200};

}  // namespace

TEST_CASE("broadcasts of uneven parts in a group gather them on every rank") {
  const session gpus(configuration{.devices = 3});
  on_each_rank(3, [](nccl_rank& here) {
    // Rank r owns r + 1 elements; rank 0 sends from where it receives.
    const std::array<std::size_t, 3> first{0, 1, 3};
    const std::vector<float> own(static_cast<std::size_t>(here.rank) + 1,
                                 static_cast<float>(here.rank));
    float* const shard = here.put(own);
    float* const full = here.put(std::vector<float>(6));
    REQUIRE(ncclGroupStart() == ncclSuccess);
    for (int root = 0; root < 3; ++root) {
      const auto at = static_cast<std::size_t>(root);
      REQUIRE(ncclBroadcast(shard, full + first[at], at + 1, ncclFloat32, root, here.comm,
                            here.stream.get()) == ncclSuccess);
    }
    REQUIRE(ncclGroupEnd() == ncclSuccess);
    CHECK(here.take(full, 6) == std::vector<float>{0, 1, 1, 2, 2, 2});
    here.take(shard, 1);
  });
  CHECK(emulation::counts().nccl_groups == 3);
  CHECK(emulation::counts().nccl_calls == 9);
}

TEST_CASE("sums begin after the root and round at each hop") {
  const session gpus(configuration{.devices = 3});
  using mfsdp::bfloat16;
  on_each_rank(3, [](nccl_rank& here) {
    // In bfloat16 256 + 1 = 256, but 1 + 1 + 256 = 258.
    const std::array<float, 3> terms{1, 256, 1};
    const bfloat16 own(terms[static_cast<std::size_t>(here.rank)]);
    for (const auto& [root, sum] : {std::pair(1, 258.0f), std::pair(0, 256.0f)}) {
      bfloat16* const from = here.put(std::vector{own});
      bfloat16* const to = here.put(std::vector{bfloat16(-1.0f)});
      REQUIRE(ncclReduce(from, to, 1, ncclBfloat16, ncclSum, root, here.comm, here.stream.get()) ==
              ncclSuccess);
      CHECK(static_cast<float>(here.take(to, 1)[0]) == (here.rank == root ? sum : -1.0f));
      here.take(from, 1);
    }
    float* const all = here.put(std::vector<float>{1, 2, static_cast<float>(here.rank)});
    REQUIRE(ncclAllReduce(all, all, 3, ncclFloat32, ncclSum, here.comm, here.stream.get()) ==
            ncclSuccess);
    CHECK(here.take(all, 3) == std::vector<float>{3, 6, 3});
  });
}

TEST_CASE("messages of a group pass each other, those one after the other hang") {
  const session gpus(configuration{.devices = 2, .patience = soon});
  on_each_rank(2, [](nccl_rank& here) {
    int* const own = here.put(std::vector{here.rank});
    int* const other = here.put(std::vector{-1});
    const auto exchange = [&] {
      ncclSend(own, 1, ncclInt32, 1 - here.rank, here.comm, here.stream.get());
      ncclRecv(other, 1, ncclInt32, 1 - here.rank, here.comm, here.stream.get());
    };
    ncclGroupStart();
    exchange();
    ncclGroupEnd();
    CHECK(here.take(other, 1)[0] == 1 - here.rank);
    CHECK(emulation::errors().empty());
    exchange();
    CHECK(cudaStreamSynchronize(here.stream.get()) == cudaErrorLaunchTimeout);
    ncclCommAbort(std::exchange(here.comm, nullptr));
    here.take(own, 1);
    here.take(other, 1);
  });
  expect_nccl_error("does not get beyond ncclSend of 1 elements");
}
