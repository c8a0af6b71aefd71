// What a test of NCCL sets beside emulation.hpp. Ranks are threads, each with a device of its own.
#pragma once

#include <nccl.h>

#include "emulation/emulation.hpp"

namespace emulation {

// The communicators of a rank, in whatever process group, fail: the n-th time from now on that one
// of them is asked for its state by ncclCommGetAsyncError, and ever after.
void fail_communicators(int rank, ncclResult_t = ncclRemoteError, int n = 1);

}  // namespace emulation
