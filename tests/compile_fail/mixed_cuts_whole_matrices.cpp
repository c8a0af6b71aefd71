// expect: mfsdp: the second optimizer of mixed updates pieces of tensors, this one needs whole
// matrices
#include "mfsdp/optimizer/adamw.hpp"
#include "mfsdp/optimizer/mixed.hpp"
#include "mfsdp/optimizer/muon.hpp"

#ifdef MFSDP_COMPILE_FAIL
mfsdp::mixed rules{mfsdp::adamw{}, mfsdp::muon{}};
#else
mfsdp::mixed rules{mfsdp::muon{}, mfsdp::adamw{}};
#endif
