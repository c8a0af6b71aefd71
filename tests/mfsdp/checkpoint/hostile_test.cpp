// Checkpoint folders that someone has prepared.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mfsdp/checkpoint.hpp"
#include "mfsdp/mfsdp.hpp"
#include "support/checkpoint_files.hpp"

namespace hostile_test {

namespace fs = std::filesystem;
using checkpoint_files::put_bytes;
using checkpoint_files::refusal_of;
using checkpoint_files::temporary_folder;

auto prepared_model() {
  mfsdp::model_spec spec;
  spec.unit("u").matrix("a", 4, 3).matrix("b", 4, 3);
  return mfsdp::sharded_model{spec, mfsdp::self{}, mfsdp::owner_placement{}, mfsdp::adamw{}};
}

std::string text_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void edit_file(const std::string& path, const std::function<void(std::string&)>& edit) {
  std::string text = text_of_file(path);
  edit(text);
  fs::remove(path);
  put_bytes(path, text);
}

// Replaces in a manifest, and makes its checksum fit.
void edit_manifest(const std::string& folder, std::string_view from, std::string_view to) {
  edit_file(folder + "/manifest.json", [&](std::string& text) {
    text.resize(text.size() - mfsdp::detail::manifest_end("").size());
    REQUIRE(text.find(from) != text.npos);
    text.replace(text.find(from), from.size(), to);
    text += mfsdp::detail::manifest_end(text);
  });
}

TEST_CASE("a prepared checkpoint is refused for what it is, and leads nowhere") {
  const temporary_folder saved;
  auto model = prepared_model();
  model.initialize([](const mfsdp::tensor_spec& tensor, std::span<float> values, mfsdp::index_t) {
    std::fill(values.begin(), values.end(), tensor.name == "u.a" ? 1.0f : 2.0f);
  });
  const std::string step = fs::path(mfsdp::save(model, saved.path())).filename().string();
  const std::string parameters = "/parameters-00000-of-00001.safetensors";
  const std::string states = "/states-00000-of-00001.safetensors";

  struct hostile {
    std::string_view what;
    // Of the checkpoint's folder, and another beside its root.
    std::function<void(const std::string& folder, const std::string& outside)> prepare;
    std::string_view expected;
  };
  const std::vector<hostile> table{
      {"nothing", [](const auto&, const auto&) {}, ""},
      {"a link to a file",
       [&](const auto& folder, const auto& outside) {
         fs::rename(folder + parameters, outside + "/file");
         fs::create_symlink(outside + "/file", folder + parameters);
       },
       "symbolic links are not followed"},
      {"a link to a manifest",
       [](const auto& folder, const auto& outside) {
         fs::rename(folder + "/manifest.json", outside + "/file");
         fs::create_symlink(outside + "/file", folder + "/manifest.json");
       },
       "symbolic links are not followed"},
      {"a link to a checkpoint",
       [](const auto& folder, const auto& outside) {
         fs::rename(folder, outside + "/folder");
         fs::create_symlink(outside + "/folder", folder);
       },
       "has no checkpoint"},
      {"a pipe, which would wait for a writer",
       [&](const auto& folder, const auto&) {
         fs::remove(folder + states);
         REQUIRE(mkfifo((folder + states).c_str(), 0600) == 0);
       },
       "it is a folder, a pipe or a device"},
      {"a manifest that is endless",
       [](const auto& folder, const auto&) {
         fs::resize_file(folder + "/manifest.json", std::uintmax_t{1} << 40);
       },
       "a manifest has at most 268435456"},
      {"a path out of the folder",
       [&](const auto& folder, const auto& outside) {
         fs::rename(folder + parameters, outside + "/file");
         edit_manifest(folder, parameters.substr(1), "../../outside/file");
       },
       "it must be the plain name of a file in the folder"},
      {"an absolute path",
       [&](const auto& folder, const auto&) {
         edit_manifest(folder, parameters.substr(1), "/etc/passwd");
       },
       "it must be the plain name of a file in the folder"},
      {"a step of another time",
       [](const auto& folder, const auto&) { edit_manifest(folder, "\"step\": 0", "\"step\": 7"); },
       "is of step 7: a folder was renamed"},
      {"a manifest that was edited",
       [](const auto& folder, const auto&) {
         edit_file(folder + "/manifest.json", [](std::string& text) {
           text.replace(text.find("\"rounding_seed\": 0"), 18, "\"rounding_seed\": 1");
         });
       },
       "is not what was written, by its checksum"},
      {"files that have changed places",
       [&](const auto& folder, const auto& outside) {
         fs::rename(folder + parameters, outside + "/file");
         fs::rename(folder + states, folder + parameters);
         fs::rename(outside + "/file", folder + states);
       },
       "it is not the file that was saved"},
      {"arrays that have changed names",
       [&](const auto& folder, const auto&) {
         edit_file(folder + parameters, [](std::string& text) {
           const std::size_t a = text.find("\"u.a\"");
           const std::size_t b = text.find("\"u.b\"");
           text[a + 3] = 'b';
           text[b + 3] = 'a';
         });
       },
       "by their checksums"},
      {"bytes behind the last array",
       [&](const auto& folder, const auto&) {
         edit_file(folder + parameters, [](std::string& text) { text += "more"; });
       },
       "more than its header says"},
      {"a header that claims all memory",
       [&](const auto& folder, const auto&) {
         edit_file(folder + parameters, [](std::string& text) { text.replace(0, 8, 8, '\x7F'); });
       },
       "a header of 9187201950435737471 bytes"},
      {"an array that claims all memory",
       [](const auto& folder, const auto&) {
         edit_manifest(folder, "\"shape\":[4,3]", "\"shape\":[400000000000000,3]");
       },
       "arrays[0].elements is 12; the tensor 'u.a' has 1200000000000000"},
  };
  for (const hostile& each : table) {
    CAPTURE(each.what);
    const temporary_folder place;
    fs::create_directory(place / "run");
    fs::create_directory(place / "outside");
    fs::copy(saved / step, place / ("run/" + step));
    each.prepare(place / ("run/" + step), place / "outside");

    auto loading = prepared_model();
    const std::string refusal = refusal_of([&] { return mfsdp::load(loading, place / "run"); });
    CAPTURE(refusal);
    CHECK((refusal == "") == (each.expected == ""));
    CHECK(refusal.find(each.expected) != refusal.npos);
  }
}

TEST_CASE("saving does not write through what is prepared in its way") {
  const temporary_folder place;
  fs::create_directory(place / "run");
  fs::create_directory(place / "outside");
  put_bytes(place / "outside/kept", "kept");
  fs::create_directory_symlink(place / "outside", place / "run/.step-000000000000.partial");
  fs::create_directory_symlink(place / "outside", place / "run/.step-000000000003.partial");
  auto model = prepared_model();
  model.initialize([](const mfsdp::tensor_spec&, std::span<float>, mfsdp::index_t) {});
  mfsdp::save(model, place / "run");
  CHECK(std::distance(fs::directory_iterator(place / "outside"), fs::directory_iterator()) == 1);
  CHECK(text_of_file(place / "outside/kept") == "kept");

  const std::string refusal = refusal_of(
      [&] { return mfsdp::export_model(model, place / "outside/kept/model.safetensors"), 0; });
  CHECK(refusal.find("Not a directory") != refusal.npos);
}

}  // namespace hostile_test
