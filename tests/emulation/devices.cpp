// Devices, and what errors are called.
#include "emulation/machine.hpp"

using namespace emulation;

namespace {

cudaError_t check_device(int device) {
  const int devices = the_machine().how.devices;
  if (device >= 0 && device < devices) return cudaSuccess;
  return refuse(cudaErrorInvalidDevice, fmt::format("device {} of {}", device, devices));
}

struct named_error {
  cudaError_t code;
  const char* name;
  const char* meaning;
};

// Those that the emulation gives, and some that tests inject.
constexpr named_error named_errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "the operation is illegal in this state"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "illegal memory access"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would merge two captures"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency on uncaptured work in another stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "capture of the wrong thread"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const named_error& look_up(cudaError_t code) {
  for (const named_error& each : named_errors) {
    if (each.code == code) return each;
  }
  static constexpr named_error unlisted{cudaErrorUnknown, "an error the emulation does not list",
                                        "unrecognised error code"};
  return unlisted;
}

}  // namespace

const char* cudaGetErrorName(cudaError_t code) {
  return look_up(code).name;
}
const char* cudaGetErrorString(cudaError_t code) {
  return look_up(code).meaning;
}

// Also the answer "not ready" of a query stays until it is taken.
cudaError_t cudaGetLastError() {
  return std::exchange(the_caller().last, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return the_caller().last;
}

cudaError_t cudaGetDeviceCount(int* count) {
  return runtime_call("cudaGetDeviceCount", [&](auto&) {
    *count = the_machine().how.devices;
    return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
  });
}

cudaError_t cudaSetDevice(int device) {
  return runtime_call("cudaSetDevice", [&](auto&) {
    if (const cudaError_t code = check_device(device); code != cudaSuccess) return code;
    the_caller().device = device;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return runtime_call("cudaGetDevice", [&](auto&) {
    *device = the_caller().device;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return runtime_call("cudaDeviceGetAttribute", [&](auto&) {
    if (const cudaError_t code = check_device(device); code != cudaSuccess) return code;
    switch (attribute) {
      case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        break;
      case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        break;
      case cudaDevAttrMultiProcessorCount:
        *value = 132;
        break;
      case cudaDevAttrMaxThreadsPerBlock:
        *value = 1024;
        break;
      case cudaDevAttrWarpSize:
        *value = 32;
        break;
      case cudaDevAttrMemoryPoolsSupported:
        *value = 1;
        break;
      default:
        return refuse(cudaErrorInvalidValue,
                      fmt::format("attribute {} is not emulated", static_cast<int>(attribute)));
    }
    return cudaSuccess;
  });
}
