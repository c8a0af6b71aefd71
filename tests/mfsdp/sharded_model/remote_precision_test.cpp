// A model in memory that the host cannot touch, stored in 16 bits.
#include <doctest/doctest.h>

#include "support/remote_training.hpp"

namespace remote_precision_test {

namespace {

using mfsdp_test::remote_backend;

// All that is stored and moved has 16 bits, and every kind of conversion happens.
constexpr auto in_bfloat16 = [](auto comm, auto memory) {
  using mfsdp::bfloat16;
  return mfsdp::sharded_model{toy::odd_spec(),
                              comm,
                              mfsdp::owner_placement{},
                              toy::optimizers(),
                              mfsdp::precision<bfloat16, bfloat16, bfloat16, bfloat16, bfloat16>{},
                              mfsdp::model_options{},
                              memory};
};

}  // namespace

TEST_CASE("bfloat16, rounded stochastically, is that of eigen_backend") {
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const mfsdp_test::host_training how;
    const auto remote = mfsdp_test::trained_in<remote_backend<>>(ranks, how, in_bfloat16);
    CHECK(remote == mfsdp_test::trained_in<mfsdp::eigen_backend>(ranks, how, in_bfloat16));
  }
}

}  // namespace remote_precision_test
