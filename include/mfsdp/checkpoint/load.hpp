// load: goes on where another run was, whatever its number of ranks, placement and engine.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "mfsdp/checkpoint/agree.hpp"
#include "mfsdp/checkpoint/choose.hpp"
#include "mfsdp/checkpoint/chunks.hpp"
#include "mfsdp/checkpoint/compare.hpp"
#include "mfsdp/checkpoint/description.hpp"
#include "mfsdp/checkpoint/reader.hpp"
#include "mfsdp/checkpoint/types.hpp"
#include "mfsdp/runtime/bits_hash.hpp"
#include "mfsdp/runtime/persistence.hpp"

namespace mfsdp::inline MFSDP_ABI {

// What load has found.
struct loaded {
  std::int64_t step = 0;  // of the checkpoint; what the model has taken, unless parameters only
  std::string path{};     // its folder
  std::string trainer{};  // as save_options had it
  // Options that optimizers, precision and rounding had otherwise: the model's hold.
  std::vector<std::string> changed_options{};
  bool joined = false;                    // this site had none and took over what another had
  std::vector<std::int64_t> abandoned{};  // newer steps of this site, which were put aside
  // What this rank has read of arrays; of headers and manifest.
  std::int64_t bytes_read = 0;
  std::int64_t header_bytes_read = 0;
};

namespace detail {

// Fills a model with what one checkpoint has, and sums up the hashes of what this rank reads.
template <class Model>
class model_loader {
 public:
  model_loader(Model& model, const manifest& stored, const matched_manifest& matched,
               std::string folder)
      : model_(model),
        held_(model.persistence()),
        stored_(stored),
        matched_(matched),
        reader_(std::move(folder), stored),
        checksums_(matched.arrays.size(), 0) {}

  // Before the first fill, in the same order: what will be filled.
  template <class T>
  void announce(const held_part& part, std::span<T> values) {
    for_each_part(std::ssize(values), chunk_elements(part), [&](index_t at, index_t count) {
      announced_.push_back({part.array, part.first + at, count});
    });
  }

  // Of a part of an array that this rank holds.
  template <class T>
  void fill(const held_part& part, std::span<T> values) {
    if (values.empty()) return;
    with_dtype(stored_.arrays[matched_.arrays[part.array]].dtype,
               [&]<class Stored>(Stored) { fill_from<Stored>(part, values); });
  }

  // Which arrays are not what was saved, by all ranks' checksums; nothing if none. What a rank
  // holds of a cut array is a part of its sum, otherwise every rank has read all of it.
  [[nodiscard]] std::string damage(const std::vector<std::uint64_t>& of_all) const {
    std::string text;
    const auto arrays = held_.arrays();
    const int ranks = model_.ranks();
    for (std::size_t a = 0; a < arrays.size(); ++a) {
      if (matched_.arrays[a] == stored_.arrays.size()) continue;
      const stored_array& array = stored_.arrays[matched_.arrays[a]];
      const int together = arrays[a].everywhere ? 1 : model_.plan().ranks;
      for (int rank = 0; rank < ranks; rank += together) {
        std::uint64_t sum = 0;
        for (int r = rank; r < rank + together; ++r) {
          sum += of_all[static_cast<std::size_t>(r) * arrays.size() + a];
        }
        if (sum == array.checksum) continue;
        text += fmt::format("{}{} in {}", text.empty() ? "" : "; ", array_text(array),
                            reader_.files_of(array));
        break;
      }
    }
    return text;
  }

  [[nodiscard]] const std::vector<std::uint64_t>& checksums() const { return checksums_; }
  [[nodiscard]] const checkpoint_reader& reader() const { return reader_; }

 private:
  struct range {
    std::size_t array;  // of the model
    index_t first;
    index_t count;
  };

  // The disk works on this many chunks while one is hashed and copied.
  static constexpr std::size_t ahead = 32;

  [[nodiscard]] index_t chunk_elements(const held_part& part) const {
    const std::string& dtype = stored_.arrays[matched_.arrays[part.array]].dtype;
    return checkpoint_chunk * 8 / safetensors_bits(dtype);
  }

  template <class Stored, class T>
  void fill_from(const held_part& part, std::span<T> values) {
    using word = std::conditional_t<sizeof(Stored) == 2, std::uint16_t, std::uint32_t>;
    constexpr bool in_place = std::same_as<Stored, T> && decltype(held_)::host_memory;
    const index_t most = chunk_elements(part);
    const auto room = static_cast<std::size_t>(std::min(most, std::ssize(values)));
    std::vector<Stored> read(in_place ? 0 : room);
    std::vector<T> converted(std::same_as<Stored, T> ? 0 : room);
    for_each_part(std::ssize(values), most, [&](index_t at, index_t count) {
      look_ahead();
      const auto read_to = [&](std::span<Stored> host) {
        reader_.read(matched_.arrays[part.array], part.first + at, host);
        checksums_[part.array] += bits_hash_of<word>(std::as_bytes(host), part.first + at);
      };
      if constexpr (in_place) {
        read_to(slice(values, at, count));
        return;
      }
      const std::span<Stored> host = slice(std::span(read), 0, count);
      read_to(host);
      if constexpr (std::same_as<Stored, T>) {
        held_.write(std::span<const T>(host), slice(values, at, count));
      } else {
        const std::span<T> narrow = slice(std::span(converted), 0, count);
        std::ranges::transform(host, narrow.begin(),
                               [](Stored value) { return T(static_cast<float>(value)); });
        held_.write(std::span<const T>(narrow), slice(values, at, count));
      }
    });
  }

  void look_ahead() {
    ++begun_;
    for (; hinted_ < std::min(announced_.size(), begun_ + ahead); ++hinted_) {
      const range& next = announced_[hinted_];
      reader_.will_read(matched_.arrays[next.array], next.first, next.count);
    }
  }

  Model& model_;
  model_persistence<Model> held_;
  const manifest& stored_;
  const matched_manifest& matched_;
  checkpoint_reader reader_;
  std::vector<std::uint64_t> checksums_;  // by array of the model
  std::vector<range> announced_;          // chunks, in the order in which they are filled
  std::size_t begun_ = 0;                 // of them
  std::size_t hinted_ = 0;
};

}  // namespace detail

// Instead of initialize(): sets the model to the latest complete checkpoint in `root`, that all
// ranks see. Each rank reads the ranges of elements that it holds, and no others. All must be as in
// the checkpoint: names, shapes, types, optimizers with their states; options of optimizers may
// differ, and are reported. Sites load each their own, of the latest step that all of them have; a
// site that has none at all takes over that of the first one that has, as one that joins
// (PeriodicOptimizer). What is newer than that step is put aside under another name: at most one
// checkpoint of a site, unless the step is asked for. With parameters only, all sites take those of
// the first one, and nothing is put aside.
// All ranks, and all sites, alike. Errors: checkpoint_error, the same on all ranks, if there is
// none, or if sites are further apart, with all differences if it is of another model, or with the
// tensors and files whose bytes are not those that were saved: the model then has no values if it
// has begun to take them; usage_error as initialize, and after a step that an exception ended half
// way; collective_error as anywhere. Cost: what this rank holds is read once; a number for each
// array is gathered.
template <class Model>
loaded load(Model& model, const std::string& root, const load_options& options = {}) {
  const auto persistence = model.persistence();
  persistence.require_restorable("load");
  const detail::site_group group = detail::group_of(model);
  const detail::chosen_checkpoint chosen = detail::choose_checkpoint(
      root, detail::steps_of_sites(root, group), group.site, options.parameters_only, options.step);
  const std::string doing = fmt::format("load step {} from '{}'", chosen.step, root);
  // All ranks and sites stop here alike, or go on.
  const auto agree = [&](const std::string& fault) {
    const std::string faults = group.faults(fault, "load of all sites");
    if (!faults.empty()) throw checkpoint_error(fmt::format("{}: {}", doing, faults));
  };
  const auto damaged = [&](const std::string& fault) {
    return fault.empty() ? fault : fmt::format("{}; {}", fault, chosen.way_on());
  };

  loaded result{.step = chosen.step, .path = chosen.path, .joined = chosen.joins};
  manifest stored;
  detail::matched_manifest matched;
  std::optional<training_counts> counts;
  agree(detail::fault_of([&] { chosen.require_seen(); }));
  agree(damaged(detail::fault_of([&] {
    const std::string text = detail::read_manifest_text(chosen.path);
    result.header_bytes_read = std::ssize(text);
    stored = parse_manifest(text, chosen.path + "/manifest.json");
    if (stored.step != chosen.step) {
      throw checkpoint_error(fmt::format("{}/manifest.json is of step {}: a folder was renamed",
                                         chosen.path, stored.step));
    }
  })));
  agree(detail::fault_of([&] {
    matched = detail::manifest_matcher(stored, detail::describe_model(model), options, chosen.path)
                  .match();
    if (options.parameters_only) return;
    counts.emplace(stored.step, std::vector<std::int64_t>(model.plan().items.size(), 0));
    for (std::size_t i = 0; i < model.plan().items.size(); ++i) {
      const placement_item& item = model.plan().items[i];
      if (model.plan().tensors[item.tensor].optimizer < 0) continue;
      const stored_tensor& tensor = stored.tensors[matched.tensors[item.tensor]];
      counts->updates[i] = tensor.updates[detail::matrix_of_item(item)];
    }
  }));
  result.trainer = stored.trainer;
  result.changed_options = matched.changed_options;

  persistence.restore(counts, chosen.joins, [&](auto&& for_each) {
    detail::model_loader<Model> loader(model, stored, matched, chosen.path);
    std::string fault = detail::fault_of([&] {
      for_each([&](const held_part& part, auto values) { loader.announce(part, values); });
      for_each([&](const held_part& part, auto values) { loader.fill(part, values); });
    });
    fault = detail::join_faults(detail::gather_texts(group.of_site, fault, doing));
    if (fault.empty()) {
      const std::string damage = loader.damage(persistence.gather(loader.checksums(), doing));
      if (!damage.empty()) {
        fault = "these are not the bytes that were saved, by their checksums: " + damage;
      }
    }
    agree(damaged(fault));
    result.bytes_read = loader.reader().bytes();
    result.header_bytes_read += loader.reader().header_bytes();
    if (!chosen.any_newer) return;
    // Before any site has values: none trains or saves until all have done it.
    agree(detail::fault_of([&] {
      if (model.rank() != 0) return;
      const detail::folder_lock lock(chosen.folder);
      detail::abandon(chosen.folder, chosen.newer);
    }));
  });
  result.abandoned.assign(chosen.newer.begin(), chosen.newer.end());
  return result;
}

}  // namespace mfsdp::inline MFSDP_ABI
