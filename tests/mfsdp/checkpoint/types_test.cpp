#include "mfsdp/checkpoint/types.hpp"

#include <doctest/doctest.h>

#include <stdexcept>

#include "mfsdp/checkpoint/safetensors.hpp"

namespace types_test {

TEST_CASE("every type has one name in files and the width that the format gives it") {
  using namespace mfsdp::detail;
  int types = 0;
  const auto check = [&]<class T>(const stored_type<T>& entry) {
    const std::string dtype = dtype_of(mfsdp::type_name<T>());
    CHECK(dtype == entry.dtype);
    CHECK(bytes_of_type(mfsdp::type_name<T>()) == static_cast<mfsdp::index_t>(sizeof(T)));
    CHECK(safetensors_bits(dtype) == 8 * static_cast<std::int64_t>(sizeof(T)));
    with_dtype(dtype, [&]<class Value>(Value) { types += std::same_as<Value, T> ? 1 : 0; });
  };
  std::apply([&](const auto&... entry) { (check(entry), ...); }, stored_types);
  CHECK(types == 3);
  CHECK(dtype_of("bf16") == "BF16");
}

TEST_CASE("a type that is not in the table is no other one") {
  using namespace mfsdp::detail;
  CHECK_THROWS_AS((void)dtype_of("fp8"), std::logic_error);
  CHECK_THROWS_AS((void)bytes_of_type("fp64"), std::logic_error);
  CHECK_THROWS_AS(with_dtype("F64", [](auto) {}), std::logic_error);
  CHECK(!is_stored_dtype("F64"));
  CHECK(is_stored_dtype("F16"));
}

}  // namespace types_test
