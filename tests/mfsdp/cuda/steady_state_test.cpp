// What a repeated update costs beside its arithmetic: nothing.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "emulation/emulation.hpp"
#include "emulation/session.hpp"
#include "mfsdp/backend/cuda.hpp"
#include "mfsdp/optimizer/adamw.hpp"
#include "mfsdp/optimizer/muon.hpp"
#include "support/device_trial.hpp"

namespace cuda_steady_state_test {

using namespace mfsdp;

namespace {

// What the second update of a rule calls.
template <class O>
emulation::counters second_update_calls(const O& rule, matrix_shape shape) {
  mfsdp_test::device_trial<O, cuda_backend> trial(rule, cuda_backend{}, shape);
  trial.update(1);
  const emulation::counters before = emulation::counts();
  trial.update(2);
  const emulation::counters after = emulation::counts();
  CHECK(after.allocations == before.allocations);
  CHECK(after.host_synchronisations == before.host_synchronisations);
  CHECK(after.copies == before.copies);
  return {.launches = after.launches - before.launches, .matmuls = after.matmuls - before.matmuls};
}

}  // namespace

TEST_CASE("AdamW is one kernel") {
  const emulation::session machine;
  const auto calls = second_update_calls(adamw{}, {1, 1000});
  CHECK(calls.launches == 1);
  CHECK(calls.matmuls == 0);
}

TEST_CASE("Newton-Schulz is three products an iteration and nothing else") {
  const emulation::session machine;
  const auto rule_of = [](int steps) {
    muon rule;
    rule.form.orthogonalization.steps = steps;
    rule.form.orthogonalization.form = newton_schulz_form::direct;
    return rule;
  };
  for (const matrix_shape shape : {matrix_shape{30, 40}, {40, 30}, {32, 32}}) {
    const auto five = second_update_calls(rule_of(5), shape);
    const auto seven = second_update_calls(rule_of(7), shape);
    CHECK(five.matmuls == 15);
    CHECK(seven.matmuls == 21);
    CHECK(seven.launches == five.launches);
    // Momentum, two of the norm, normalisation, the step; poison of a sum in checked builds.
    CHECK(five.launches <= 5 + (checked ? 2 : 0));
  }
}

TEST_CASE("what the device computes is what the host does") {
  const emulation::session machine;
  const matrix_shape shape{24, 40};
  for (const muon& rule : {muon::keller(), muon::gram(), muon::nvidia()}) {
    mfsdp_test::device_trial<muon, cuda_backend> device(rule, cuda_backend{}, shape);
    mfsdp_test::device_trial<muon, eigen_backend> host(rule, eigen_backend{}, shape);
    for (int step = 1; step <= 3; ++step) {
      device.update(step, 1.0 / step);
      host.update(step, 1.0 / step);
    }
    const auto on_device = device.parameter();
    const auto on_host = host.parameter();
    float error = 0;
    for (std::size_t i = 0; i < on_host.size(); ++i) {
      error = std::max(error, std::abs(on_device[i] - on_host[i]));
    }
    CHECK(error < 2e-5f);
  }
}

}  // namespace cuda_steady_state_test
