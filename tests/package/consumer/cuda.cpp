// [begin program]
#include <cstdio>
#include <mfsdp/backend/cuda.hpp>
#include <vector>

int main() {
  try {
    mfsdp::cuda_backend backend(/*device=*/0);
    const std::vector<float> ones(1000, 1.0f);
    auto x = backend.allocate<float>(1000);
    backend.copy(ones, x.span());
    fmt::print("sum of squares {}\n", backend.sum_of_squares(x.span()));
  } catch (const mfsdp::device_error& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
// [end program]
