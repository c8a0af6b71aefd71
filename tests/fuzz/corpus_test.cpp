#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "fuzz/targets.hpp"

namespace corpus_test {

// Without libFuzzer: inputs that are kept, among them each that has once been a finding.
TEST_CASE("every fuzz target takes its corpus") {
  for (const fuzz::target& target : fuzz::targets) {
    CAPTURE(target.name);
    int inputs = 0;
    for (const auto& entry : std::filesystem::directory_iterator(
             std::filesystem::path(MFSDP_FUZZ_CORPUS) / target.name)) {
      INFO(entry.path().string());
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string input{std::istreambuf_iterator<char>(file), {}};
      target.run(input);
      ++inputs;
    }
    CHECK(inputs > 0);
  }
}

TEST_CASE("the manifest that the target 'load' begins with is one that loads") {
  std::ifstream file(std::string(MFSDP_FUZZ_CORPUS) + "/load/saved", std::ios::binary);
  const std::string input{std::istreambuf_iterator<char>(file), {}};
  CHECK(fuzz::loads(input));
}

}  // namespace corpus_test
