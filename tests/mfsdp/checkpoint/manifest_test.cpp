#include "mfsdp/checkpoint/manifest.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "support/checkpoint_files.hpp"

namespace manifest_test {

using checkpoint_files::refusal_of;
using mfsdp::array_key;
using mfsdp::array_shape;
using mfsdp::index_t;
using mfsdp::manifest;
using mfsdp::parse_manifest;
using mfsdp::stored_array;
using mfsdp::stored_tensor;
using mfsdp::to_text;

namespace {

// A matrix of two row groups cut in two parts with states, a frozen vector, an empty tensor.
manifest sample_manifest() {
  manifest m;
  m.step = 12;
  m.plan_hash = "0123456789abcdef";
  m.ranks = 2;
  m.placement = "owner";
  m.precision = "compute fp32";
  m.rounding_seed = std::numeric_limits<std::uint64_t>::max();
  m.rules = {{"muon", "learning_rate 0.02\n"}, {"adamw", ""}};
  m.files = {{"parameters-00000-of-00002.safetensors", 400},
             {"states-00001-of-00002.safetensors", 300}};
  m.tensors = {{"u.m", {6, 4}, "matrix", false, "muon", {12, 11}},
               {"u.v", {3}, "vector", true, "", {}},
               {"u.e", {0, 5}, "elementwise", false, "adamw", {0}}};
  m.arrays = {{"u.m", 0, "", "", "F32", 24, 0xFEDCBA9876543210u, {{0, 0, 8}, {0, 8, 16}}},
              {"u.m", 0, "muon", "momentum", "F32", 12, 1, {{1, 0, 12}}},
              {"u.m", 1, "muon", "momentum", "BF16", 12, 0, {{1, 0, 5}, {1, 5, 7}}},
              {"u.v", 0, "", "", "BF16", 3, 5, {{0, 0, 3}}},
              {"u.e", 0, "", "", "F32", 0, 0, {}},
              {"u.e", 0, "adamw", "first", "F32", 0, 0, {}}};
  m.trainer = R"({"epoch": 1, "note": "a \"quoted\" line\n\u00e9"})";
  return m;
}

// What the parser says after `from` in the text of the sample became `to`, by someone who knows
// how its checksum is made.
std::string refusal_after_edit(std::string_view from, std::string_view to) {
  using mfsdp::detail::manifest_end;
  std::string text = to_text(sample_manifest());
  text.resize(text.size() - manifest_end("").size());
  const std::size_t at = text.find(from);
  REQUIRE(at != text.npos);
  text.replace(at, from.size(), to);
  text += manifest_end(text);
  return refusal_of([&] { return parse_manifest(text, "m"); });
}

}  // namespace

TEST_CASE("a manifest is read as it was written") {
  const manifest m = sample_manifest();
  CHECK(parse_manifest(to_text(m)) == m);
  CHECK(parse_manifest(to_text(manifest{})) == manifest{});
  CHECK(to_text(parse_manifest(to_text(m))) == to_text(m));
}

TEST_CASE("manifests of any contents are read as they were written") {
  std::mt19937 random(3);
  const auto up_to = [&](index_t largest) {
    return static_cast<index_t>(random() % static_cast<std::uint64_t>(largest + 1));
  };
  for (int round = 0; round < 100; ++round) {
    manifest m;
    m.step = 99 + (static_cast<std::int64_t>(random()) << up_to(7));
    m.ranks = 1 + static_cast<int>(up_to(1000));
    m.sites = 1 + static_cast<int>(up_to(4));
    m.site = static_cast<int>(up_to(m.sites - 1));
    m.rounding_seed = std::uint64_t{random()} << 32 | random();
    m.trainer = std::string(static_cast<std::size_t>(up_to(20)), static_cast<char>(1 + up_to(126)));
    m.files = {{"a.safetensors", std::int64_t{1} << 40}, {"b.safetensors", std::int64_t{1} << 40}};
    for (index_t t = up_to(5); t-- > 0;) {
      stored_tensor tensor{
          fmt::format("u{}.\xC3\xA9[0:4]/", t), {}, "elementwise", t % 3 == 0, "", {}};
      index_t elements = 1;
      for (index_t k = up_to(3); k-- > 0;) {
        tensor.shape.push_back(up_to(9));
        elements *= tensor.shape.back();
      }
      if (!tensor.frozen) {
        tensor.optimizer = "adamw";
        for (index_t k = up_to(3); k-- > 0;) tensor.updates.push_back(up_to(99));
      }
      m.tensors.push_back(tensor);
      const auto add_array = [&](index_t matrix, std::string optimizer, std::string state,
                                 index_t count) {
        stored_array array{tensor.name, matrix, optimizer, state, "F16", count, random(), {}};
        for (index_t next = 0; next < count;) {
          const index_t part = 1 + up_to(count - next - 1);
          array.parts.push_back({static_cast<std::size_t>(up_to(1)), next, part});
          next += part;
        }
        m.arrays.push_back(array);
      };
      add_array(0, "", "", elements);
      for (std::size_t k = 0; k < tensor.updates.size(); ++k) {
        add_array(static_cast<index_t>(k), "adamw", "first", up_to(50));
        add_array(static_cast<index_t>(k), "adamw", "second", up_to(50));
      }
    }
    const std::string text = to_text(m);
    CAPTURE(text);
    CHECK(parse_manifest(text) == m);
  }
}

TEST_CASE("hostile manifests are refused with the field and the fault") {
  struct hostile {
    std::string_view from, to, expected;
  };
  const std::vector<hostile> table{
      {"{\n", "{\n \"x\": 1,\n", "m: the JSON has a member 'x', which is unknown"},
      {"\"step\"", "\"stop\"", "m: the JSON has a member 'stop', which is unknown"},
      {" \"step\": 12,\n", "", "m: the JSON has no member 'step'"},
      {"{\n", "[", "not JSON"},
      {"\"step\": 12", "\"step\": 12, \"step\": 13", "m: 'step' is there twice"},
      {"mfsdp checkpoint", "mfsdp plan", "m: the JSON is no manifest: it has no format"},
      {"\"format\"", "\"Format\"", "m: the JSON is no manifest"},
      {"\"version\": 1", "\"version\": 2",
       "m: version is 2; this library reads 1: use the one that wrote it"},
      {"\"version\": 1", "\"version\": 1.0", "m: version is 1.0; it must be an integer"},
      {"\"version\": 1", "\"version\": \"1\"", "m: version is \"1\"; it must be an integer"},
      {"\"step\": 12", "\"step\": -1", "m: step is -1"},
      {"\"step\": 12", "\"step\": 9223372036854775808", "m: step is 9223372036854775808"},
      {"\"step\": 12", "\"step\": null", "m: step is null"},
      {"0123456789abcdef", "a\\nb", "m: plan_hash is 'a\\x0ab'; it must be without control"},
      {"\"ranks\": 2", "\"ranks\": 0", "m: ranks is 0; it must be an integer from 1 to 1048576"},
      {"\"ranks\": 2", "\"ranks\": 4294967297", "m: ranks is 4294967297"},
      {"\"replicas\": 1", "\"replicas\": 0", "m: replicas is 0"},
      {"\"sites\": 1", "\"sites\": -1", "m: sites is -1"},
      {"\"site\": 0", "\"site\": 1", "m: site is 1; it must be an integer from 0 to 0"},
      {"\"placement\": \"owner\"", "\"placement\": []",
       "m: placement is an array; it must be a text"},
      {"\"rounding_seed\": 18446744073709551615", "\"rounding_seed\": 18446744073709551616",
       "m: rounding_seed is 1.8446744073709552e+19"},
      {"\"rounding_seed\": 18446744073709551615", "\"rounding_seed\": -1",
       "m: rounding_seed is -1"},
      {"\"trainer\": \"", "\"trainer\": 0, \"more\": \"", "has a member 'more'"},
      {"{\"name\":\"muon\",", "{\"name\":\"\",", "m: rules[0].name is empty"},
      {"{\"name\":\"muon\",", "{\"name\":7,", "m: rules[0].name is 7; it must be a text"},
      {"{\"name\":\"adamw\",\"options\":\"\"}", "{\"name\":\"adamw\"}",
       "m: rules[1] has no member 'options'"},
      {"{\"name\":\"adamw\",\"options\":\"\"}", "{\"name\":{\"a\":{\"b\":{}}}}", "nested deeper"},

      {"parameters-00000-of-00002.safetensors", "../parameters.safetensors",
       "m: files[0].name is '../parameters.safetensors'; it must be the plain name of a file in "
       "the folder"},
      {"parameters-00000-of-00002.safetensors", "/etc/passwd", "plain name"},
      {"parameters-00000-of-00002.safetensors", "a/b", "plain name"},
      {"parameters-00000-of-00002.safetensors", "a\\\\b", "plain name"},
      {"parameters-00000-of-00002.safetensors", "c:b", "plain name"},
      {"parameters-00000-of-00002.safetensors", "..", "plain name"},
      {"parameters-00000-of-00002.safetensors", ".", "plain name"},
      {"parameters-00000-of-00002.safetensors", ".hidden", "plain name"},
      {"parameters-00000-of-00002.safetensors", "", "plain name"},
      {"parameters-00000-of-00002.safetensors", "manifest.json", "plain name"},
      {"parameters-00000-of-00002.safetensors", "a\\u0000b", "m: files[0].name is 'a\\x00b'"},
      {"parameters-00000-of-00002.safetensors", "a\\nb", "without control characters"},
      {"parameters-00000-of-00002.safetensors", "states-00001-of-00002.safetensors",
       "m: files[1].name is 'states-00001-of-00002.safetensors', which is there twice"},
      {"\"bytes\":400", "\"bytes\":-1", "m: files[0].bytes is -1"},
      {"\"bytes\":400", "\"bytes\":4e2", "m: files[0].bytes is 400.0"},
      {"\"bytes\":400", "\"bytes\":100",
       "m: arrays[3].parts[0].count is 3; 'parameters-00000-of-00002.safetensors' has no room"},

      {"{\"name\":\"u.m\"", "{\"name\":\"\"", "m: tensors[0].name is empty"},
      {"{\"name\":\"u.m\"", "{\"name\":\"u.v\"",
       "m: tensors[1].name is 'u.v', which is there twice"},
      {"{\"name\":\"u.m\"", "{\"name\":\"u.\\u007f\"", "without control characters"},
      {"[6,4]", "[6,-4]", "m: tensors[0].shape[1] is -4"},
      {"[6,4]", "[6,3]", "m: arrays[0].elements is 24; the tensor 'u.m' has 18"},
      {"[6,4]", "24", "m: tensors[0].shape is no array"},
      {"[6,4]", "[4294967296,4294967296]", "m: tensors[0].shape has too many elements to count"},
      {"[6,4]", "[0,144115188075855871,144115188075855871]", "m: arrays[0].elements is 24"},
      {"[6,4]", "[9223372036854775807]", "m: tensors[0].shape[0] is 9223372036854775807"},
      {"\"role\":\"matrix\"", "\"role\":\"tensor\"", "m: tensors[0].role is 'tensor', no role"},
      {"\"frozen\":false", "\"frozen\":0", "m: tensors[0].frozen is 0; it must be true or false"},
      {"\"frozen\":false", "\"frozen\":true", "m: tensors[0] must be frozen or have an optimizer"},
      {"\"frozen\":true", "\"frozen\":false", "m: tensors[1] must be frozen or have an optimizer"},
      {"\"updates\":[12,11]", "\"updates\":[12]",
       "m: arrays[2].matrix is 1; the tensor 'u.m' has 1"},
      {"\"updates\":[12,11]", "\"updates\":[12,-1]", "m: tensors[0].updates[1] is -1"},
      {"\"updates\":[12,11]", "\"updates\":[12,13]",
       "m: tensors[0].updates[1] is 13; it must be an integer from 0 to 12"},
      {"\"step\": 12", "\"step\": 1000000000000", "m: step is 1000000000000; it must be an"},
      {"\"updates\":[]", "\"updates\":[1]", "m: tensors[1] must be frozen"},

      {"{\"tensor\":\"u.m\"", "{\"tensor\":\"u.x\"",
       "m: arrays[0].tensor is 'u.x', which is not in the list of tensors"},
      {"{\"tensor\":\"u.m\",\"matrix\":0", "{\"tensor\":\"u.m\",\"matrix\":1",
       "m: arrays[0].matrix must be 0 for a parameter"},
      {"\"matrix\":1", "\"matrix\":2", "m: arrays[2].matrix is 2; the tensor 'u.m' has 2"},
      {"\"matrix\":1", "\"matrix\":0", "m: arrays[2] is there twice"},
      {"\"optimizer\":\"muon\",\"state\":\"momentum\"",
       "\"optimizer\":\"adamw\",\"state\":\"momentum\"",
       "m: arrays[1].optimizer is 'adamw'; that of the tensor 'u.m' is 'muon'"},
      {"\"optimizer\":\"muon\",\"state\":\"momentum\"", "\"optimizer\":\"\",\"state\":\"momentum\"",
       "m: arrays[1] must have both an optimizer and a state, or neither"},
      {"\"optimizer\":\"muon\",\"state\":\"momentum\"", "\"optimizer\":\"muon\",\"state\":\"\"",
       "m: arrays[1] must have both"},
      {"\"optimizer\":\"muon\",\"state\":\"momentum\",\"dtype\":\"F32\",\"elements\":12",
       "\"optimizer\":\"\",\"state\":\"\",\"dtype\":\"F32\",\"elements\":24",
       "m: arrays[1] is there twice"},
      {"\"dtype\":\"F32\"", "\"dtype\":\"F64\"",
       "m: arrays[0].dtype is 'F64'; it must be F32, BF16 or F16"},
      {"\"elements\":12", "\"elements\":13", "m: arrays[1].parts end at element 12 of 13"},
      {"\"elements\":12", "\"elements\":11",
       "m: arrays[1].parts[0].count is 12; it must be an integer "
       "from 1 to 11"},
      {"\"elements\":12", "\"elements\":9223372036854775807", "m: arrays[1].elements is 92233"},
      {"\"elements\":0", "\"elements\":1", "m: arrays[4].elements is 1; the tensor 'u.e' has 0"},
      {"fedcba9876543210", "fedcba987654321",
       "m: arrays[0].checksum is 'fedcba987654321'; it must be "
       "16 hexadecimal digits"},
      {"fedcba9876543210", "0xdcba9876543210", "16 hexadecimal digits"},
      {"fedcba9876543210", "-edcba9876543210", "16 hexadecimal digits"},
      {"\"checksum\":\"fedcba9876543210\"", "\"checksum\":7", "m: arrays[0].checksum is 7"},
      {"\"parts\":[{\"file\":0,\"first\":0,\"count\":8}",
       "\"parts\":[{\"file\":2,\"first\":0,\"count\":8}",
       "m: arrays[0].parts[0].file is 2; it must be an integer from 0 to 1"},
      {"\"parts\":[{\"file\":0", "\"parts\":[{\"file\":-1", "m: arrays[0].parts[0].file is -1"},
      {"\"first\":8", "\"first\":7",
       "m: arrays[0].parts[1].first is 7; the part before it ends at 8"},
      {"\"first\":8", "\"first\":9", "the part before it ends at 8"},
      {"\"count\":16", "\"count\":17", "m: arrays[0].parts[1].count is 17"},
      {"\"count\":16", "\"count\":9223372036854775807", "m: arrays[0].parts[1].count is 92233"},
      {"\"count\":16", "\"count\":15", "m: arrays[0].parts end at element 23 of 24"},
      {"\"count\":16", "\"count\":0", "m: arrays[0].parts[1].count is 0"},
      {"\"count\":16}", "\"count\":16},{\"file\":0,\"first\":24,\"count\":0}",
       "m: arrays[0].parts[2].count is 0"},
      {"\"parts\":[]", "\"parts\":[{\"file\":0,\"first\":0,\"count\":1}]",
       "m: arrays[4].parts[0].count is 1"},
      {"\"parts\":[]", "\"parts\":7", "m: arrays[4].parts is no array"},
  };
  for (const hostile& each : table) {
    CAPTURE(each.from);
    CAPTURE(each.to);
    const std::string refusal = refusal_after_edit(each.from, each.to);
    CAPTURE(refusal);
    CHECK(refusal.starts_with("m: "));
    CHECK(refusal.find(each.expected) != refusal.npos);
  }
}

TEST_CASE("all tensors without a parameter are named") {
  manifest m = sample_manifest();
  m.arrays.erase(m.arrays.begin());
  m.arrays.erase(m.arrays.begin() + 2);
  CHECK(refusal_of([&] { return to_text(m); }) ==
        "this manifest cannot be written: arrays has no parameter for 'u.m', 'u.v'");
}

TEST_CASE("a manifest that could not be read again is not written") {
  manifest m = sample_manifest();
  m.files[0].name = "../x";
  CHECK(refusal_of([&] {
          return to_text(m);
        }).starts_with("this manifest cannot be written: files[0].name is '../x'"));
  m = sample_manifest();
  m.trainer = "a\xFF";
  CHECK(refusal_of([&] { return to_text(m); }) ==
        "manifest: a text is not UTF-8, which JSON has to be");
}

TEST_CASE("a manifest cut off at any byte is refused") {
  const std::string text = to_text(sample_manifest());
  for (std::size_t end = 0; end < text.size(); ++end) {
    CAPTURE(end);
    CHECK(refusal_of([&] { return parse_manifest(std::string_view(text).substr(0, end)); }) != "");
  }
}

TEST_CASE("no byte of a manifest can be changed unnoticed") {
  const std::string text = to_text(sample_manifest());
  std::mt19937 random(5);
  for (std::size_t at = 0; at < text.size(); ++at) {
    CAPTURE(at);
    std::string changed = text;
    changed[at] = static_cast<char>(changed[at] ^ 1 << random() % 8);
    CHECK(refusal_of([&] { return parse_manifest(changed); }) != "");
  }
  std::string later = text;
  later.replace(later.find("\"step\": 12"), 10, "\"step\": 13");
  CHECK(refusal_of([&] { return parse_manifest(later); }) ==
        "manifest: the JSON is not what was written, by its checksum: the file is damaged; take "
        "another checkpoint");
}

TEST_CASE("parts have names and shapes of their own") {
  const stored_tensor whole{"u.m", {6, 4}, "matrix", false, "muon", {1}};
  const stored_tensor grouped{"u.m", {6, 4}, "matrix", false, "muon", {1, 1}};
  const stored_array parameter{"u.m", 0, "", "", "F32", 24, 0, {}};
  const stored_array state{"u.m", 1, "muon", "momentum", "F32", 12, 0, {}};
  using shape = std::vector<index_t>;

  CHECK(array_key(parameter, whole, 0, 24) == "u.m");
  CHECK(array_key(parameter, grouped, 0, 24) == "u.m");
  CHECK(array_key(parameter, whole, 8, 4) == "u.m[8:12]");
  CHECK(array_key(state, whole, 0, 12) == "u.m/muon.momentum");
  CHECK(array_key(state, grouped, 0, 12) == "u.m[#1]/muon.momentum");
  CHECK(array_key(state, grouped, 3, 5) == "u.m[#1]/muon.momentum[3:8]");

  CHECK(array_shape(parameter, whole, 0, 24) == shape{6, 4});
  CHECK(array_shape(parameter, whole, 8, 12) == shape{3, 4});
  CHECK(array_shape(parameter, whole, 8, 5) == shape{5});
  CHECK(array_shape(parameter, whole, 6, 4) == shape{4});
  CHECK(array_shape(state, grouped, 0, 12) == shape{12});
  const stored_tensor scalar{"u.s", {}, "elementwise", false, "adamw", {1}};
  CHECK(array_shape({"u.s", 0, "", "", "F32", 1, 0, {}}, scalar, 0, 1) == shape{});
  const stored_tensor empty{"u.e", {0, 4}, "elementwise", false, "adamw", {1}};
  CHECK(array_shape({"u.e", 0, "", "", "F32", 0, 0, {}}, empty, 0, 0) == shape{0, 4});
}

}  // namespace manifest_test
