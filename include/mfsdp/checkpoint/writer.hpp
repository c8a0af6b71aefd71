// One checkpoint on its way to the disk, as one rank sees it: what all ranks do together before and
// after each of them writes its share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "mfsdp/checkpoint/agree.hpp"
#include "mfsdp/checkpoint/description.hpp"
#include "mfsdp/checkpoint/division.hpp"
#include "mfsdp/checkpoint/file.hpp"
#include "mfsdp/checkpoint/folder.hpp"
#include "mfsdp/checkpoint/manifest.hpp"
#include "mfsdp/checkpoint/share.hpp"

namespace mfsdp::inline MFSDP_ABI {

struct save_options {
  // How many checkpoints stay, this one included; 0: all. The disk needs room for two more. Several
  // sites should keep as many as they save between two meetings, and two more.
  int keep_last = 2;
  // The trainer's own: position in the data, state of random generators; any UTF-8, JSON say. That
  // of rank 0 is kept.
  std::string trainer{};
};

namespace detail {

// What the writing of a checkpoint needs of a model.
struct writer_setup {
  manifest description;
  std::vector<written_part> parts;
  std::vector<std::int64_t> updates;  // by item
  const mfsdp::plan* plan = nullptr;
  int rank = 0;
  int ranks = 1;
  gather_numbers gather;
};

template <class Model>
[[nodiscard]] writer_setup set_up_writer(Model& model) {
  const auto persistence = model.persistence();
  const training_counts now = persistence.counts();
  writer_setup setup{
      describe_model(model),
      divide_writing(model.plan(), persistence.arrays(), model.ranks() / model.plan().ranks),
      now.updates,
      &model.plan(),
      model.rank(),
      model.ranks(),
      gather_of(model)};
  setup.description.step = now.steps;
  return setup;
}

class checkpoint_writer {
 public:
  // Makes ready. A collective call. Errors: checkpoint_error, the same on all ranks.
  checkpoint_writer(writer_setup setup, const std::string& root, const save_options& options)
      : setup_(std::move(setup)),
        keep_last_(options.keep_last),
        folder_(site_folder(root, setup_.description.site, setup_.description.sites)),
        doing_(fmt::format("save step {} to '{}'", setup_.description.step, folder_)),
        share_(setup_.description, setup_.parts, setup_.rank, setup_.ranks) {
    setup_.description.trainer = options.trainer;
    bool begun = false;
    const std::string fault = fault_of([&] {
      require_options();
      if (setup_.rank != 0) return;
      lock_.emplace(folder_);
      begin_partial(folder_, setup_.description.step);
      begun = true;
    });
    try {
      require_no_fault(setup_.gather, fault, doing_);
    } catch (...) {
      if (begun) discard();
      throw;
    }
  }

  [[nodiscard]] rank_share& share() { return share_; }
  [[nodiscard]] std::vector<std::uint64_t> gather(const std::vector<std::uint64_t>& own,
                                                  std::string_view label) const {
    return setup_.gather(own, label);
  }
  // Where this rank writes its share.
  [[nodiscard]] std::string partial() const {
    return fmt::format("{}/.{}.partial", folder_, step_name(setup_.description.step));
  }

  // While this rank writes: removes what no longer counts. What stays is tried again the next time,
  // and costs space only.
  void unlink_earlier() const {
    if (setup_.rank != 0) return;
    report(fault_of([&] { unlink_removed(folder_, setup_.description.step); }));
  }

  // After writing: makes a checkpoint of all shares, if all are well. `fault`: what this rank's has
  // met. Returns the checkpoint's path. A collective call. Errors: checkpoint_error, the same on
  // all ranks, naming those that had a fault; nothing but earlier checkpoints is then there.
  std::string commit(const std::string& fault) {
    try {
      require_no_fault(setup_.gather, fault, doing_);
      complete_manifest();
      std::string path = fmt::format("{}/{}", folder_, step_name(setup_.description.step));
      const std::string last = fault_of([&] {
        if (setup_.rank != 0) return;
        write_manifest();
        commit_partial(folder_, setup_.description.step);
        // Renames only, and before the others go on: all ranks see the same names afterwards.
        report(fault_of([&] { prune(folder_, keep_last_); }));
      });
      require_no_fault(setup_.gather, last, doing_);
      return path;
    } catch (const checkpoint_error&) {
      discard();
      throw;
    }
  }

  // Removes what has been written, as far as possible. When no rank writes any more.
  void discard() noexcept {
    if (setup_.rank != 0) return;
    std::error_code ignored;
    std::filesystem::remove_all(partial(), ignored);
  }

 private:
  // The new checkpoint is as good without the removal of earlier ones: no error, but not silent.
  static void report(const std::string& left) {
    if (!left.empty()) fmt::print(stderr, "earlier checkpoints stay: {}\n", left);
  }

  void require_options() const {
    if (keep_last_ < 0) {
      throw checkpoint_error(fmt::format("save_options.keep_last is {}", keep_last_));
    }
    if (keep_last_ == 1 && setup_.description.sites > 1) {
      throw checkpoint_error(
          "save_options.keep_last is 1, but sites go on from the latest step that all of them "
          "have, and one may be a save ahead of another: keep at least 2");
    }
  }

  // Adds what only all ranks together know.
  void complete_manifest() {
    manifest& m = setup_.description;
    std::vector<std::uint64_t> own{static_cast<std::uint64_t>(share_.bytes_of(0)),
                                   static_cast<std::uint64_t>(share_.bytes_of(1))};
    for (const std::int64_t count : setup_.updates) {
      own.push_back(static_cast<std::uint64_t>(count));
    }
    own.insert(own.end(), share_.checksums().begin(), share_.checksums().end());
    const std::vector<std::uint64_t> all = setup_.gather(own, doing_);
    std::map<std::pair<int, std::size_t>, std::size_t> files;
    for (int rank = 0; rank < setup_.ranks; ++rank) {
      const auto of_rank =
          std::span(all).subspan(static_cast<std::size_t>(rank) * own.size(), own.size());
      for (std::size_t kind = 0; kind < share_kinds.size(); ++kind) {
        if (of_rank[kind] == 0) continue;
        files.emplace(std::pair(rank, kind), m.files.size());
        m.files.push_back(
            {share_name(kind, rank, setup_.ranks), static_cast<std::int64_t>(of_rank[kind])});
      }
      for (std::size_t i = 0; i < setup_.updates.size(); ++i) {
        const placement_item& item = setup_.plan->items[i];
        if (m.tensors[item.tensor].frozen) continue;
        std::int64_t& count = m.tensors[item.tensor].updates[matrix_of_item(item)];
        count = std::max(count, static_cast<std::int64_t>(of_rank[share_kinds.size() + i]));
      }
      for (std::size_t a = 0; a < m.arrays.size(); ++a) {
        m.arrays[a].checksum += of_rank[share_kinds.size() + setup_.updates.size() + a];
      }
    }
    for (const written_part& part : setup_.parts) {
      stored_array& array = m.arrays[part.array];
      array.parts.push_back({files.at({part.rank, share_kind(array)}), part.first, part.count});
    }
  }

  void write_manifest() const {
    write_file(partial() + "/manifest.json", to_text(setup_.description));
    sync_folder(partial());
  }

  writer_setup setup_;
  int keep_last_;
  std::string folder_;  // of the site
  std::string doing_;
  std::optional<folder_lock> lock_;  // of rank 0, on the folder
  rank_share share_;
};

}  // namespace detail

}  // namespace mfsdp::inline MFSDP_ABI
