// The rules of the library on cuda_backend: they conform, and their kernels are on the list.
#include <doctest/doctest.h>

#include "conformance/optimizer.hpp"
#include "emulation/session.hpp"
#include "mfsdp/backend/cuda.hpp"
#include "mfsdp/optimizer/adamw.hpp"
#include "mfsdp/optimizer/muon.hpp"
#include "mfsdp/optimizer/normuon.hpp"
#include "mfsdp/optimizer/sgd.hpp"

namespace cuda_optimizers_test {

using namespace mfsdp;
using mfsdp_test::optimizer_conformance;

TEST_CASE("elementwise rules conform on a device") {
  const emulation::session machine;
  const cuda_backend backend;
  optimizer_conformance(adamw{}, backend);
  optimizer_conformance(adamw{.decay = adam_decay::cautious}, backend);
  optimizer_conformance(adamw{.decay = adam_decay::l2}, backend);
  optimizer_conformance(sgd{}, backend);
  optimizer_conformance(sgd{.momentum = 0.9, .weight_decay = 0.1, .nesterov = true}, backend);
}

TEST_CASE("Muon conforms on a device") {
  const emulation::session machine;
  const cuda_backend backend;
  optimizer_conformance(muon::keller(), backend);
  optimizer_conformance(muon::gram(), backend);
  muon cautious = muon::dion();
  cautious.form.decay = decay_rule::cautious;
  optimizer_conformance(cautious, backend);
}

TEST_CASE("NorMuon conforms on a device") {
  const emulation::session machine;
  optimizer_conformance(normuon{}, cuda_backend{});
}

}  // namespace cuda_optimizers_test
