// expect: lordo: Projector lacks 'static constexpr std::string_view name'
#include "support/projector_archetypes.hpp"

using namespace archetype;

struct broken : composed<with_needs_signal, with_projector_options, with_projector_flops,
                         with_projector_workspace_size, with_basis> {
#ifndef MFSDP_COMPILE_FAIL
  static constexpr std::string_view name = "broken";
#endif
};

template struct lordo::contract::check_projector<broken>;
template struct lordo::contract::check_basis<broken, archetype::backend>;
