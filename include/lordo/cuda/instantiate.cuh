// All kernels of lordo, beside those of mfsdp/cuda/instantiate.cuh. Include both in one .cu file.
#pragma once

#include "mfsdp/cuda/launch.cuh"
