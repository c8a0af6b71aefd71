// The emulated NCCL: what it moves, when, and what it refuses.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include "emulation/nccl.hpp"
#include "emulation/session.hpp"
#include "mfsdp/dtype.hpp"
#include "support/nccl_ranks.hpp"

namespace {

using emulation::configuration, emulation::session;

using mfsdp_test::nccl_rank, mfsdp_test::on_each_rank;

template <class T>
T* put_on_device(const nccl_rank& here, const std::vector<T>& values) {
  const std::size_t bytes = values.size() * sizeof(T);
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, bytes) == cudaSuccess);
  CHECK(cudaMemcpyAsync(memory, values.data(), bytes, cudaMemcpyDefault, here.stream.get()) ==
        cudaSuccess);
  return static_cast<T*>(memory);
}

// Gives the memory back.
template <class T>
std::vector<T> take_from_device(const nccl_rank& here, T* memory, std::size_t count) {
  std::vector<T> values(count);
  CHECK(cudaMemcpyAsync(values.data(), memory, count * sizeof(T), cudaMemcpyDefault,
                        here.stream.get()) == cudaSuccess);
  CHECK(cudaFree(memory) == cudaSuccess);
  return values;
}

}  // namespace

TEST_CASE("broadcasts of uneven parts in a group gather them on every rank") {
  const session gpus(configuration{.devices = 3});
  on_each_rank(3, [](nccl_rank& here) {
    // Rank r owns r + 1 elements; rank 0 sends from where it receives.
    const std::array<std::size_t, 3> first{0, 1, 3};
    const std::vector<float> own(static_cast<std::size_t>(here.rank) + 1,
                                 static_cast<float>(here.rank));
    float* const shard = put_on_device(here, own);
    float* const full = put_on_device(here, std::vector<float>(6));
    CHECK(ncclGroupStart() == ncclSuccess);
    for (int root = 0; root < 3; ++root) {
      const auto at = static_cast<std::size_t>(root);
      CHECK(ncclBroadcast(shard, full + first[at], at + 1, ncclFloat32, root, here.comm,
                          here.stream.get()) == ncclSuccess);
    }
    CHECK(ncclGroupEnd() == ncclSuccess);
    CHECK(take_from_device(here, full, 6) == std::vector<float>{0, 1, 1, 2, 2, 2});
    take_from_device(here, shard, 1);
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
      bfloat16* const from = put_on_device(here, std::vector{own});
      bfloat16* const to = put_on_device(here, std::vector{bfloat16(-1.0f)});
      CHECK(ncclReduce(from, to, 1, ncclBfloat16, ncclSum, root, here.comm, here.stream.get()) ==
            ncclSuccess);
      CHECK(static_cast<float>(take_from_device(here, to, 1)[0]) ==
            (here.rank == root ? sum : -1.0f));
      take_from_device(here, from, 1);
    }
    float* const all = put_on_device(here, std::vector<float>{1, 2, static_cast<float>(here.rank)});
    CHECK(ncclAllReduce(all, all, 3, ncclFloat32, ncclSum, here.comm, here.stream.get()) ==
          ncclSuccess);
    CHECK(take_from_device(here, all, 3) == std::vector<float>{3, 6, 3});
  });
}

TEST_CASE("messages of a group pass each other, those one after the other hang") {
  const session gpus(configuration{.devices = 2, .patience = std::chrono::milliseconds(200)});
  on_each_rank(2, [](nccl_rank& here) {
    int* const own = put_on_device(here, std::vector{here.rank});
    int* other = put_on_device(here, std::vector{-1});
    const auto exchange = [&] {
      ncclSend(own, 1, ncclInt32, 1 - here.rank, here.comm, here.stream.get());
      ncclRecv(other, 1, ncclInt32, 1 - here.rank, here.comm, here.stream.get());
    };
    ncclGroupStart();
    exchange();
    ncclGroupEnd();
    CHECK(take_from_device(here, other, 1)[0] == 1 - here.rank);
    other = put_on_device(here, std::vector{-1});
    exchange();
    CHECK(cudaStreamSynchronize(here.stream.get()) == cudaErrorLaunchTimeout);
    ncclCommAbort(std::exchange(here.comm, nullptr));
    take_from_device(here, own, 1);
    take_from_device(here, other, 1);
  });
  const auto found = emulation::take_errors();
  REQUIRE(found.size() == 2);
  CHECK(found[0].find("does not get beyond ncclSend of 1 elements") != std::string::npos);
}
