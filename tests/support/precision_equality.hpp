// Training in some precision, on owners and on full copies, against a plain loop.
#pragma once

#include <doctest/doctest.h>

#include <cmath>

#include "support/toy_training.hpp"

namespace toy {

template <class Precision>
void check_equal_bits(Precision types) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    CAPTURE(ranks);
    const toy::settings how{.ranks = ranks, .options = {.rounding_seed = 5}};
    const auto plain = toy::run_plain<Precision>(toy::odd_spec(), toy::optimizers(), how);
    const auto ignore = [](auto&) {};
    CHECK(toy::run_sharded(toy::odd_spec(), mfsdp::owner_placement{}, toy::optimizers(), how,
                           ignore, types) == plain);
    CHECK(toy::run_sharded(toy::odd_spec(), mfsdp::replicated_placement{}, toy::optimizers(), how,
                           ignore, types) == plain);
    for (const double norm : plain.norms) CHECK(norm > how.max_norm);
    for (const double loss : plain.losses) CHECK(std::isfinite(loss));
  }
}

}  // namespace toy
