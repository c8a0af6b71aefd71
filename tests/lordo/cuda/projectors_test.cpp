#include <doctest/doctest.h>

#include "conformance/projector.hpp"
#include "emulation/session.hpp"
#include "lordo/projector/power_step.hpp"
#include "lordo/projector/random.hpp"
#include "lordo/projector/svd.hpp"
#include "mfsdp/backend/cuda.hpp"

namespace cuda_projectors_test {

using mfsdp::cuda_backend;
using mfsdp_test::projector_conformance;

TEST_CASE("projectors conform on a device") {
  const emulation::session machine;
  const cuda_backend backend;
  projector_conformance(lordo::svd{}, backend);
  projector_conformance(lordo::power_step{}, backend);
  projector_conformance(lordo::random_projection{}, backend);
}

}  // namespace cuda_projectors_test
