// nccl_api: what is asked of NCCL, with its errors as exceptions. The only includer of nccl.h.
#pragma once

#include <nccl.h>

#include <string_view>
#include <type_traits>

#include "mfsdp/cuda/runtime.hpp"
#include "mfsdp/dtype.hpp"
#include "mfsdp/error.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// What has been asked of a communicator that does not block may still be under way.
[[nodiscard]] inline bool accepted(ncclResult_t code) {
  return code == ncclSuccess || code == ncclInProgress;
}

[[nodiscard]] inline std::string nccl_reason(std::string_view call, ncclResult_t code,
                                             ncclComm_t comm) {
  const char* last = comm == nullptr ? nullptr : ncclGetLastError(comm);
  const bool more = last != nullptr && *last != '\0';
  return fmt::format("{}: {}{}{}", call, ncclGetErrorString(code), more ? ": " : "",
                     more ? last : "");
}

inline void require_nccl(ncclResult_t code, std::string_view call, ncclComm_t comm = nullptr) {
  if (!accepted(code)) throw collective_error(nccl_reason(call, code, comm));
}

// Of the types in which NCCL can sum.
template <class T>
[[nodiscard]] constexpr ncclDataType_t nccl_type() {
  if constexpr (std::is_same_v<T, float>) {
    return ncclFloat32;
  } else if constexpr (std::is_same_v<T, double>) {
    return ncclFloat64;
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    return ncclBfloat16;
  } else {
    static_assert(std::is_same_v<T, float16>);
    return ncclFloat16;
  }
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
