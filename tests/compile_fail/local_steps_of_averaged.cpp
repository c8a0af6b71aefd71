// expect: lordo: local_steps is for optimizers that know one site, this one exchanges already
#include "lordo/optimizer/averaged.hpp"
#include "lordo/optimizer/local_steps.hpp"
#include "mfsdp/optimizer/adamw.hpp"

#ifdef MFSDP_COMPILE_FAIL
lordo::local_steps rule{.inner = lordo::averaged{.inner = mfsdp::adamw{}}};
#else
lordo::local_steps rule{.inner = mfsdp::adamw{}};
#endif
