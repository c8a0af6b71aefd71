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
    mfsdp::export_model(model, folder / "model.safetensors");  // in place of the former
    mfsdp::export_model(model, folder / "whole");
  });
  CHECK(count_files(folder.path()) == 2);
  const auto names = check_exported(folder / "model.safetensors", 1);
  CHECK(names.size() == checkpoint_models::spec_of({"adamw"}).tensors().size());
  CHECK(names.contains("embedding.empty"));
  CHECK(!names.contains("head.output"));
  CHECK(check_exported(folder / "whole/model.safetensors", 1) == names);
  CHECK(count_files(folder / "whole") == 1);
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
