// expect GATHERED_ELEMENTWISE: mfsdp: gathered is for optimizers that need whole matrices, this
// expect GATHERED_PERIODIC: mfsdp: gathered repeats an update on every rank, so it cannot hold a
// expect LOCAL_STEPS_OF_AVERAGED: lordo: 'inner' is to know one site, but this optimizer exchanges
// expect NARROW_SUM: mfsdp: precision sums gradients in Reduce, which is Gradient or float, never
#include "lordo/optimizer/averaged.hpp"
#include "lordo/optimizer/local_steps.hpp"
#include "mfsdp/optimizer/adamw.hpp"
#include "mfsdp/optimizer/gathered.hpp"
#include "mfsdp/optimizer/muon.hpp"
#include "mfsdp/precision.hpp"
#include "support/local_momentum.hpp"

#if defined(GATHERED_ELEMENTWISE)
mfsdp::gathered gathered{mfsdp::adamw{}};
#elif defined(GATHERED_PERIODIC)
mfsdp::gathered gathered{mfsdp_test::local_momentum<true>{}};
#else
mfsdp::gathered gathered{mfsdp::muon{}};
#endif

#ifdef LOCAL_STEPS_OF_AVERAGED
lordo::local_steps local{.inner = lordo::averaged{.inner = mfsdp::adamw{}}};
#else
lordo::local_steps local{.inner = mfsdp::adamw{}};
#endif

#ifdef NARROW_SUM
using sum = mfsdp::bfloat16;
#else
using sum = float;
#endif
mfsdp::precision<mfsdp::bfloat16, float, sum> types;
