// expect: mfsdp: this optimizer needs whole matrices, which the placement cuts; use
#include "mfsdp/optimizer/gathered.hpp"
#include "mfsdp/optimizer/muon.hpp"
#include "mfsdp/placement/rows.hpp"
#include "mfsdp/planner.hpp"

#ifdef MFSDP_COMPILE_FAIL
const mfsdp::muon rule;
#else
const mfsdp::gathered<mfsdp::muon> rule;
#endif

mfsdp::plan program() {
  return make_plan(mfsdp::model_spec{}, 2, mfsdp::row_placement{}, rule);
}
