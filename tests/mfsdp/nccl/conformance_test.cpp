#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "conformance/collective.hpp"
#include "support/emulated_gpus.hpp"

namespace nccl_conformance_test {

using namespace mfsdp;
using mfsdp_test::emulated_gpus;
using mfsdp_test::emulated_gpus_with_memory;
using mfsdp_test::tight_options;

TEST_CASE("nccl_collective conforms with operands on the devices") {
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    emulated_gpus_with_memory world(ranks, tight_options());
    mfsdp_test::collective_conformance(world);
  }
  for (const int ranks : {2, 4}) {  // without hundreds of operations, each with buffers of its own
    CAPTURE(ranks);
    emulated_gpus_with_memory world(ranks, tight_options());
    mfsdp_test::all_gather_conformance<float>(world);
    mfsdp_test::reduce_scatter_conformance<double>(world);
    mfsdp_test::narrow_conformance<bfloat16>(world);
    mfsdp_test::outstanding_conformance(world);
    mfsdp_test::request_conformance(world);
  }
}

TEST_CASE("nccl_collective conforms with operands in host memory") {
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    emulated_gpus world(ranks, tight_options());
    mfsdp_test::collective_conformance(world);
  }
}

TEST_CASE("nccl_collective conforms when it is split") {
  for (const int ranks : {1, 4}) {
    CAPTURE(ranks);
    emulated_gpus_with_memory world(ranks, tight_options());
    mfsdp_test::split_conformance(world);
  }
}

TEST_CASE("nccl_collective conforms without comparing calls") {
  nccl_options options = tight_options();
  options.compare_calls = false;
  emulated_gpus_with_memory world(3, options);
  mfsdp_test::outstanding_conformance(world);
  mfsdp_test::reduce_scatter_conformance<bfloat16, float>(world);
}

TEST_CASE("sums by NCCL are sums, if not in the order of ranks") {
  nccl_options options = tight_options();
  options.sums = sum_order::nccl;
  for (const int ranks : {1, 2, 3, 4}) {
    emulated_gpus world(ranks, options);
    mfsdp_test::all_gather_conformance<float>(world);
    int different = 0;
    const auto maps = mfsdp_test::piece_maps(ranks);
    mfsdp_test::on_every_rank(world, [&](nccl_collective& collective, const auto& complain) {
      for (const bool everywhere : {false, true}) {
        for (const auto into : {reduce_into::write, reduce_into::add}) {
          for (auto map : maps) {
            if (everywhere) map = mfsdp_test::for_all_reduce(map);
            auto e = mfsdp_test::reduction_of<float>(collective, map, into, everywhere);
            const std::vector<float> before = e.output.values;
            auto request = everywhere
                               ? mfsdp_test::start_all_reduce(collective, e, into, "sum")
                               : mfsdp_test::start_reduce_scatter(collective, e, into, "sum");
            request.wait(mfsdp_test::soon());
            for (std::size_t i = 0; i < before.size(); ++i) {
              const float size = std::abs(e.expected[i]) + 1e7f * (e.expected[i] != before[i]);
              if (std::abs(e.output.values[i] - e.expected[i]) > 1e-6f * size) {
                complain("a sum is wrong over " + map.name);
                break;
              }
              if (collective.rank() == 0) different += e.output.values[i] != e.expected[i];
            }
          }
        }
      }
    });
    CHECK((different > 0) == (ranks > 2));
  }
}

}  // namespace nccl_conformance_test
