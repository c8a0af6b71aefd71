// expect: mfsdp: gathered is for optimizers that need whole matrices, this one takes pieces
#include "mfsdp/optimizer/adamw.hpp"
#include "mfsdp/optimizer/gathered.hpp"
#include "mfsdp/optimizer/muon.hpp"

#ifdef MFSDP_COMPILE_FAIL
mfsdp::gathered rule{mfsdp::adamw{}};
#else
mfsdp::gathered rule{mfsdp::muon{}};
#endif
