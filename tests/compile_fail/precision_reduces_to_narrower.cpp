// expect: mfsdp: precision sums gradients in Reduce, which is Gradient or float, never a narrower
#include "mfsdp/precision.hpp"

#ifdef MFSDP_COMPILE_FAIL
using sum = mfsdp::bfloat16;
#else
using sum = float;
#endif

mfsdp::precision<mfsdp::bfloat16, float, sum> types;
