// expect: mfsdp: gathered repeats an update on every rank, so it cannot hold a PeriodicOptimizer
#include "mfsdp/optimizer/gathered.hpp"
#include "mfsdp/optimizer/muon.hpp"
#include "support/local_momentum.hpp"

#ifdef MFSDP_COMPILE_FAIL
mfsdp::gathered rule{mfsdp_test::local_momentum<true>{}};
#else
mfsdp::gathered rule{mfsdp::muon{}};
#endif
