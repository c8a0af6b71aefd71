// A model in memory that the host cannot touch trains as one in that of the host, bit for bit.
#include <doctest/doctest.h>

#include "support/remote_training.hpp"

namespace remote_test {

namespace {

using mfsdp_test::remote_backend;

constexpr auto in_float = [](auto comm, auto memory) {
  return mfsdp::sharded_model{toy::odd_spec(),          comm,
                              mfsdp::owner_placement{}, toy::optimizers(),
                              mfsdp::model_options{},   memory};
};

}  // namespace

TEST_CASE("float, at any number of ranks, clipped or not, is that of eigen_backend") {
  for (const int ranks : {1, 2, 3}) {
    for (const double max_norm : {0.0, 0.5}) {
      CAPTURE(ranks);
      CAPTURE(max_norm);
      const mfsdp_test::host_training how{.max_norm = max_norm};
      const auto remote = mfsdp_test::trained_in<remote_backend<>>(ranks, how, in_float);
      CHECK(remote == mfsdp_test::trained_in<mfsdp::eigen_backend>(ranks, how, in_float));
      CHECK(remote != mfsdp_test::trained_in<remote_backend<>>(ranks, {.steps = 1}, in_float));
    }
  }
}

}  // namespace remote_test
