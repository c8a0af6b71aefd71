// The rules of lordo on cuda_backend: they conform, and their kernels are on the list.
#include <doctest/doctest.h>

#include "conformance/optimizer.hpp"
#include "emulation/session.hpp"
#include "lordo/lordo.hpp"
#include "mfsdp/backend/cuda.hpp"
#include "support/local_steps_rules.hpp"
#include "support/one_site.hpp"

namespace cuda_lordo_test {

using namespace lordo;
using mfsdp::cuda_backend;
using mfsdp_test::on_one_site;
using mfsdp_test::optimizer_conformance;

TEST_CASE("low-rank Adam and Muon conform on a device") {
  const emulation::session machine;
  const cuda_backend backend;
  optimizer_conformance(low_rank_adam<>{.rank = 2}, backend);
  optimizer_conformance(low_rank_adam<>{.rank = 2,
                                        .clip = {.rule = clip_rule::norm, .threshold = 1.0},
                                        .feedback = error_feedback::full,
                                        .weight_decay = 0.1},
                        backend);
  optimizer_conformance(low_rank_muon<>{.rank = 2}, backend);
}

TEST_CASE("LDAdam and GaLore conform on a device") {
  const emulation::session machine;
  const cuda_backend backend;
  optimizer_conformance(on_one_site{ldadam{.rank = 2}}, backend);
  optimizer_conformance(on_one_site{galore{.rank = 2, .refresh = 2}}, backend);
}

TEST_CASE("averaged rules and local steps conform on a device") {
  const emulation::session machine;
  const cuda_backend backend;
  optimizer_conformance(on_one_site{averaged{.inner = mfsdp::adamw{}}}, backend);
  optimizer_conformance(on_one_site{mfsdp_test::local_pieces}, backend);
  optimizer_conformance(on_one_site{mfsdp_test::local_matrices(2, true)}, backend);
}

}  // namespace cuda_lordo_test
