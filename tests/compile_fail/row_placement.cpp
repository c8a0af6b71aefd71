// expect MUON_IN_A_MODEL: mfsdp: this optimizer needs whole matrices, which the placement cuts; use
// expect MUON: mfsdp: this optimizer needs whole matrices, which the placement cuts; use
// expect NORMUON: mfsdp: this optimizer needs whole matrices, which the placement cuts; use
// expect DION: mfsdp: this optimizer needs whole matrices, which the placement cuts; use
// expect SHAMPOO: mfsdp: this optimizer needs whole matrices, which the placement cuts; use
// expect SOAP: mfsdp: this optimizer needs whole matrices, which the placement cuts; use
#include "mfsdp/optimizer/adamw.hpp"
#include "mfsdp/optimizer/dion.hpp"
#include "mfsdp/optimizer/gathered.hpp"
#include "mfsdp/optimizer/mixed.hpp"
#include "mfsdp/optimizer/muon.hpp"
#include "mfsdp/optimizer/normuon.hpp"
#include "mfsdp/optimizer/shampoo.hpp"
#include "mfsdp/optimizer/soap.hpp"
#include "mfsdp/placement/rows.hpp"
#include "support/archetypes.hpp"

#if defined(MUON)
using rule = mfsdp::muon;
#elif defined(NORMUON)
using rule = mfsdp::normuon;
#elif defined(DION)
using rule = mfsdp::dion;
#elif defined(SHAMPOO)
using rule = mfsdp::shampoo;
#elif defined(SOAP)
using rule = mfsdp::soap;
#else
using rule = mfsdp::gathered<mfsdp::muon>;
#endif
#ifdef MUON_IN_A_MODEL
using rule_in_a_model = mfsdp::muon;
#else
using rule_in_a_model = mfsdp::gathered<mfsdp::muon>;
#endif

void program() {
  (void)make_plan(mfsdp::model_spec{}, 2, mfsdp::row_placement{}, rule{});
  archetype::train(archetype::collective{}, mfsdp::row_placement{},
                   mfsdp::mixed{rule_in_a_model{}, mfsdp::adamw{}});
}
