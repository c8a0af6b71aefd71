// The files that one rank writes of a checkpoint.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mfsdp/checkpoint/division.hpp"
#include "mfsdp/checkpoint/file.hpp"
#include "mfsdp/checkpoint/manifest.hpp"
#include "mfsdp/checkpoint/safetensors.hpp"
#include "mfsdp/runtime/bits_hash.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// A rank has a file of parameters and one of states, if it writes any.
inline constexpr std::array<std::string_view, 2> share_kinds{"parameters", "states"};

[[nodiscard]] inline std::size_t share_kind(const stored_array& array) {
  return array.is_parameter() ? 0 : 1;
}

[[nodiscard]] inline std::string share_name(std::size_t kind, int rank, int ranks) {
  return fmt::format("{}-{:05}-of-{:05}.safetensors", share_kinds[kind], rank, ranks);
}

// Puts elements where they belong, in any order, and sums up their hashes. Errors of what touches
// files: checkpoint_error with the path.
class rank_share {
 public:
  // `m` describes the arrays that the parts are of, and outlives this.
  rank_share(const manifest& m, std::vector<written_part> parts, int rank, int ranks)
      : description_(m),
        rank_(rank),
        ranks_(ranks),
        parts_(std::move(parts)),
        checksums_(m.arrays.size(), 0) {
    std::erase_if(parts_, [&](const written_part& part) { return part.rank != rank; });
  }

  // Creates the files. Errors: also if a header cannot be written, of one rank alone.
  void open(const std::string& folder) {
    lay_out();
    for (share_file& each : files_) {
      if (each.bytes == 0) continue;
      each.open.emplace(file::create(folder + "/" + each.name));
      each.open->write(std::as_bytes(std::span(each.header)), 0);
    }
  }

  // Whether this rank writes the part of an array in which this element is.
  [[nodiscard]] bool writes(std::size_t array, index_t first) const {
    return find_part(parts_, array, first) != nullptr;
  }

  // Elements of an array from `first` on, `width` bytes each, which this rank writes.
  void put(std::size_t array, index_t first, std::span<const std::byte> elements,
           std::size_t width) {
    const auto i = static_cast<std::size_t>(find_part(parts_, array, first) - parts_.data());
    checksums_[array] += bits_hash_of(elements, first, width);
    const auto offset = (first - parts_[i].first) * static_cast<index_t>(width);
    files_[kinds_[i]].open->write(elements, starts_[i] + offset);
  }

  // Waits for the disk and closes the files.
  void finish() {
    for (share_file& each : files_) {
      if (!each.open) continue;
      each.open->sync();
      each.open->close();
      each.open.reset();
    }
  }

  // Of what this rank has put of each array; the size of its file of a kind, zero if it has none.
  [[nodiscard]] const std::vector<std::uint64_t>& checksums() const { return checksums_; }
  [[nodiscard]] std::int64_t bytes_of(std::size_t kind) const { return files_[kind].bytes; }

 private:
  struct share_file {
    std::string name;
    std::string header;
    std::int64_t bytes = 0;
    std::optional<file> open{};
  };

  void lay_out() {
    std::map<std::string_view, const stored_tensor*> tensors;
    for (const stored_tensor& tensor : description_.tensors) tensors.emplace(tensor.name, &tensor);
    std::array<std::vector<safetensors_entry>, 2> entries;
    std::vector<std::string> names;
    for (const written_part& part : parts_) {
      const stored_array& array = description_.arrays[part.array];
      const stored_tensor& tensor = *tensors.at(array.tensor);
      names.push_back(array_key(array, tensor, part.first, part.count));
      kinds_.push_back(share_kind(array));
      entries[kinds_.back()].push_back(
          {names.back(), array.dtype, array_shape(array, tensor, part.first, part.count)});
    }
    starts_.resize(parts_.size());
    for (std::size_t kind = 0; kind < entries.size(); ++kind) {
      if (entries[kind].empty()) continue;
      auto [header, layout] = make_safetensors_header(std::move(entries[kind]));
      files_[kind] = {share_name(kind, rank_, ranks_), std::move(header), layout.file_bytes, {}};
      for (std::size_t i = 0; i < parts_.size(); ++i) {
        if (kinds_[i] == kind) starts_[i] = layout.find(names[i])->first_byte;
      }
    }
  }

  const manifest& description_;
  int rank_;
  int ranks_;
  std::vector<written_part> parts_;   // of this rank
  std::vector<std::int64_t> starts_;  // where each is in its file
  std::vector<std::size_t> kinds_;    // which file that is
  std::array<share_file, 2> files_;
  std::vector<std::uint64_t> checksums_;
};

}  // namespace mfsdp::inline MFSDP_ABI::detail
