// low_rank_options: the points in which forms of LoRDO differ.
#pragma once

#include "mfsdp/config.hpp"

namespace lordo::inline MFSDP_ABI {

// Where the basis of a site comes from.
enum class basis_source {
  global,  // all sites share one, of their mean pseudo-gradient, from sync to sync
  local,   // each has its own, of its gradient at the first update of a round
};

// What the full-rank term is made of.
enum class full_rank_term {
  gradient,   // the clipped gradient
  residual,   // what the basis leaves out of it
  projected,  // what the basis keeps of it, feedback included: nothing outside the subspace
};

enum class first_basis {
  gradient,  // singular vectors of the mean first gradient (local: of a site's own)
  random,    // drawn, the same on all sites: no exchange and no decomposition at the start
};

enum class decay_source {
  anchor,     // X <- X - lr wd X_a: the same on all sites and known at the sync
  parameter,  // X <- (1 - lr wd) X
};

}  // namespace lordo::inline MFSDP_ABI
