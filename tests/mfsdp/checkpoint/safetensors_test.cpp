#include "mfsdp/checkpoint/safetensors.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/checkpoint_files.hpp"

namespace safetensors_test {

using checkpoint_files::put_bytes;
using checkpoint_files::refusal_of;
using checkpoint_files::temporary_folder;
using mfsdp::index_t;
using mfsdp::make_safetensors_header;
using mfsdp::parse_safetensors_header;
using mfsdp::safetensors_entry;
using mfsdp::safetensors_file;
using mfsdp::safetensors_layout;

namespace {

// What the parser says about a header in front of so many bytes of data.
std::string header_refusal(const std::string& header, std::int64_t data_bytes) {
  const auto file_bytes = static_cast<std::int64_t>(header.size()) + 8 + data_bytes;
  return refusal_of([&] { return parse_safetensors_header(header, file_bytes, "f"); });
}

std::string header_of_length(std::uint64_t length) {
  std::string prefix;
  for (int byte = 0; byte < 8; ++byte) prefix += static_cast<char>(length >> 8 * byte & 0xFF);
  return prefix;
}

bool equal_layouts(const safetensors_layout& a, const safetensors_layout& b) {
  bool equal = a.metadata == b.metadata && a.header_bytes == b.header_bytes &&
               a.file_bytes == b.file_bytes && a.by_name == b.by_name &&
               a.entries.size() == b.entries.size();
  for (std::size_t i = 0; equal && i < a.entries.size(); ++i) {
    const safetensors_entry& x = a.entries[i];
    const safetensors_entry& y = b.entries[i];
    equal = x.name == y.name && x.dtype == y.dtype && x.shape == y.shape &&
            x.first_byte == y.first_byte && x.bytes == y.bytes;
  }
  return equal;
}

}  // namespace

TEST_CASE("a safetensors header is read as it was written, whatever the arrays") {
  std::mt19937 random(7);
  const std::array<std::string, 5> dtypes{"F32", "BF16", "F16", "I64", "U8"};
  for (int round = 0; round < 200; ++round) {
    std::vector<safetensors_entry> entries(random() % 6);
    for (std::size_t e = 0; e < entries.size(); ++e) {
      entries[e].name = "t" + std::to_string(random() % 1000) + "." + std::to_string(e);
      if (random() % 4 == 0) entries[e].name += "\"\\\n\xC3\xA9";
      entries[e].dtype = dtypes[random() % dtypes.size()];
      for (std::size_t k = random() % 4; k-- > 0;) entries[e].shape.push_back(random() % 5);
    }
    std::map<std::string, std::string> metadata;
    if (round % 2 == 0) metadata = {{"format", "pt"}, {"of", "a \"test\""}};
    const auto [prefix, layout] = make_safetensors_header(entries, metadata);
    CAPTURE(prefix);

    REQUIRE(prefix.size() % 8 == 0);
    CHECK(static_cast<std::int64_t>(prefix.size()) == layout.header_bytes);
    CHECK(header_of_length(prefix.size() - 8) == prefix.substr(0, 8));
    CHECK(
        equal_layouts(parse_safetensors_header(prefix.substr(8), layout.file_bytes, "f"), layout));
    CHECK(layout.metadata == metadata);
    REQUIRE(layout.entries.size() == entries.size());
    for (const safetensors_entry& given : entries) {
      const safetensors_entry* const found = layout.find(given.name);
      REQUIRE(found != nullptr);
      CHECK(found->dtype == given.dtype);
      CHECK(found->shape == given.shape);
      const std::int64_t width = mfsdp::detail::safetensors_bits(given.dtype) / 8;
      CHECK(found->first_byte % width == 0);  // aligned, so that others can map the file
      CHECK(found->bytes ==
            std::accumulate(given.shape.begin(), given.shape.end(), width, std::multiplies<>()));
    }
    CHECK(layout.find("none") == nullptr);
  }
}

TEST_CASE("arrays that no file can have are not written") {
  const auto refused = [](std::vector<safetensors_entry> entries) {
    return refusal_of([&] { return make_safetensors_header(entries); });
  };
  CHECK(refused({{"a", "F32", {1}}, {"a", "F16", {1}}}) ==
        "two arrays of a safetensors file would have the name 'a': rename the tensor");
  CHECK(refused({{"__metadata__", "F32", {1}}}).find("'__metadata__'") != std::string::npos);
  CHECK(refused({{"a", "F31", {1}}}) ==
        "array 'a' of type 'F31' and 1 extents cannot be written to a safetensors file: no such "
        "type, or too large");
  const index_t large = index_t{1} << 40;
  CHECK(refused({{"a", "F32", {large, large}}}).find("too large") != std::string::npos);
  std::vector<safetensors_entry> eighths;
  for (const char* const name : {"a", "b", "c", "d", "e", "f", "g", "h"}) {
    eighths.push_back({name, "F32", {large, 1 << 17}});
  }
  CHECK(refused(eighths).starts_with("array 'h' of type 'F32'"));
  CHECK(refused({{"a", "F32", {-1}}}).find("too large") != std::string::npos);
  CHECK(refused({{"a\xFF", "F32", {1}}}).find("not UTF-8") != std::string::npos);
}

TEST_CASE("all types of the format are known by their widths") {
  const std::vector<std::pair<std::string, index_t>> bytes_of_eight{
      {"F64", 64},        {"F32", 32},       {"F16", 16},    {"BF16", 16},   {"I64", 64},
      {"I32", 32},        {"I16", 16},       {"I8", 8},      {"U64", 64},    {"U32", 32},
      {"U16", 16},        {"U8", 8},         {"BOOL", 8},    {"F8_E4M3", 8}, {"F8_E5M2", 8},
      {"F8_E8M0", 8},     {"F6_E2M3", 6},    {"F6_E3M2", 6}, {"F4", 4},      {"C64", 64},
      {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}};
  for (const auto& [dtype, bytes] : bytes_of_eight) {
    const std::string header = fmt::format(
        R"({{"a":{{"dtype":"{}","shape":[2,4],"data_offsets":[0,{}]}}}})", dtype, bytes);
    CAPTURE(header);
    CHECK(header_refusal(header, bytes) == "");
  }
  CHECK(header_refusal(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1) ==
        "f: 'a'.shape has too many elements to count, or no whole number of bytes");
}

TEST_CASE("hostile safetensors headers are refused with the array and the fault") {
  struct hostile {
    std::string header;
    std::int64_t data_bytes;
    std::string_view expected;
  };
  const auto one = [](std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return fmt::format(R"({{"a":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape,
                       offsets);
  };
  const auto two = [](std::string_view offsets, std::string_view others) {
    return fmt::format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":{}}},)"
                       R"("b":{{"dtype":"U8","shape":[4],"data_offsets":{}}}}})",
                       offsets, others);
  };
  const std::vector<hostile> table{
      {"", 0, "f: damaged or incomplete, or no safetensors file: the header is no object"},
      {"[]", 0, "the header is no object"},
      {" {}", 0, "the header is no object"},
      {"\xEF\xBB\xBF{}", 0, "the header is no object"},
      {"{}x", 0, "f: not JSON at byte 3"},
      {std::string("{}\0", 3), 0, "f: not JSON at byte 3: a zero byte"},
      {"{\"\xFF\":1}", 0, "ill-formed UTF-8"},
      {R"({"a":1})", 0, "f: 'a' is no object"},
      {R"({"a":[]})", 0, "f: 'a' is no object"},
      {R"({"a":{}})", 0, "f: 'a' has no member 'dtype'"},
      {R"({"a":{"dtype":"U8","shape":[]}})", 1, "f: 'a' has no member 'data_offsets'"},
      {R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1],"x":0}})", 1,
       "f: 'a' has a member 'x', which is unknown"},
      {R"({"a":{"dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1,
       "f: 'dtype' is there twice"},
      {R"({"a":{"dtype":"U8","shape":[[]],"data_offsets":[0,1]}})", 1,
       "f: JSON nested deeper than 3"},
      {R"({"a":)" + std::string(100000, '['), 1, "f: JSON nested deeper than"},
      {R"({"__metadata__":[]})", 0, "f: '__metadata__' is no object"},
      {R"({"__metadata__":{"a":1}})", 0, "f: '__metadata__'.a is 1; it must be a text"},
      {R"({"__metadata__":{"a":"","a":""}})", 0, "f: 'a' is there twice"},
      {one("\"F31\"", "[1]", "[0,4]"), 4, "f: 'a'.dtype is 'F31', no type of the format"},
      {one("\"f32\"", "[1]", "[0,4]"), 4, "no type of the format"},
      {one("\"\"", "[1]", "[0,4]"), 4, "no type of the format"},
      {one("7", "[1]", "[0,4]"), 4, "f: 'a'.dtype is 7; it must be a text"},
      {one("\"U8\"", "4", "[0,4]"), 4, "f: 'a'.shape is no array"},
      {one("\"U8\"", "[4.0]", "[0,4]"), 4, "f: 'a'.shape[0] is 4.0; it must be an integer"},
      {one("\"U8\"", "[2,-2]", "[0,4]"), 4, "f: 'a'.shape[1] is -2; it must be an integer"},
      {one("\"U8\"", "[9223372036854775808]", "[0,4]"), 4,
       "f: 'a'.shape[0] is 9223372036854775808"},
      {one("\"U8\"", "[18446744073709551616]", "[0,4]"), 4, "f: 'a'.shape[0] is 1.84467"},
      {one("\"U8\"", "[true]", "[0,4]"), 4, "f: 'a'.shape[0] is true; it must be an integer"},
      // 2^62 * 4 wraps to 0, 2^33 * 2^31 * 8 as well
      {one("\"U8\"", "[4611686018427387904,4]", "[0,0]"), 0, "f: 'a'.shape has too many elements"},
      {one("\"F64\"", "[8589934592,2147483648]", "[0,0]"), 0, "f: 'a'.shape has too many elements"},
      {one("\"U8\"", "[0,4611686018427387904,4]", "[0,0]"), 0,
       "f: 'a'.shape has too many elements"},
      {one("\"F32\"", "[1]", "[0,3]"), 3,
       "f: 'a'.data_offsets are 3 bytes apart; this type and shape have 4"},
      {one("\"F32\"", "[]", "[0,0]"), 0, "f: 'a'.data_offsets are 0 bytes apart"},
      {one("\"F32\"", "[0]", "[0,4]"), 4, "f: 'a'.data_offsets are 4 bytes apart"},
      {one("\"U8\"", "[4]", "{}"), 4, "f: 'a'.data_offsets is no array"},
      {one("\"U8\"", "[4]", "[0]"), 4, "f: 'a'.data_offsets must be two numbers"},
      {one("\"U8\"", "[4]", "[0,4,4]"), 4, "f: 'a'.data_offsets must be two numbers"},
      {one("\"U8\"", "[4]", "[4,0]"), 4,
       "f: 'a'.data_offsets[1] is 0; it must be an integer from 4 to"},
      {one("\"U8\"", "[4]", "[-4,0]"), 4, "f: 'a'.data_offsets[0] is -4"},
      {one("\"U8\"", "[4]", "[0,4]"), 3,
       "f: has 64 bytes, fewer than its header says, which is 65: it is damaged or incomplete; "
       "take "
       "another checkpoint"},
      {one("\"U8\"", "[4]", "[18446744073709551612,0]"), 4, "f: 'a'.data_offsets[0] is 1844674407"},
      {one("\"U8\"", "[4]", "[0,4]"), 5, "has 66 bytes, more than its header says, which is 65"},
      {one("\"U8\"", "[4]", "[1,5]"), 5,
       "f: 'a' begins at byte 1 of the data; it must follow the bytes before it at 0: there is a "
       "gap"},
      {two("[0,4]", "[5,9]"), 9,
       "f: 'b' begins at byte 5 of the data; it must follow the bytes before it at 4: there is a "
       "gap"},
      {two("[0,4]", "[3,7]"), 7,
       "f: 'b' begins at byte 3 of the data; it must follow the bytes before it at 4: they "
       "overlap"},
      {two("[0,4]", "[0,4]"), 4, "they overlap"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
       R"("a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       8, "f: 'a' is there twice"},
      {"{}", 1,
       "has 11 bytes, more than its header says, which is 10: it is damaged or incomplete"},
  };
  for (const hostile& each : table) {
    CAPTURE(each.header.substr(0, 200));
    const std::string refusal = header_refusal(each.header, each.data_bytes);
    CAPTURE(refusal);
    CHECK(refusal.starts_with("f: "));
    CHECK(refusal.find(each.expected) != refusal.npos);
  }
}

TEST_CASE("what the format allows is read") {
  CHECK(header_refusal("{}", 0) == "");
  CHECK(header_refusal("{}      ", 0) == "");
  CHECK(header_refusal(R"({"__metadata__":{}})", 0) == "");
  // A scalar; an empty array between others and of any extents; entries in any order.
  CHECK(header_refusal(R"({"c":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},)"
                       R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                       R"("b":{"dtype":"F32","shape":[7,0],"data_offsets":[4,4]}})",
                       6) == "");
}

TEST_CASE(
    "a length of the header that the file has no room for is refused before memory is taken") {
  const temporary_folder folder;
  const std::string path = folder / "f";
  const auto refused = [&](const std::string& bytes) {
    put_bytes(path, bytes);
    return refusal_of([&] { return safetensors_file(path); });
  };
  CHECK(refused("") == path +
                           ": no safetensors file, or one that is damaged or incomplete: it has 0 "
                           "bytes; take another checkpoint");
  CHECK(refused("1234567").ends_with("it has 7 bytes; take another checkpoint"));
  CHECK(refused(header_of_length(3) + "{}") ==
        path +
            ": no safetensors file, or one that is damaged or incomplete: a header of 3 bytes; 2 "
            "would fit; take another checkpoint");
  CHECK(refused(header_of_length(~std::uint64_t{0}) + "{}")
            .find("a header of 18446744073709551615 bytes; 2 would fit") != std::string::npos);
  CHECK(refused(header_of_length(std::uint64_t{1} << 63) + "{}").find("2 would fit") !=
        std::string::npos);
  CHECK(refused(header_of_length(0)).find("the header is no object") != std::string::npos);
  CHECK(refused(header_of_length(2) + "{}") == "");

  // A file of 200 MB, sparse, whose header would be longer than any honest one.
  put_bytes(path, header_of_length(150'000'000) + "{}");
  std::filesystem::resize_file(path, 200'000'000);
  CHECK(refusal_of([&] {
          return safetensors_file(path);
        }).find("a header of 150000000 bytes; 100000000 would fit") != std::string::npos);
}

TEST_CASE("arrays are read by ranges, and not beyond") {
  const temporary_folder folder;
  const std::string path = folder / "f";
  const auto [prefix, layout] =
      make_safetensors_header({{"a", "BF16", {3}}, {"b", "F32", {2, 2}}, {"e", "F32", {0}}});
  std::string bytes = prefix;
  const std::array<float, 4> b{1.0f, 2.0f, 3.0f, 4.0f};
  const std::array<std::uint16_t, 3> a{0x3F80, 0x4000, 0x4040};
  bytes.append(reinterpret_cast<const char*>(b.data()), sizeof(b));
  bytes.append(reinterpret_cast<const char*>(a.data()), sizeof(a));
  put_bytes(path, bytes);

  const safetensors_file file(path);
  CHECK(file.path() == path);
  CHECK(equal_layouts(file.layout(), layout));
  std::array<float, 2> two{};
  file.read<float>(*file.layout().find("b"), 1, two);
  CHECK(two == std::array{2.0f, 3.0f});
  std::array<std::uint16_t, 3> halves{};
  file.read<std::uint16_t>(*file.layout().find("a"), 0, halves);
  CHECK(halves == a);
  file.read(*file.layout().find("e"), 0, std::span(two).first(0));

  const auto refused = [&](std::string_view name, index_t first, auto values) {
    return refusal_of([&] { return file.read(*file.layout().find(name), first, values), 0; });
  };
  CHECK(refused("b", 3, std::span<float>(two)) ==
        path + ": 'b' is 16 bytes of F32; it has no 2 elements of 4 bytes from 3 on");
  CHECK(refused("b", -1, std::span<float>(two)) != "");
  CHECK(refused("b", index_t{1} << 62, std::span<float>(two)) != "");
  CHECK(refused("b", 0, std::span<std::uint16_t>(halves)).find("of 2 bytes from 0 on") !=
        std::string::npos);
  CHECK(refused("e", 0, std::span<float>(two)) != "");
}

TEST_CASE("a file cut off at any byte is refused") {
  const temporary_folder folder;
  const std::string path = folder / "f";
  const auto [prefix, layout] =
      make_safetensors_header({{"a", "F32", {5}}, {"b", "BF16", {2, 3}}}, {{"format", "pt"}});
  const std::string whole = prefix + std::string(32, 'x');
  REQUIRE(static_cast<std::int64_t>(whole.size()) == layout.file_bytes);
  for (std::size_t end = 0; end <= whole.size(); ++end) {
    CAPTURE(end);
    put_bytes(path, whole.substr(0, end));
    const std::string refusal = refusal_of([&] { return safetensors_file(path); });
    CHECK((refusal == "") == (end == whole.size()));
  }
}

}  // namespace safetensors_test
