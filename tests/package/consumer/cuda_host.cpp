// What needs no kernels needs no nvcc.
#include <cstdio>
#include <mfsdp/cuda/products.hpp>

int main() {
  try {
    mfsdp::cuda::memory_pool pool;
    mfsdp::cuda::products products({}, pool);
    fmt::print("tf32 {}\n", products.options().tf32);
  } catch (const mfsdp::device_error& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
