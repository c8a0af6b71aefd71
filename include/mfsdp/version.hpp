// The version, once: CMake, the packages and the ABI namespace read it from here.
#pragma once

#define MFSDP_VERSION_MAJOR 0
#define MFSDP_VERSION_MINOR 1
#define MFSDP_VERSION_PATCH 0
#define MFSDP_VERSION "0.1.0"
