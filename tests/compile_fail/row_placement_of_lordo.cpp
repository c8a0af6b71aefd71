// expect LOW_RANK_ADAM: mfsdp: this optimizer needs whole matrices, which the placement cuts; use
// expect LOW_RANK_MUON: mfsdp: this optimizer needs whole matrices, which the placement cuts; use
// expect LOCAL_MUON: mfsdp: this optimizer needs whole matrices, which the placement cuts; use
// expect AVERAGED_MUON: mfsdp: this optimizer needs whole matrices, which the placement cuts; use
// expect LDADAM: mfsdp: this optimizer needs whole matrices, which the placement cuts; use
// expect GALORE: mfsdp: this optimizer needs whole matrices, which the placement cuts; use
#include "lordo/optimizer/averaged.hpp"
#include "lordo/optimizer/galore.hpp"
#include "lordo/optimizer/ldadam.hpp"
#include "lordo/optimizer/local_steps.hpp"
#include "lordo/optimizer/low_rank.hpp"
#include "mfsdp/optimizer/gathered.hpp"
#include "mfsdp/optimizer/muon.hpp"
#include "mfsdp/placement/rows.hpp"
#include "mfsdp/planner.hpp"

#if defined(LOW_RANK_ADAM)
using rule = lordo::low_rank_adam<>;
#elif defined(LOW_RANK_MUON)
using rule = lordo::low_rank_muon<>;
#elif defined(LOCAL_MUON)
using rule = lordo::local_steps<mfsdp::muon>;
#elif defined(AVERAGED_MUON)
using rule = lordo::averaged<mfsdp::muon>;
#elif defined(LDADAM)
using rule = lordo::ldadam<>;
#elif defined(GALORE)
using rule = lordo::galore<>;
#else
using rule = mfsdp::gathered<mfsdp::muon>;
#endif

mfsdp::plan program() {
  return make_plan(mfsdp::model_spec{}, 2, mfsdp::row_placement{}, rule{});
}
