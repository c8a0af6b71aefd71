// expect: mfsdp: this optimizer needs whole matrices, which the placement cuts; use
#include "mfsdp/optimizer/adamw.hpp"
#include "mfsdp/optimizer/gathered.hpp"
#include "mfsdp/optimizer/mixed.hpp"
#include "mfsdp/optimizer/muon.hpp"
#include "mfsdp/placement/rows.hpp"
#include "support/archetypes.hpp"

#ifdef MFSDP_COMPILE_FAIL
const mfsdp::muon rule;
#else
const mfsdp::gathered<mfsdp::muon> rule;
#endif

void program() {
  archetype::train(archetype::collective{}, mfsdp::row_placement{},
                   mfsdp::mixed{rule, mfsdp::adamw{}});
}
