// Exported models are plain safetensors files with every tensor whole.
#include <doctest/doctest.h>

#include <filesystem>
#include <set>

#include "mfsdp/checkpoint.hpp"
#include "support/checkpoint_files.hpp"
#include "support/checkpoint_models.hpp"
#include "support/checkpoint_values.hpp"

namespace export_test {

namespace {

using checkpoint_files::refusal_of;
using checkpoint_files::temporary_folder;

using exported_types = mfsdp::precision<mfsdp::bfloat16>;

template <class Body>
void on_rows(int ranks, Body&& body) {
  mfsdp::thread_world{ranks}.run([&](auto comm) {
    mfsdp::sharded_model model{checkpoint_models::spec_of({"adamw"}), comm, mfsdp::row_placement{},
                               mfsdp::adamw{}, exported_types{}};
    body(model);
  });
}

// The tensors in a file, each compared with what set_values has put there: masters are float, what
// is frozen bfloat16.
std::set<std::string> check_exported(const std::string& path, int salt) {
  std::set<std::string> names;
  const mfsdp::safetensors_file file(path);
  const mfsdp::model_spec spec = checkpoint_models::spec_of({"adamw"});
  CHECK(file.layout().metadata.at("format") == "pt");
  for (const mfsdp::safetensors_entry& entry : file.layout().entries) {
    CAPTURE(entry.name);
    names.insert(entry.name);
    const mfsdp::tensor_spec& tensor = spec.tensors()[*spec.find_tensor(entry.name)];
    CHECK(tensor.name == entry.name);
    CHECK(entry.shape == tensor.extents);
    CHECK(entry.dtype == (tensor.options.frozen ? "BF16" : "F32"));
    mfsdp::index_t wrong = 0;
    const auto compare = [&]<class T>(T) {
      std::vector<T> values(static_cast<std::size_t>(tensor.elements()));
      file.read(entry, 0, std::span(values));
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto expected =
            checkpoint_values::made_up(entry.name, static_cast<mfsdp::index_t>(i), salt);
        wrong += static_cast<float>(values[i]) == static_cast<float>(T(expected)) ? 0 : 1;
      }
    };
    if (tensor.options.frozen) {
      compare(mfsdp::bfloat16{});
    } else {
      compare(float{});
    }
    CHECK(wrong == 0);
  }
  return names;
}

std::size_t count_files(const std::string& folder) {
  const std::filesystem::directory_iterator files(folder);
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

}  // namespace

TEST_CASE("one file, whole tensors under their names, tied ones once") {
  const temporary_folder folder;
  on_rows(3, [&](auto& model) {
    checkpoint_values::set_values(model, 1);
    mfsdp::export_model(model, folder / "model.safetensors");
    mfsdp::export_model(model, folder / "whole//");
  });
  CHECK(count_files(folder.path()) == 2);
  const auto names = check_exported(folder / "model.safetensors", 1);
  CHECK(names.size() == checkpoint_models::spec_of({"adamw"}).tensors().size());
  CHECK(names.contains("embedding.empty"));
  CHECK(!names.contains("head.output"));
  CHECK(check_exported(folder / "whole/model.safetensors", 1) == names);
  CHECK(count_files(folder / "whole") == 1);
}

TEST_CASE("an export replaces and removes nothing that was there before") {
  const temporary_folder folder;
  std::filesystem::create_directory(folder / "full");
  std::filesystem::create_directory(folder / "empty");
  std::filesystem::create_directory(folder / ".busy.partial");
  for (const char* const name : {"f.safetensors", "file", "full/kept", ".busy.partial/kept",
                                 ".two.safetensors.partial", "new.partial"}) {
    checkpoint_files::put_bytes(folder / name, "kept");
  }
  std::filesystem::create_symlink("nowhere", folder / "link");
  const std::size_t before = count_files(folder.path());
  on_rows(2, [&](auto& model) {
    checkpoint_values::set_values(model, 4);
    const auto refused = [&](const std::string& path, const mfsdp::export_options& options = {}) {
      return refusal_of([&] { return mfsdp::export_model(model, path, options), 0; });
    };
    for (const char* const name :
         {"f.safetensors", "f.safetensors/", "file", "full", "full/", "link"}) {
      CAPTURE(name);
      std::string path = folder / name;
      if (path.back() == '/') path.pop_back();
      CHECK(refused(folder / name).find("cannot export to '" + path + "': File exists") !=
            std::string::npos);
    }
    for (const char* const name : {"busy", "two.safetensors"}) {
      CAPTURE(name);
      CHECK(refused(folder / name).find(std::string(".") + name + ".partial': File exists") !=
            std::string::npos);
    }
    CHECK(refused(folder / "nothing/below").find("No such file") != std::string::npos);
    CHECK(refused("").find("check the path") != std::string::npos);
    for (const std::int64_t bytes : {0, -1}) {
      CHECK(refused(folder / "new", {.file_bytes = bytes}).find("file_bytes is") !=
            std::string::npos);
    }
  });
  CHECK(count_files(folder.path()) == before);
  for (const char* const name : {"f.safetensors", "file", "full/kept", ".busy.partial/kept",
                                 ".two.safetensors.partial", "new.partial"}) {
    CHECK(std::filesystem::file_size(folder / name) == 4);
  }
  on_rows(2, [&](auto& model) {
    checkpoint_values::set_values(model, 4);
    mfsdp::export_model(model, folder / "empty");
    mfsdp::export_model(model, folder / "new");
  });
  check_exported(folder / "empty/model.safetensors", 4);
  check_exported(folder / "new/model.safetensors", 4);
  CHECK(count_files(folder.path()) == before + 1);
}

TEST_CASE("above a size there are several files and an index that leads to each tensor") {
  const temporary_folder folder;
  on_rows(2, [&](auto& model) {
    checkpoint_values::set_values(model, 2);
    mfsdp::export_model(model, folder / "shards", {.file_bytes = 10000});
    const std::string fault = refusal_of([&] {
      mfsdp::export_model(model, folder / "shards");
      return 0;
    });
    CHECK(fault.find("remove it, or name another one") != std::string::npos);
  });
  CHECK(count_files(folder.path()) == 1);
  std::ifstream in(folder / "shards/model.safetensors.index.json");
  const auto index = nlohmann::json::parse(in);
  std::map<std::string, std::set<std::string>> by_file;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    by_file[file.get<std::string>()].insert(tensor);
  }
  CHECK(by_file.size() >= 3);
  std::size_t tensors = 0;
  for (const auto& [file, names] : by_file) {
    CHECK(check_exported(folder / ("shards/" + file), 2) == names);
    tensors += names.size();
  }
  CHECK(tensors == checkpoint_models::spec_of({"adamw"}).tensors().size());
  CHECK(count_files(folder / "shards") == by_file.size() + 1);
}

}  // namespace export_test
