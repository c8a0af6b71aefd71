// What each fuzz target does with an input: parsers either give a value that is written and read
// again as the same, or the error that they promise. Anything else ends the program.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "mfsdp/checkpoint.hpp"
#include "mfsdp/checkpoint/file.hpp"
#include "mfsdp/checkpoint/manifest.hpp"
#include "mfsdp/checkpoint/safetensors.hpp"
#include "mfsdp/mfsdp.hpp"

namespace fuzz {

inline void require(bool condition, std::string_view what) {
  if (condition) return;
  fmt::print(stderr, "not so: {}\n", what);
  std::abort();
}

// The input is the text of a plan.
inline void plan(std::string_view input) {
  try {
    require(mfsdp::to_text(mfsdp::parse_plan(input)) == input, "a plan is written as it was read");
  } catch (const mfsdp::plan_error&) {
  }
}

// The input is the text of a manifest up to its checksum.
inline void manifest(std::string_view input) {
  try {
    const std::string text = std::string(input) + mfsdp::detail::manifest_end(input);
    const mfsdp::manifest read = mfsdp::parse_manifest(text);
    require(mfsdp::parse_manifest(mfsdp::to_text(read)) == read, "a manifest is written as read");
  } catch (const mfsdp::checkpoint_error&) {
  }
}

// The first line of the input is how many bytes of data there are, the rest a header.
inline void safetensors(std::string_view input) {
  const std::size_t line = std::min(input.find('\n'), input.size());
  std::int64_t data = 0;
  const auto [stop, status] = std::from_chars(input.data(), input.data() + line, data);
  if (status != std::errc{} || stop != input.data() + line || data < 0 || data > INT64_MAX / 2) {
    return;
  }
  const std::string_view header = input.substr(std::min(line + 1, input.size()));
  try {
    const auto file_bytes = static_cast<std::int64_t>(header.size()) + 8 + data;
    const auto read = mfsdp::parse_safetensors_header(header, file_bytes, "input");
    std::int64_t next = read.header_bytes;
    for (const mfsdp::safetensors_entry& entry : read.entries) {
      require(entry.first_byte == next && entry.bytes >= 0, "arrays follow each other");
      require(read.find(entry.name) == &entry, "arrays are found by their names");
      next += entry.bytes;
    }
    require(next == file_bytes, "arrays fill the file");
    const auto [prefix, made] = mfsdp::make_safetensors_header(read.entries, read.metadata);
    const auto again = mfsdp::parse_safetensors_header(std::string_view(prefix).substr(8),
                                                       made.file_bytes, "made");
    require(again.entries.size() == read.entries.size(), "a header is written as it was read");
    for (const mfsdp::safetensors_entry& entry : read.entries) {
      const mfsdp::safetensors_entry* const same = again.find(entry.name);
      require(same && same->dtype == entry.dtype && same->shape == entry.shape &&
                  same->bytes == entry.bytes,
              "an array is written as it was read");
    }
  } catch (const mfsdp::checkpoint_error&) {
  }
}

// Numbers and texts out of an input; zeros behind its end.
class source {
 public:
  explicit source(std::string_view input) : input_(input) {}

  std::size_t number(std::size_t below) { return static_cast<unsigned char>(next()) % below; }
  std::size_t long_number(std::size_t below) {
    std::size_t value = 0;
    for (int byte = 0; byte < 4; ++byte) value = value << 8 | number(256);
    return value % below;
  }
  std::string text(std::size_t most) {
    std::string result(number(most + 1), '\0');
    for (char& c : result) c = next();
    return result;
  }

 private:
  char next() {
    if (input_.empty()) return 0;
    const char first = input_.front();
    input_.remove_prefix(1);
    return first;
  }

  std::string_view input_;
};

// A name for files, which are gone when the program ends.
struct scratch {
  explicit scratch(std::string_view name)
      : path((std::filesystem::temp_directory_path() /
              fmt::format("mfsdp-fuzz-{}-{}", name, ::getpid()))
                 .string()) {}
  ~scratch() { std::filesystem::remove_all(path); }

  std::string path;
};

inline void write_file(const std::string& path, std::string_view bytes) {
  std::filesystem::remove(path);
  auto out = mfsdp::detail::file::create(path);
  out.write(std::as_bytes(std::span(bytes)), 0);
  out.close();
}

// Everything of a file, as it lies there.
inline std::string read_arrays(const std::string& path) {
  const mfsdp::safetensors_file file(path);
  std::string bytes;
  for (const mfsdp::safetensors_entry& entry : file.layout().entries) {
    if (mfsdp::detail::safetensors_bits(entry.dtype) != 16) continue;
    std::vector<std::uint16_t> values(static_cast<std::size_t>(entry.bytes / 2));
    file.read<std::uint16_t>(entry, 0, values);
    bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * 2);
  }
  return bytes;
}

// The input says which arrays a file and its manifest have, and how both are damaged afterwards.
inline void checkpoint(std::string_view input) {
  static const scratch file("file");
  const std::string& path = file.path;
  source from(input);
  mfsdp::manifest m;
  std::vector<mfsdp::safetensors_entry> entries;
  std::string text;
  try {
    for (std::size_t arrays = from.number(5); arrays-- > 0;) {
      mfsdp::stored_tensor tensor{from.text(9), {}, "elementwise", true, "", {}};
      for (std::size_t k = from.number(4); k-- > 0;) {
        tensor.shape.push_back(static_cast<mfsdp::index_t>(from.number(6)));
      }
      mfsdp::stored_array array{tensor.name, 0, "", "", from.number(2) ? "BF16" : "F16", 1, 0, {}};
      for (const mfsdp::index_t extent : tensor.shape) array.elements *= extent;
      for (mfsdp::index_t first = 0; first < array.elements;) {
        const auto rest = static_cast<std::size_t>(array.elements - first);
        const auto count = static_cast<mfsdp::index_t>(1 + from.number(rest));
        array.parts.push_back({0, first, count});
        entries.push_back({array_key(array, tensor, first, count), array.dtype,
                           array_shape(array, tensor, first, count)});
        first += count;
      }
      m.tensors.push_back(tensor);
      m.arrays.push_back(array);
    }
    auto [bytes, layout] = make_safetensors_header(entries, {{"format", from.text(5)}});
    const auto data_bytes = static_cast<std::size_t>(layout.file_bytes - layout.header_bytes);
    std::string data(data_bytes, '\0');
    for (char& c : data) c = static_cast<char>(from.number(256));
    bytes += data;
    m.files = {{from.text(12), layout.file_bytes}};
    m.trainer = from.text(30);
    text = to_text(m);
    require(mfsdp::parse_manifest(text) == m, "a manifest is read as it was written");
    write_file(path, bytes);
    require(read_arrays(path) == data, "arrays are read as they were written");

    // Damage: a byte, or the end cut off. Data may change unseen here; checksums are the loader's.
    if (from.number(2) == 0) {
      bytes.resize(from.long_number(bytes.size()));
    } else {
      bytes[from.long_number(bytes.size())] = static_cast<char>(from.number(256));
    }
    text[from.long_number(text.size())] = static_cast<char>(from.number(256));
    write_file(path, bytes);
  } catch (const mfsdp::checkpoint_error&) {
    return;  // names that cannot be written
  }
  try {
    static_cast<void>(read_arrays(path));
  } catch (const mfsdp::checkpoint_error&) {
  }
  try {
    static_cast<void>(mfsdp::parse_manifest(text));
  } catch (const mfsdp::checkpoint_error&) {
  }
}

inline mfsdp::model_spec loaded_model() {
  mfsdp::model_spec spec;
  spec.unit("u").matrix("m", 4, 3).vector("v", 5).vector("f", 2, {.frozen = true});
  return spec;
}

// The input is the manifest up to its checksum, of a checkpoint whose files are those of the model
// that loads it. It is refused, or the model has the values that were saved and can be trained.
// Returns whether it was loaded.
inline bool loads(std::string_view input) {
  static const scratch root("load");
  static mfsdp::sharded_model model{loaded_model(), mfsdp::self{}, mfsdp::owner_placement{},
                                    mfsdp::adamw{}};
  const auto initialize = [&](float scale) {
    model.initialize([&](const mfsdp::tensor_spec&, std::span<float> values, mfsdp::index_t first) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = scale * (1 + static_cast<float>(first) + static_cast<float>(i));
      }
    });
  };
  static const std::string path = [&] {
    initialize(1);
    return mfsdp::save(model, root.path) + "/manifest.json";
  }();

  const std::string text = std::string(input) + mfsdp::detail::manifest_end(input);
  write_file(path, text);
  initialize(-1);
  try {
    static_cast<void>(mfsdp::load(model, root.path));
  } catch (const mfsdp::checkpoint_error&) {
    return false;
  }
  const std::size_t unit = model.forward_order().front();
  {
    const auto weights = model.acquire(unit, mfsdp::pass::evaluate);
    for (std::size_t t = 0; t < weights.pointers().size(); ++t) {
      for (std::size_t i = 0; i < weights[t].flat().size(); ++i) {
        require(weights[t].flat()[i] == 1 + static_cast<float>(i), "the values are those saved");
      }
    }
  }
  const std::int64_t steps = model.persistence().counts().steps;
  {
    const auto weights = model.acquire(unit, mfsdp::pass::backward);
    const auto gradients = model.gradients(unit);
    gradients.zero();
    gradients.reduce();
  }
  model.step();
  require(model.persistence().counts().steps == steps + 1, "a step is taken");
  return true;
}

inline void load(std::string_view input) {
  static_cast<void>(loads(input));
}

struct target {
  std::string_view name;
  void (*run)(std::string_view input);
};

inline constexpr std::array targets{target{"checkpoint", checkpoint}, target{"load", load},
                                    target{"manifest", manifest}, target{"plan", plan},
                                    target{"safetensors", safetensors}};

}  // namespace fuzz
