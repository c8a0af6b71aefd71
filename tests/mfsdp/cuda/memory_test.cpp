#include "mfsdp/cuda/memory.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "emulation/emulation.hpp"
#include "emulation/session.hpp"
#include "support/on_device.hpp"

namespace cuda_memory_test {

using namespace mfsdp;

TEST_CASE("a block that was given back serves the next request of its size") {
  const emulation::session machine;
  cuda::memory_pool pool;
  void* const first = pool.take(1000);
  CHECK(reinterpret_cast<std::uintptr_t>(first) % 256 == 0);
  void* const second = pool.take(1000);
  CHECK(first != second);
  pool.give(first, 1000);
  CHECK(pool.take(1024) == first);  // 1000 is rounded to 1024
  const long before = emulation::counts().allocations;
  for (int i = 0; i < 10; ++i) {
    void* const again = pool.take(5000);
    pool.give(again, 5000);
  }
  CHECK(emulation::counts().allocations == before + 1);
  CHECK(pool.take(0) == nullptr);
  pool.give(nullptr, 0);
  pool.give(first, 1000);
  pool.give(second, 1000);
}

TEST_CASE("kept blocks make room for other sizes") {
  const emulation::session machine({.device_bytes = std::size_t{1} << 20});
  cuda::memory_pool pool;
  constexpr std::size_t most = 700 << 10;
  pool.give(pool.take(most), most);
  void* const other = pool.take(most + 4096);
  CHECK(other != nullptr);
  pool.give(other, most + 4096);
}

TEST_CASE("without memory the error says how much was asked for and how much there is") {
  const emulation::session machine({.device_bytes = std::size_t{1} << 20});
  cuda::memory_pool pool;
  void* const most = pool.take(700 << 10);
  const std::string what =
      mfsdp_test::what_of<device_error>([&] { (void)pool.take(std::size_t{400} << 10); });
  CHECK(what.find("no device memory for 409600 bytes") != std::string::npos);
  CHECK(what.find("of 1048576 are left") != std::string::npos);
  void* const rest = pool.take(100 << 10);  // and the pool goes on
  pool.give(rest, 100 << 10);
  pool.give(most, 700 << 10);
}

}  // namespace cuda_memory_test
