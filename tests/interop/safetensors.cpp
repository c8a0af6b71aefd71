// safetensors write FILE       writes arrays of values that the test knows
// safetensors copy FROM TO     reads every array of a file through the library and writes them
// again
#include "mfsdp/checkpoint/safetensors.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mfsdp/dtype.hpp"

namespace {

using bytes_of_arrays = std::vector<std::pair<mfsdp::safetensors_entry, std::vector<std::byte>>>;

void write_arrays(const std::string& path, const bytes_of_arrays& arrays,
                  const std::map<std::string, std::string>& metadata) {
  std::vector<mfsdp::safetensors_entry> entries;
  for (const auto& [entry, bytes] : arrays) entries.push_back(entry);
  const auto [header, layout] = mfsdp::make_safetensors_header(entries, metadata);
  auto out = mfsdp::detail::file::create(path);
  out.write(std::as_bytes(std::span(header)), 0);
  for (const auto& [entry, bytes] : arrays) out.write(bytes, layout.find(entry.name)->first_byte);
  out.close();
}

// Element i is i / 4 - 2.
template <class T>
void add_array(bytes_of_arrays& arrays, std::string_view name, std::string_view dtype,
               std::vector<mfsdp::index_t> shape) {
  std::size_t count = 1;
  for (const mfsdp::index_t extent : shape) count *= static_cast<std::size_t>(extent);
  std::vector<T> values;
  for (std::size_t i = 0; i < count; ++i) {
    values.push_back(static_cast<T>(static_cast<float>(i) / 4 - 2));
  }
  const auto bytes = std::as_bytes(std::span(values));
  arrays.push_back(
      {{std::string(name), std::string(dtype), std::move(shape)}, {bytes.begin(), bytes.end()}});
}

void write_known(const std::string& path) {
  bytes_of_arrays arrays;
  add_array<mfsdp::bfloat16>(arrays, "block.0.half", "BF16", {3, 5});
  add_array<float>(arrays, "block.0.up", "F32", {4, 6});
  add_array<float>(arrays, "block.0.up/muon.momentum[3:9]", "F32", {6});
  add_array<mfsdp::float16>(arrays, "block.0.conv", "F16", {2, 3, 1, 2});
  add_array<float>(arrays, "empty", "F32", {0, 7});
  add_array<float>(arrays, "scalar", "F32", {});
  add_array<mfsdp::bfloat16>(arrays, "n\xC3\xA4me \"quoted\"\\", "BF16", {1});
  write_arrays(path, arrays, {{"format", "pt"}, {"step", "12"}});
}

void copy(const std::string& from, const std::string& to) {
  const mfsdp::safetensors_file file(from);
  bytes_of_arrays arrays;
  const auto read = [&]<class T>(const mfsdp::safetensors_entry& entry, T) {
    std::vector<T> values(static_cast<std::size_t>(entry.bytes) / sizeof(T));
    file.read<T>(entry, 0, values);
    const auto bytes = std::as_bytes(std::span(values));
    arrays.push_back({entry, {bytes.begin(), bytes.end()}});
  };
  for (const mfsdp::safetensors_entry& entry : file.layout().entries) {
    switch (mfsdp::detail::safetensors_bits(entry.dtype)) {
      case 8:
        read(entry, std::uint8_t{});
        break;
      case 16:
        read(entry, std::uint16_t{});
        break;
      case 32:
        read(entry, std::uint32_t{});
        break;
      default:
        read(entry, std::uint64_t{});
    }
  }
  write_arrays(to, arrays, file.layout().metadata);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments.size() == 2 && arguments[0] == "write") {
      write_known(arguments[1]);
    } else if (arguments.size() == 3 && arguments[0] == "copy") {
      copy(arguments[1], arguments[2]);
    } else {
      fmt::print(stderr, "usage: safetensors write FILE | copy FROM TO\n");
      return 2;
    }
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
