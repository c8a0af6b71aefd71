// Reads ranges of the arrays of a checkpoint, wherever its parts are cut.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "mfsdp/checkpoint/file.hpp"
#include "mfsdp/checkpoint/json.hpp"
#include "mfsdp/checkpoint/manifest.hpp"
#include "mfsdp/checkpoint/safetensors.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// Opens a file that a checkpoint must have. Errors: checkpoint_error.
template <class Open>
[[nodiscard]] auto open_stored(const std::string& path, Open open) {
  std::error_code unknown;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, unknown)) &&
      unknown != std::errc::permission_denied) {
    throw checkpoint_error(
        fmt::format("'{}' is not there: the checkpoint is damaged or incomplete; take another "
                    "checkpoint",
                    path));
  }
  return open(path);
}

// Errors: checkpoint_error.
[[nodiscard]] inline std::string read_manifest_text(const std::string& folder) {
  const file from = open_stored(folder + "/manifest.json", file::open);
  const std::int64_t bytes = from.size();
  if (static_cast<std::uint64_t>(bytes) > manifest_limits.bytes) {
    throw checkpoint_error(fmt::format("{}: has {} bytes; a manifest has at most {}", from.path(),
                                       bytes, manifest_limits.bytes));
  }
  std::string text(static_cast<std::size_t>(bytes), '\0');
  from.read(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

// Opens a file when it is first needed. Errors of all members: checkpoint_error naming the file,
// and the tensor if it is about one.
class checkpoint_reader {
 public:
  checkpoint_reader(std::string folder, const manifest& stored)
      : folder_(std::move(folder)), stored_(stored), files_(stored.files.size()) {
    for (const stored_tensor& tensor : stored.tensors) tensors_.emplace(tensor.name, &tensor);
  }

  // Elements first, first + 1, ... of an array, as many as `values` has. Word is as wide as the
  // type that is stored.
  template <class Word>
  void read(std::size_t array, index_t first, std::span<Word> values) {
    for_each_range(array, first, std::ssize(values),
                   [&](const safetensors_file& file, const safetensors_entry& entry, index_t from,
                       index_t at, index_t count) {
                     file.read(entry, from, slice(values, at, count));
                     bytes_ += count * static_cast<index_t>(sizeof(Word));
                   });
  }
  // That they will be read soon.
  void will_read(std::size_t array, index_t first, index_t count) {
    for_each_range(array, first, count,
                   [](const safetensors_file& file, const safetensors_entry& entry, index_t from,
                      index_t, index_t n) { file.will_read(entry, from, n); });
  }

  // Read so far: of arrays, and of headers.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] std::int64_t header_bytes() const { return header_bytes_; }

  // The files that an array is in, for messages.
  [[nodiscard]] std::string files_of(const stored_array& array) const {
    std::string names;
    std::size_t last = stored_.files.size();
    for (const stored_part& part : array.parts) {
      if (part.file == last) continue;
      last = part.file;
      names += fmt::format("{}'{}/{}'", names.empty() ? "" : ", ", folder_,
                           shown(stored_.files[part.file].name));
    }
    return names;
  }

 private:
  // Calls f(file, entry, first element in it, first element in the range, elements) for each part
  // of an array that a range is in.
  template <class F>
  void for_each_range(std::size_t array, index_t first, index_t elements, F&& f) {
    const stored_array& from = stored_.arrays[array];
    auto part = std::ranges::upper_bound(from.parts, first, {}, &stored_part::first) - 1;
    for (index_t done = 0; done < elements; ++part) {
      const index_t at = first + done;
      const index_t count = std::min(elements - done, part->first + part->count - at);
      const safetensors_file& file = open(part->file);
      f(file, entry_of(file, from, *part), at - part->first, done, count);
      done += count;
    }
  }

  const safetensors_file& open(std::size_t which) {
    std::optional<safetensors_file>& file = files_[which];
    if (file) return *file;
    const stored_file& expected = stored_.files[which];
    file.emplace(open_stored(folder_ + "/" + expected.name,
                             [](const std::string& path) { return safetensors_file(path); }));
    header_bytes_ += file->layout().header_bytes;
    if (file->layout().file_bytes != expected.bytes) {
      throw checkpoint_error(fmt::format(
          "'{}' has {} bytes; by the manifest it should have {}: it is not the file that was saved",
          file->path(), file->layout().file_bytes, expected.bytes));
    }
    return *file;
  }

  const safetensors_entry& entry_of(const safetensors_file& file, const stored_array& array,
                                    const stored_part& part) const {
    const std::string key = array_key(array, *tensors_.at(array.tensor), part.first, part.count);
    const safetensors_entry* const entry = file.layout().find(key);
    if (entry == nullptr || entry->dtype != array.dtype ||
        entry->bytes != part.count * safetensors_bits(array.dtype) / 8) {
      throw checkpoint_error(fmt::format(
          "'{}' has no '{}' of {} elements of type {}, which it should have by the manifest: it is "
          "not the file that was saved",
          file.path(), shown(key), part.count, array.dtype));
    }
    return *entry;
  }

  std::string folder_;
  const manifest& stored_;
  std::vector<std::optional<safetensors_file>> files_;
  std::map<std::string_view, const stored_tensor*> tensors_;
  std::int64_t bytes_ = 0;
  std::int64_t header_bytes_ = 0;
};

}  // namespace mfsdp::inline MFSDP_ABI::detail
