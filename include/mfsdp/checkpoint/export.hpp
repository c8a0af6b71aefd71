// export_model: the parameters alone, as plain safetensors files that other programs read.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mfsdp/checkpoint/agree.hpp"
#include "mfsdp/checkpoint/chunks.hpp"
#include "mfsdp/checkpoint/description.hpp"
#include "mfsdp/checkpoint/division.hpp"
#include "mfsdp/checkpoint/file.hpp"
#include "mfsdp/checkpoint/json.hpp"
#include "mfsdp/checkpoint/manifest.hpp"
#include "mfsdp/checkpoint/safetensors.hpp"

namespace mfsdp::inline MFSDP_ABI {

struct export_options {
  // Of the arrays in one file, where there may be several; a larger tensor has one for itself.
  // Positive.
  std::int64_t file_bytes = 5'000'000'000;
};

namespace detail {

// The path that an export gets: without slashes at its end. Errors: checkpoint_error if there is
// anything but an empty folder in the place of a folder, or anything at all in that of a file.
[[nodiscard]] inline std::string export_target(std::string path) {
  while (path.ends_with('/')) path.pop_back();
  if (path.empty()) fail_on_file("export to", path, ENOENT);
  std::error_code unknown;
  const std::filesystem::file_status there = std::filesystem::symlink_status(path, unknown);
  const bool empty_folder = !path.ends_with(".safetensors") &&
                            there.type() == std::filesystem::file_type::directory &&
                            std::filesystem::is_empty(path, unknown);
  if (std::filesystem::exists(there) && !empty_folder) fail_on_file("export to", path, EEXIST);
  return path;
}

// The files of an export, and where each tensor is.
class export_layout {
 public:
  // `to` is the path of a file if it ends as one, else that of a folder, without a slash at its
  // end. Errors: checkpoint_error.
  export_layout(const manifest& description, std::string to, const export_options& options)
      : to_(std::move(to)), folder_(!to_.ends_with(".safetensors")) {
    if (options.file_bytes <= 0) {
      throw checkpoint_error(
          fmt::format("export_options.file_bytes is {}; it must be positive", options.file_bytes));
    }
    std::vector<std::vector<safetensors_entry>> entries(1);
    std::int64_t bytes = 0;
    for (std::size_t t = 0; t < description.tensors.size(); ++t) {
      const stored_array& array = description.arrays[t];
      const std::int64_t own = array.elements * safetensors_bits(array.dtype) / 8;
      if (folder_ && bytes > 0 && bytes + own > options.file_bytes) {
        entries.emplace_back();
        bytes = 0;
      }
      bytes += own;
      total_ += own;
      entries.back().push_back({array.tensor, array.dtype, description.tensors[t].shape});
      places_.push_back({entries.size() - 1, 0});
    }
    for (auto& of_file : entries) {
      auto [header, layout] = make_safetensors_header(std::move(of_file), {{"format", "pt"}});
      files_.push_back({file_name(files_.size(), entries.size()), std::move(header)});
      layouts_.push_back(std::move(layout));
    }
    open_.resize(files_.size());
    for (std::size_t t = 0; t < places_.size(); ++t) {
      const std::string& name = description.tensors[t].name;
      places_[t].second = layouts_[places_[t].first].find(name)->first_byte;
      if (files_.size() > 1) index_[name] = files_[places_[t].first].first;
    }
  }

  // One rank: creates the files, with headers. Fails if anything has the partial's name.
  void begin() {
    if (folder_) create_folder(partial());
    begun_ = folder_;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      file fresh = file::create(path_of_file(i));
      begun_ = true;
      fresh.write(std::as_bytes(std::span(files_[i].second)), 0);
      fresh.sync();
      fresh.close();
    }
  }
  // Every rank, for what it writes, then finish().
  void put(std::size_t tensor, index_t first, std::span<const std::byte> elements,
           std::size_t width) {
    const auto& [which, start] = places_[tensor];
    if (!open_[which]) open_[which] = file::amend(path_of_file(which));
    open_[which]->write(elements, start + first * static_cast<std::int64_t>(width));
  }
  void finish() {
    for (std::optional<file>& each : open_) {
      if (!each) continue;
      each->sync();
      each->close();
      each.reset();
    }
  }
  // One rank, when all have finished: gives the files their names.
  void commit() const {
    if (!index_.empty()) {
      const json index{{"metadata", {{"total_size", total_}}}, {"weight_map", index_}};
      write_file(partial() + "/model.safetensors.index.json",
                 dump_json(index, "index of an export") + "\n");
    }
    if (folder_) sync_folder(partial());
    rename_durably(partial(), export_target(to_));
  }
  // Removes what this rank has created, as far as possible.
  void discard() const noexcept {
    if (!begun_) return;
    std::error_code ignored;
    std::filesystem::remove_all(partial(), ignored);
  }

 private:
  // Beside the target, hidden.
  [[nodiscard]] std::string partial() const {
    const std::filesystem::path to = to_;
    return (to.parent_path() / fmt::format(".{}.partial", to.filename().string())).string();
  }
  [[nodiscard]] std::string file_name(std::size_t i, std::size_t files) const {
    return files == 1 ? "model.safetensors"
                      : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files);
  }
  [[nodiscard]] std::string path_of_file(std::size_t i) const {
    return folder_ ? partial() + "/" + files_[i].first : partial();
  }

  std::string to_;
  bool folder_;
  std::int64_t total_ = 0;
  std::vector<std::pair<std::string, std::string>> files_;    // names and headers
  std::vector<safetensors_layout> layouts_;                   // of the files
  std::vector<std::pair<std::size_t, std::int64_t>> places_;  // file and first byte, by tensor
  std::map<std::string, std::string> index_;                  // files of tensors, if several
  std::vector<std::optional<file>> open_;                     // what this rank has written to
  bool begun_ = false;
};

}  // namespace detail

// Writes all parameters, whole and under their names, in the type that is updated (frozen ones as
// they are held): to one safetensors file if `path` ends in ".safetensors", which must not be there
// yet, else to a folder that is new, or empty, as model.safetensors, or several files with an index
// as is usual for large models. A tied tensor is there once, under the name that it was declared
// with. All ranks of one site alike, to a file system that all of them see; it is there when all is
// written and on the disk, or not at all: until then it has the hidden name .<name>.partial beside
// it, which a crash leaves, and which the next export refuses to take. Errors: usage_error and
// checkpoint_error as save; also if anything is there already.
template <class Model>
void export_model(Model& model, const std::string& path, const export_options& options = {}) {
  const auto held = model.persistence();
  held.require_step_boundary("export_model");
  const detail::gather_numbers gather = detail::gather_of(model);
  const std::string doing = fmt::format("export to '{}'", path);
  const auto parameters = held.arrays().first(model.plan().tensors.size());
  const auto parts =
      detail::divide_writing(model.plan(), parameters, model.ranks() / model.plan().ranks);
  std::optional<detail::export_layout> files;
  const auto all_of_them = [&](auto&& f) {
    detail::require_no_fault(gather, detail::fault_of(f), doing);
  };
  try {
    all_of_them([&] {
      std::string target = detail::export_target(path);
      files.emplace(detail::describe_model(model), std::move(target), options);
    });
    all_of_them([&] {
      if (model.rank() == 0) files->begin();
    });
    all_of_them([&] {
      held.for_each_held([&]<class T>(const held_part& part, std::span<const T> values) {
        const auto* const own = detail::find_part(parts, part.array, part.first);
        if (own == nullptr || own->rank != model.rank()) return;
        detail::for_each_host_chunk(held, values, [&](index_t at, std::span<const T> host) {
          files->put(part.array, part.first + at, std::as_bytes(host), sizeof(T));
        });
      });
      files->finish();
    });
    all_of_them([&] {
      if (model.rank() == 0) files->commit();
    });
  } catch (const checkpoint_error&) {
    if (files) files->discard();
    throw;
  }
}

}  // namespace mfsdp::inline MFSDP_ABI
