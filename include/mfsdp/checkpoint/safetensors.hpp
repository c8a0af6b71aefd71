// The safetensors format: named arrays in one file, behind a header that says where each lies.
// Source: github.com/huggingface/safetensors, "Format".
//
//   8 bytes           length of the header, little-endian
//   header            {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...},
//                     and texts under "__metadata__"; blanks at its end align the data to 8 bytes
//   data              offsets count from here; no gaps, no overlaps, nothing behind the last
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "mfsdp/checkpoint/file.hpp"
#include "mfsdp/checkpoint/json.hpp"
#include "mfsdp/error.hpp"
#include "mfsdp/view.hpp"

namespace mfsdp::inline MFSDP_ABI {

// An array in a safetensors file, row-major and little-endian.
struct safetensors_entry {
  std::string name;
  std::string dtype;  // "F32", "BF16", "F16", or another of the format
  std::vector<index_t> shape;
  std::int64_t first_byte = 0;  // from the start of the file
  std::int64_t bytes = 0;
};

// What the header of a safetensors file says.
struct safetensors_layout {
  std::vector<safetensors_entry> entries;  // as they lie in the file
  std::map<std::string, std::string> metadata;
  std::int64_t header_bytes = 0;  // before the data
  std::int64_t file_bytes = 0;

  // Null if there is no such array. Cost: logarithmic.
  [[nodiscard]] const safetensors_entry* find(std::string_view name) const {
    const auto found = by_name.find(name);
    return found == by_name.end() ? nullptr : &entries[found->second];
  }

  std::map<std::string, std::size_t, std::less<>> by_name;
};

namespace detail {

// As in the reference: what no honest file reaches.
inline constexpr std::int64_t longest_safetensors_header = 100'000'000;
inline constexpr std::string_view safetensors_metadata = "__metadata__";

// Bits of an element, 0 for an unknown type.
[[nodiscard]] inline std::int64_t safetensors_bits(std::string_view dtype) {
  struct type {
    std::string_view name;
    std::int64_t bits;
  };
  constexpr std::array types{
      type{"F32", 32},    type{"BF16", 16},       type{"F16", 16},        type{"F64", 64},
      type{"I64", 64},    type{"I32", 32},        type{"I16", 16},        type{"I8", 8},
      type{"U64", 64},    type{"U32", 32},        type{"U16", 16},        type{"U8", 8},
      type{"BOOL", 8},    type{"C64", 64},        type{"F8_E4M3", 8},     type{"F8_E5M2", 8},
      type{"F8_E8M0", 8}, type{"F8_E4M3FNUZ", 8}, type{"F8_E5M2FNUZ", 8}, type{"F6_E2M3", 6},
      type{"F6_E3M2", 6}, type{"F4", 4}};
  const auto* const found =
      std::find_if(types.begin(), types.end(), [&](const type& t) { return t.name == dtype; });
  return found == types.end() ? 0 : found->bits;
}

// Bytes of an array; nothing if they are too many to count or no whole bytes.
[[nodiscard]] inline std::optional<std::int64_t> safetensors_bytes(
    std::string_view dtype, const std::vector<index_t>& shape) {
  std::int64_t bits = safetensors_bits(dtype);
  bool empty = false;
  for (const index_t extent : shape) {
    empty = empty || extent == 0;
    if (extent == 0) continue;  // the others are to be countable in whatever order
    if (extent < 0 || bits > std::numeric_limits<std::int64_t>::max() / extent) return std::nullopt;
    bits *= extent;
  }
  if (empty) return 0;
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

// Without a look at the file, whose end finish_layout compares with that of the arrays.
inline safetensors_entry parse_safetensors_entry(const std::string& name, const json_field& field,
                                                 std::int64_t header_bytes) {
  field.require_members({"dtype", "shape", "data_offsets"});
  safetensors_entry entry{name, field["dtype"].text(), {}};
  if (safetensors_bits(entry.dtype) == 0) {
    field["dtype"].fail(fmt::format("is '{}', no type of the format", shown(entry.dtype)));
  }
  const json_field shape = field["shape"];
  for (std::size_t i = 0; i < shape.size(); ++i) {
    entry.shape.push_back(shape[i].integer(0, std::numeric_limits<index_t>::max()));
  }
  const json_field offsets = field["data_offsets"];
  if (offsets.size() != 2) offsets.fail("must be two numbers, the first byte and the end");
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max() / 2;
  const std::int64_t first = offsets[std::size_t{0}].integer(0, most);
  entry.bytes = offsets[1].integer(first, most) - first;
  entry.first_byte = header_bytes + first;
  const std::optional<std::int64_t> expected = safetensors_bytes(entry.dtype, entry.shape);
  if (!expected) shape.fail("has too many elements to count, or no whole number of bytes");
  if (entry.bytes != *expected) {
    offsets.fail(
        fmt::format("are {} bytes apart; this type and shape have {}", entry.bytes, *expected));
  }
  return entry;
}

// Sorts entries by place and requires that they fill the file.
inline void finish_layout(safetensors_layout& layout, std::string_view where) {
  std::sort(layout.entries.begin(), layout.entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first_byte, a.bytes, a.name) < std::tie(b.first_byte, b.bytes, b.name);
  });
  std::int64_t next = layout.header_bytes;
  for (std::size_t i = 0; i < layout.entries.size(); ++i) {
    const safetensors_entry& entry = layout.entries[i];
    layout.by_name.emplace(entry.name, i);
    if (entry.first_byte != next) {
      throw checkpoint_error(fmt::format(
          "{}: '{}' begins at byte {} of the data; it must follow the bytes before it at {}: {}",
          where, shown(entry.name), entry.first_byte - layout.header_bytes,
          next - layout.header_bytes, entry.first_byte < next ? "they overlap" : "there is a gap"));
    }
    next += entry.bytes;
  }
  if (next != layout.file_bytes) {
    throw checkpoint_error(fmt::format(
        "{}: has {} bytes, {} than its header says, which is {}: it is damaged or incomplete; take "
        "another checkpoint",
        where, layout.file_bytes, layout.file_bytes < next ? "fewer" : "more", next));
  }
}

}  // namespace detail

// What comes before the data of a file with these entries, which get their places: the widest
// elements first, so that all are aligned, then by name. The result has the same
// entries as they lie in the file. Errors: checkpoint_error on a repeated name or a type or size
// that the format does not have, naming the array.
[[nodiscard]] inline std::pair<std::string, safetensors_layout> make_safetensors_header(
    std::vector<safetensors_entry> entries, std::map<std::string, std::string> metadata = {}) {
  using namespace detail;
  safetensors_layout layout{std::move(entries), std::move(metadata), 0, 0, {}};
  std::sort(layout.entries.begin(), layout.entries.end(), [](const auto& a, const auto& b) {
    return std::pair(-safetensors_bits(a.dtype), std::string_view(a.name)) <
           std::pair(-safetensors_bits(b.dtype), std::string_view(b.name));
  });
  json header = json::object();
  if (!layout.metadata.empty()) header[std::string(safetensors_metadata)] = layout.metadata;
  std::int64_t next = 0;
  for (safetensors_entry& entry : layout.entries) {
    const auto bytes = safetensors_bytes(entry.dtype, entry.shape);
    const bool known = safetensors_bits(entry.dtype) != 0;
    if (!known || !bytes || *bytes > std::numeric_limits<std::int64_t>::max() / 2 - next) {
      throw checkpoint_error(
          fmt::format("array '{}' of type '{}' and {} extents cannot be written "
                      "to a safetensors file: no such type, or too large",
                      entry.name, entry.dtype, entry.shape.size()));
    }
    if (entry.name == safetensors_metadata || header.contains(entry.name)) {
      throw checkpoint_error(fmt::format(
          "two arrays of a safetensors file would have the name '{}': rename the tensor",
          entry.name));
    }
    entry.bytes = *bytes;
    entry.first_byte = next;
    next += *bytes;
    header[entry.name] = {
        {"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.first_byte, next}}};
  }
  std::string text = dump_json(header, "safetensors header");
  text.append((8 - text.size() % 8) % 8, ' ');
  std::uint64_t length = text.size();
  if (length > static_cast<std::uint64_t>(longest_safetensors_header)) {
    throw checkpoint_error(
        fmt::format("a safetensors header of {} bytes; readers take {}: write several files",
                    length, longest_safetensors_header));
  }
  std::string prefix;
  for (int byte = 0; byte < 8; ++byte, length >>= 8) prefix += static_cast<char>(length & 0xFF);
  prefix += text;

  layout.header_bytes = static_cast<std::int64_t>(prefix.size());
  layout.file_bytes = layout.header_bytes + next;
  for (safetensors_entry& entry : layout.entries) entry.first_byte += layout.header_bytes;
  finish_layout(layout, "safetensors header");
  return {std::move(prefix), std::move(layout)};
}

// The length of the header that the first 8 bytes of a file of `file_bytes` tell. Errors:
// checkpoint_error, beginning with `where`, if there is no room for one.
[[nodiscard]] inline std::int64_t safetensors_header_length(std::span<const std::byte, 8> prefix,
                                                            std::int64_t file_bytes,
                                                            std::string_view where) {
  std::uint64_t length = 0;
  for (std::size_t i = 8; i-- > 0;)
    length = length << 8 | std::to_integer<std::uint64_t>(prefix[i]);
  const std::int64_t most = std::min(detail::longest_safetensors_header, file_bytes - 8);
  if (length > static_cast<std::uint64_t>(most)) {
    throw checkpoint_error(fmt::format(
        "{}: no safetensors file, or one that is damaged or incomplete: a header of {} bytes; {} "
        "would fit; take another checkpoint",
        where, length, most));
  }
  return static_cast<std::int64_t>(length);
}

// The layout of a file of `file_bytes` with this header (without the 8 bytes before it). Errors:
// checkpoint_error, beginning with `where`, for anything but a file of the format, naming the
// array.
[[nodiscard]] inline safetensors_layout parse_safetensors_header(std::string_view header,
                                                                 std::int64_t file_bytes,
                                                                 std::string_view where) {
  using namespace detail;
  if (!header.starts_with('{')) {
    throw checkpoint_error(fmt::format(
        "{}: damaged or incomplete, or no safetensors file: the header is no object", where));
  }
  constexpr json_limits limits{static_cast<std::size_t>(longest_safetensors_header), 3};
  const json root = parse_json(header, limits, where);
  safetensors_layout layout{{}, {}, static_cast<std::int64_t>(header.size()) + 8, file_bytes, {}};
  for (const auto& [name, value] : root.get_ref<const json::object_t&>()) {
    const json_field field(value, where, fmt::format("'{}'", shown(name)));
    if (name != safetensors_metadata) {
      layout.entries.push_back(parse_safetensors_entry(name, field, layout.header_bytes));
      continue;
    }
    if (!value.is_object()) field.fail("is no object");
    for (const auto& [key, text] : value.get_ref<const json::object_t&>()) {
      layout.metadata.emplace(key, field[key].text());
    }
  }
  finish_layout(layout, where);
  return layout;
}

// A safetensors file to read from, from any thread. Errors of all members: checkpoint_error with
// the path. Cost of opening: reads the header.
class safetensors_file {
 public:
  explicit safetensors_file(const std::string& path) : file_(detail::file::open(path)) {
    const std::int64_t bytes = file_.size();
    if (bytes < 8) {
      throw checkpoint_error(fmt::format(
          "{}: no safetensors file, or one that is damaged or incomplete: it has {} bytes; take "
          "another checkpoint",
          path, bytes));
    }
    std::array<std::byte, 8> prefix;
    file_.read(prefix, 0);
    std::string header(static_cast<std::size_t>(safetensors_header_length(prefix, bytes, path)),
                       '\0');
    file_.read(std::as_writable_bytes(std::span(header)), 8);
    layout_ = parse_safetensors_header(header, bytes, path);
  }

  [[nodiscard]] const std::string& path() const { return file_.path(); }
  [[nodiscard]] const safetensors_layout& layout() const { return layout_; }

  // Elements first, first + 1, ... of an array of this file, as many as `values` has. T is as wide
  // as its type; the host is little-endian. Errors: also if they are not all in the array.
  template <class T>
  void read(const safetensors_entry& entry, index_t first, std::span<T> values) const {
    const auto width = static_cast<std::int64_t>(sizeof(T));
    const auto count = static_cast<index_t>(values.size());
    if (detail::safetensors_bits(entry.dtype) != 8 * width || first < 0 ||
        first > entry.bytes / width || count > entry.bytes / width - first) {
      throw checkpoint_error(fmt::format(
          "{}: '{}' is {} bytes of {}; it has no {} elements of {} bytes from {} on", path(),
          detail::shown(entry.name), entry.bytes, entry.dtype, count, width, first));
    }
    file_.read(std::as_writable_bytes(values), entry.first_byte + first * width);
  }
  // That these elements will be read soon.
  void will_read(const safetensors_entry& entry, index_t first, index_t count) const {
    const std::int64_t width = detail::safetensors_bits(entry.dtype) / 8;
    file_.will_read(count * width, entry.first_byte + first * width);
  }

 private:
  detail::file file_;
  safetensors_layout layout_;
};

}  // namespace mfsdp::inline MFSDP_ABI
