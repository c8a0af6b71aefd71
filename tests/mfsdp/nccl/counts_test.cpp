#include <doctest/doctest.h>

#include <barrier>
#include <chrono>
#include <memory>
#include <vector>

#include "conformance/collective.hpp"
#include "support/emulated_gpus.hpp"

namespace nccl_counts_test {

using namespace mfsdp;
using mfsdp_test::backend_of;
using mfsdp_test::emulated_gpus_with_memory;
using mfsdp_test::tight_options;

namespace {

// What all ranks together ask of the machine while each does `body` once more, after it has done it
// twice.
template <class Prepare>
emulation::counters counts_of(int ranks, const nccl_options& options, const Prepare& prepare) {
  emulated_gpus_with_memory world(ranks, options);
  std::barrier all(ranks);
  emulation::counters before;
  emulation::counters after;
  world.run([&](nccl_collective collective) {
    const cuda_backend backend = backend_of(collective);
    auto body = prepare(collective, backend);
    for (int i = 0; i < 2; ++i) {
      body();
      backend.wait();
    }
    collective.synchronize(mfsdp_test::soon());
    all.arrive_and_wait();
    if (collective.rank() == 0) before = emulation::counts();
    all.arrive_and_wait();
    body();
    all.arrive_and_wait();
    if (collective.rank() == 0) after = emulation::counts();
    all.arrive_and_wait();
    backend.wait();
  });
  emulation::counters difference;
  difference.allocations = after.allocations - before.allocations;
  difference.host_synchronisations = after.host_synchronisations - before.host_synchronisations;
  difference.launches = after.launches - before.launches;
  difference.copies = after.copies - before.copies;
  difference.nccl_calls = after.nccl_calls - before.nccl_calls;
  difference.nccl_groups = after.nccl_groups - before.nccl_groups;
  return difference;
}

nccl_options not_comparing(sum_order sums = sum_order::rank) {
  nccl_options options = tight_options();
  options.compare_calls = false;
  options.sums = sums;
  return options;
}

// Three pieces; rank 1 owns two of them, the last of three ranks none.
const std::vector<piece>& three_pieces() {
  static const std::vector<piece> pieces{{0, 0, 0, 100}, {1, 100, 0, 50}, {1, 200, 50, 30}};
  return pieces;
}

struct unit_buffers {
  device_buffer<float> shard;
  device_buffer<float> full;
  explicit unit_buffers(const cuda_backend& backend)
      : shard(backend.allocate<float>(100)), full(backend.allocate<float>(230)) {
    backend.fill(shard.span(), 1.0f);
    backend.fill(full.span(), 1.0f);
  }
};

emulation::counters counts_of_gather(const nccl_options& options) {
  return counts_of(3, options, [](nccl_collective collective, const cuda_backend& backend) {
    return [collective, buffers = std::make_shared<unit_buffers>(backend)]() mutable {
      auto request = collective.start_all_gather(std::span<const float>(buffers->shard.span()),
                                                 buffers->full.span(),
                                                 std::span<const piece>(three_pieces()), "gather");
      request.wait(mfsdp_test::soon());
      request.drain(mfsdp_test::soon());
    };
  });
}

emulation::counters counts_of_sum(const nccl_options& options, reduce_into into) {
  return counts_of(3, options, [=](nccl_collective collective, const cuda_backend& backend) {
    return [=, buffers = std::make_shared<unit_buffers>(backend)]() mutable {
      const std::span<const float> full = buffers->full.span();
      const std::span<const piece> pieces = three_pieces();
      auto request =
          collective.start_reduce_scatter(full, buffers->shard.span(), pieces, into, "sum");
      request.wait(mfsdp_test::soon());
      request.drain(mfsdp_test::soon());
    };
  });
}

}  // namespace

TEST_CASE("a gather is a broadcast for each piece, in one group, and blocks nobody") {
  const auto counts = counts_of_gather(not_comparing());
  CHECK(counts.nccl_groups == 3);
  CHECK(counts.nccl_calls == 3 * 3);
  CHECK(counts.launches == 0);
  CHECK(counts.copies == 0);
  CHECK(counts.allocations == 0);
  CHECK(counts.host_synchronisations == 0);
}

TEST_CASE("comparing calls costs one more group and two small copies, and blocks nobody either") {
  nccl_options options = tight_options();
  options.compare_calls = true;
  const auto counts = counts_of_gather(options);
  CHECK(counts.nccl_groups == 3 * 2);
  CHECK(counts.nccl_calls == 3 * (3 + 3));
  CHECK(counts.copies == 3 * 2);
  CHECK(counts.allocations == 0);
  CHECK(counts.host_synchronisations == 0);
}

TEST_CASE("a sum in rank order is a send to each owner and a kernel for each of its pieces") {
  for (const auto into : {reduce_into::write, reduce_into::add}) {
    const auto counts = counts_of_sum(not_comparing(), into);
    CHECK(counts.nccl_groups == 3);
    CHECK(counts.nccl_calls == 3 * (2 + 2));  // of each piece two sends and two receives
    CHECK(counts.launches == 3);
    CHECK(counts.copies == 0);
    CHECK(counts.allocations == 0);
    CHECK(counts.host_synchronisations == 0);
  }
}

TEST_CASE("a sum by NCCL is a reduction for each piece, in one group") {
  const auto written = counts_of_sum(not_comparing(sum_order::nccl), reduce_into::write);
  CHECK(written.nccl_groups == 3);
  CHECK(written.nccl_calls == 3 * 3);
  CHECK(written.launches == 0);
  const auto added = counts_of_sum(not_comparing(sum_order::nccl), reduce_into::add);
  CHECK(added.launches == 3);
  CHECK(added.allocations == 0);
  CHECK(added.host_synchronisations == 0);
}

}  // namespace nccl_counts_test
