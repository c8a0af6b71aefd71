// Sums as NCCL makes them: each hop of the ring rounds to the type that travels.
#include <algorithm>
#include <cstring>

#include "emulation/communicators.hpp"
#include "mfsdp/dtype.hpp"

namespace emulation {

namespace {

template <class T>
T combine(ncclRedOp_t how, T a, T b) {
  if constexpr (std::is_arithmetic_v<T>) {
    switch (how) {
      case ncclProd:
        return static_cast<T>(a * b);
      case ncclMax:
        return std::max(a, b);
      case ncclMin:
        return std::min(a, b);
      default:
        return static_cast<T>(a + b);
    }
  } else {
    return T(combine(how, static_cast<float>(a), static_cast<float>(b)));
  }
}

template <class F>
bool with_type(ncclDataType_t type, F&& f) {
  switch (type) {
    case ncclInt8:
      return f(std::int8_t{}), true;
    case ncclUint8:
      return f(std::uint8_t{}), true;
    case ncclInt32:
      return f(std::int32_t{}), true;
    case ncclUint32:
      return f(std::uint32_t{}), true;
    case ncclInt64:
      return f(std::int64_t{}), true;
    case ncclUint64:
      return f(std::uint64_t{}), true;
    case ncclFloat16:
      return f(mfsdp::float16{}), true;
    case ncclBfloat16:
      return f(mfsdp::bfloat16{}), true;
    case ncclFloat32:
      return f(float{}), true;
    case ncclFloat64:
      return f(double{}), true;
    default:
      return false;
  }
}

}  // namespace

std::size_t bytes_of(ncclDataType_t type) {
  std::size_t bytes = 0;
  with_type(type, [&]<class T>(T) { bytes = sizeof(T); });
  return bytes;
}

void reduce_in_order(const std::vector<const void*>& terms, std::size_t count, ncclDataType_t type,
                     ncclRedOp_t how, void* result) {
  with_type(type, [&]<class T>(T) {
    T* const sum = static_cast<T*>(result);
    std::copy_n(static_cast<const T*>(terms.front()), count, sum);
    for (std::size_t i = 1; i < terms.size(); ++i) {
      const T* const term = static_cast<const T*>(terms[i]);
      for (std::size_t j = 0; j < count; ++j) sum[j] = combine(how, sum[j], term[j]);
    }
  });
}

}  // namespace emulation
