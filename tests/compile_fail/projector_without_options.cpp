// expect: lordo: Projector lacks 'std::string options() const'
#include "lordo/optimizer/low_rank.hpp"
#include "support/projector_archetypes.hpp"

using namespace archetype;

struct broken : composed<with_name, with_needs_signal, with_projector_flops,
                         with_projector_workspace_size, with_basis> {
#ifndef MFSDP_COMPILE_FAIL
  std::string options() const;
#endif
};

lordo::low_rank_adam<broken> rule{.rank = 4};
