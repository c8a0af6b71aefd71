#include "mfsdp/checkpoint/json.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "support/checkpoint_files.hpp"

namespace json_test {

using checkpoint_files::refusal_of;
using mfsdp::detail::json;
using mfsdp::detail::json_field;
using mfsdp::detail::parse_json;

namespace {

json parse_small_json(std::string_view text) {
  return parse_json(text, {1000, 4}, "f");
}

std::string json_refusal(std::string_view text) {
  return refusal_of([&] { return parse_small_json(text); });
}

}  // namespace

TEST_CASE("JSON of every kind is read as nlohmann's own parser reads it") {
  for (const std::string_view text :
       {"null", "true", "-3", "18446744073709551615", "2.5", R"("a\u00e9\n\ud83d\ude00")", "[]",
        "{}", R"([1, [2, {"a": [], "b": null}], "c"])",
        R"({"a": {"b": [{}, 1]}, "c": "", "": false})", " \t\r\n[1]\n ", "\"\xC3\xA9\""}) {
    CAPTURE(text);
    CHECK(parse_small_json(text) == json::parse(text));
  }
}

TEST_CASE("JSON that is not quite JSON is refused with its place") {
  struct hostile {
    std::string text;
    std::string_view expected;
  };
  const std::vector<hostile> table{
      {"", "f: not JSON at byte 1"},
      {" ", "not JSON at byte 2"},
      {"{", "not JSON at byte 2"},
      {"[1", "not JSON at byte 3"},
      {"[1,]", "not JSON at byte 4"},
      {"[1] 2", "not JSON at byte 5"},
      {"{'a': 1}", "not JSON at byte 2"},
      {"{1: 1}", "not JSON at byte 2"},
      {R"({"a" 1})", "not JSON at byte 6"},
      {"01", "not JSON at byte 2"},
      {"nan", "not JSON at byte 2"},
      {"Infinity", "not JSON at byte 1"},
      {"1e999", "not JSON at byte 5: number overflow"},
      {"// a\n1", "not JSON at byte 1"},
      {"\"a\nb\"", "control character"},
      {R"("\x41")", "not JSON at byte 3"},
      {R"("\ud800")", "surrogate"},
      {R"("\udc00")", "surrogate"},
      {"\"\xFF\"", "ill-formed UTF-8"},
      {"\"\xC0\x80\"", "ill-formed UTF-8"},          // overlong
      {"\"\xED\xA0\x80\"", "ill-formed UTF-8"},      // a surrogate
      {"\"\xF4\x90\x80\x80\"", "ill-formed UTF-8"},  // beyond Unicode
      {"\"\xE2\x82\"", "ill-formed UTF-8"},          // cut off
      {std::string("[1]\0[2]", 7), "not JSON at byte 4: a zero byte"},
      {R"({"a": 1, "b": {}, "a": 1})", "f: 'a' is there twice"},
      {R"([{"b": 1, "b": {}}])", "f: 'b' is there twice"},
      {R"({"a\u0062": 1, "ab": 1})", "f: 'ab' is there twice"},
      {R"({"": 1, "": 1})", "f: '' is there twice"},
      {"[[[[[]]]]]", "f: JSON nested deeper than 4"},
      {R"({"a":{"a":{"a":{"a":{}}}}})", "f: JSON nested deeper than 4"},
      {std::string(900, '['), "f: JSON nested deeper than 4"},
      {std::string(1001, ' '), "f: 1001 bytes of JSON; more than 1000 are not read"},
  };
  for (const hostile& each : table) {
    CAPTURE(each.text);
    const std::string refusal = json_refusal(each.text);
    CAPTURE(refusal);
    CHECK(refusal.starts_with("f: "));
    CHECK(refusal.find(each.expected) != refusal.npos);
  }
}

TEST_CASE("text cut off anywhere is refused") {
  const std::string_view whole = R"({"a": [1, -2.5e3, "b\u00e9", true], "c": {"d": null}})";
  CHECK(json_refusal(whole) == "");
  for (std::size_t end = 0; end < whole.size(); ++end) {
    CAPTURE(end);
    CHECK(json_refusal(whole.substr(0, end)) != "");
  }
}

TEST_CASE("an error shows a bounded part of a text, and nothing that a terminal would obey") {
  const std::string refusal =
      json_refusal("{\"" + std::string(300, 'x') + "\": 1, \"" + std::string(300, 'x') + "\": 2}");
  CHECK(refusal == "f: '" + std::string(120, 'x') + "...' is there twice");
  CHECK(mfsdp::detail::shown("a\x1b[2J\xFF\n") == "a\\x1b[2J\\xff\\x0a");
  CHECK(json_refusal("\"\x1b[2J").find('\x1b') == refusal.npos);
}

TEST_CASE("fields are of the type and in the range that is asked for") {
  const json root = parse_small_json(
      R"({"n": -1, "f": 1.0, "u": 18446744073709551615, "s": "a\nb", "b": true, "l": [0, 9],
          "e": "", "o": {"x": 1}})");
  const json_field fields(root, "f");
  CHECK(fields["n"].integer(-1, 0) == -1);
  CHECK(fields["u"].unsigned_integer() == std::numeric_limits<std::uint64_t>::max());
  CHECK(fields["s"].text() == "a\nb");
  CHECK(fields["b"].boolean());
  CHECK(fields["l"].size() == 2);
  CHECK(fields["l"][1].integer(9, 9) == 9);
  CHECK(fields["o"]["x"].integer(0, 1) == 1);
  CHECK(fields.has("n"));
  CHECK(!fields.has("m"));

  const std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  const auto refused = [](auto&& call) { return refusal_of(call); };
  CHECK(refused([&] { return fields["n"].integer(0, 5); }) ==
        "f: n is -1; it must be an integer from 0 to 5");
  CHECK(refused([&] { return fields["n"].unsigned_integer(); }) ==
        "f: n is -1; it must be an integer from 0 to 18446744073709551615");
  CHECK(refused([&] { return fields["f"].integer(0, 5); }) ==
        "f: f is 1.0; it must be an integer from 0 to 5");
  CHECK(refused([&] { return fields["u"].integer(0, largest); }) ==
        "f: u is 18446744073709551615; it must be an integer from 0 to 9223372036854775807");
  CHECK(refused([&] { return fields["l"].integer(0, 5); }) ==
        "f: l is an array; it must be an integer from 0 to 5");
  CHECK(refused([&] { return fields["l"][1].integer(0, 5); }) ==
        "f: l[1] is 9; it must be an integer from 0 to 5");
  CHECK(refused([&] { return fields["o"].text(); }) == "f: o is an object; it must be a text");
  CHECK(refused([&] { return fields["o"].boolean(); }) ==
        "f: o is an object; it must be true or false");
  CHECK(refused([&] { return fields["s"].line(); }) ==
        "f: s is 'a\\x0ab'; it must be without control characters");
  CHECK(refused([&] { return fields["e"].name(); }) == "f: e is empty");
  CHECK(refused([&] { return fields["o"].size(); }) == "f: o is no array");
  const auto members = [&](std::string_view field, std::initializer_list<std::string_view> names) {
    return refusal_of([&] { return fields[field].require_members(names), 0; });
  };
  CHECK(members("o", {"x"}) == "");
  CHECK(members("l", {"x"}) == "f: l is no object");
  CHECK(members("o", {"x", "y"}) == "f: o has no member 'y'");
  CHECK(members("o", {"y"}) == "f: o has a member 'x', which is unknown");
}

TEST_CASE("a text that is not UTF-8 is not written") {
  CHECK(refusal_of([] { return mfsdp::detail::dump_json(json("a\xFF"), "f"); }) ==
        "f: a text is not UTF-8, which JSON has to be");
}

}  // namespace json_test
