// lordo: training across sites that meet rarely. Everything that a host compiler needs, beside
// mfsdp/mfsdp.hpp.
#pragma once

#include "lordo/concepts.hpp"
#include "lordo/diagnostics.hpp"
#include "lordo/optimizer/averaged.hpp"
#include "lordo/optimizer/exchange.hpp"
#include "lordo/optimizer/galore.hpp"
#include "lordo/optimizer/ldadam.hpp"
#include "lordo/optimizer/local_steps.hpp"
#include "lordo/optimizer/low_rank.hpp"
#include "lordo/optimizer/outer.hpp"
#include "lordo/periods.hpp"
#include "lordo/projector/power_step.hpp"
#include "lordo/projector/random.hpp"
#include "lordo/projector/svd.hpp"
#include "lordo/subspace.hpp"
#include "lordo/wall_clock.hpp"
