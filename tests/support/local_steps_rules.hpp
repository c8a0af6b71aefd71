// The local_steps on which conformance is tested: of pieces and of matrices, with everything on.
#pragma once

#include "lordo/optimizer/local_steps.hpp"
#include "mfsdp/optimizer/adamw.hpp"
#include "mfsdp/optimizer/muon.hpp"

namespace mfsdp_test {

inline const lordo::local_steps local_pieces{
    .inner = mfsdp::adamw{}, .periods = {.parameters = 2}, .outer = lordo::outer_nesterov{}};

inline auto local_matrices(mfsdp::index_t rank, bool feedback) {
  return lordo::local_steps{
      .inner = mfsdp::muon{},
      .periods = {.parameters = 2, .first_moment = 3},
      .outer = lordo::outer_nesterov{},
      .exchange = lordo::exchange_low_rank{.rank = rank, .feedback = feedback}};
}

}  // namespace mfsdp_test
