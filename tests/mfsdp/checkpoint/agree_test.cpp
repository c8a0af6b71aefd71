// What ranks tell each other.
#include "mfsdp/checkpoint/agree.hpp"

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

namespace agree_test {

namespace {

// One rank that hears itself.
std::vector<std::uint64_t> echo(const std::vector<std::uint64_t>& own, std::string_view) {
  return own;
}

}  // namespace

TEST_CASE("a long text ends with how much is left out, between two characters") {
  using mfsdp::detail::gather_texts;
  const std::string fits(65536, 'x');
  CHECK(gather_texts(echo, fits, "texts") == std::vector<std::string>{fits});
  for (int shift = 0; shift < 3; ++shift) {
    CAPTURE(shift);
    std::string text(static_cast<std::size_t>(shift), 'x');
    for (int i = 0; i < 30000; ++i) text += "\xE2\x82\xAC";
    const std::string heard = gather_texts(echo, text, "texts").at(0);
    CHECK(heard.size() <= 65536);
    const std::size_t end = heard.find("... (");
    REQUIRE(end != heard.npos);
    CHECK((end - static_cast<std::size_t>(shift)) % 3 == 0);
    CHECK(heard.substr(0, end) == text.substr(0, end));
    CHECK(heard.substr(end) == "... (" + std::to_string(text.size() - end) + " more bytes)");
  }
}

}  // namespace agree_test
