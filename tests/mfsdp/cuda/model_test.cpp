// A model on one device, without NCCL, against the same one on the host.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "emulation/session.hpp"
#include "mfsdp/backend/cuda.hpp"
#include "mfsdp/collective/device_self.hpp"
#include "support/remote_training.hpp"

namespace cuda_model_test {

using namespace mfsdp;

namespace {

// Everything that the model holds after a training without clipping.
template <class C, class B>
std::vector<float> trained_floats(C collective, const B& backend) {
  sharded_model model{toy::odd_spec(),   collective,      owner_placement{},
                      toy::optimizers(), model_options{}, backend};
  model.initialize(toy::initialize);
  const auto bytes = mfsdp_test::train_from_host(model, {.max_norm = 0});
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

}  // namespace

TEST_CASE("a model on one device trains as on the host") {
  const emulation::session machine;
  const cuda_backend backend;
  const auto device = trained_floats(device_self(backend), backend);
  const auto host = trained_floats(self{}, eigen_backend{});
  REQUIRE(device.size() == host.size());
  float error = 0;
  float largest = 0;
  for (std::size_t i = 0; i < host.size(); ++i) {
    error = std::max(error, std::abs(device[i] - host[i]));
    largest = std::max(largest, std::abs(host[i]));
  }
  CHECK(largest > 0.1f);
  CHECK(error < 1e-4f * largest);
}

}  // namespace cuda_model_test
