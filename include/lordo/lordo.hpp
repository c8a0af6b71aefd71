// lordo: training across sites that meet rarely. Everything that a host compiler needs, beside
// mfsdp/mfsdp.hpp.
#pragma once

#include "lordo/concepts.hpp"
#include "lordo/optimizer/low_rank.hpp"
#include "lordo/periods.hpp"
#include "lordo/projector/power_step.hpp"
#include "lordo/projector/random.hpp"
#include "lordo/projector/svd.hpp"
#include "lordo/subspace.hpp"
