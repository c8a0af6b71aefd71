// expect: mfsdp: this optimizer needs whole matrices, which the placement cuts; use
#include <mfsdp/mfsdp.hpp>

#ifdef MFSDP_COMPILE_FAIL
const mfsdp::muon rule;
#else
const mfsdp::gathered<mfsdp::muon> rule;
#endif

void program() {
  mfsdp::sharded_model model{mfsdp::model_spec{}, mfsdp::self{}, mfsdp::row_placement{},
                             mfsdp::mixed{rule, mfsdp::adamw{}}};
  model.step();
}
