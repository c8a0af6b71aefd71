// The rules that decompose, on cuda_backend.
#include <doctest/doctest.h>

#include "conformance/optimizer.hpp"
#include "emulation/session.hpp"
#include "mfsdp/backend/cuda.hpp"
#include "mfsdp/optimizer/dion.hpp"
#include "mfsdp/optimizer/shampoo.hpp"
#include "mfsdp/optimizer/soap.hpp"

namespace cuda_preconditioners_test {

using namespace mfsdp;
using mfsdp_test::optimizer_conformance;

TEST_CASE("Dion conforms on a device") {
  const emulation::session machine;
  optimizer_conformance(dion{.rank = 2}, cuda_backend{});
}

TEST_CASE("Shampoo conforms on a device") {
  const emulation::session machine;
  const cuda_backend backend;
  optimizer_conformance(shampoo{.max_preconditioner_dimension = 64}, backend);
  optimizer_conformance(shampoo{.beta1 = 0.9,
                                .beta2 = 0.95,
                                .weight_decay = 0.1,
                                .frequency = 2,
                                .max_preconditioner_dimension = 48,
                                .graft = adam_graft{}},
                        backend);
}

TEST_CASE("SOAP conforms on a device") {
  const emulation::session machine;
  const cuda_backend backend;
  for (soap rule : {soap{}, soap::current_gradient(), soap::eigenvalue_corrected()}) {
    rule.max_preconditioner_dimension = 64;
    optimizer_conformance(rule, backend);
  }
}

}  // namespace cuda_preconditioners_test
