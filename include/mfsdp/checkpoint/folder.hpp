// Where checkpoints lie:
//
//   <root>/step-000000000120/          a complete one, of a model of one site
//   <root>/site-1/step-000000000120/   one of several sites'
//   .step-000000000120.partial/        being written, or left by who has died while writing
//   .step-000000000120.replaced/       what was there before, between two renames
//   .step-000000000120.abandoned/      newer than the one that all sites went on from
//
// Nothing with a dot before its name is ever loaded, but for a replaced one whose successor is not
// there.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "mfsdp/checkpoint/file.hpp"
#include "mfsdp/error.hpp"

namespace mfsdp::inline MFSDP_ABI {

namespace detail {

[[nodiscard]] inline std::string step_name(std::int64_t step) {
  return fmt::format("step-{:012}", step);
}

[[nodiscard]] inline std::string site_folder(const std::string& root, int site, int sites) {
  return sites == 1 ? root : fmt::format("{}/site-{}", root, site);
}

// The step of a name that step_name makes.
[[nodiscard]] inline std::optional<std::int64_t> step_of_name(std::string_view name) {
  std::int64_t step = 0;
  constexpr std::string_view prefix = "step-";
  if (!name.starts_with(prefix)) return std::nullopt;
  const char* const end = name.data() + name.size();
  const auto [stop, status] = std::from_chars(name.data() + prefix.size(), end, step);
  if (status != std::errc{} || stop != end || step < 0 || step_name(step) != name) {
    return std::nullopt;
  }
  return step;
}

// The names of the folders in a folder; none if it is not there. Errors: checkpoint_error.
[[nodiscard]] inline std::vector<std::string> folders_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code fault;
  std::filesystem::directory_iterator entry(folder, fault);
  if (fault == std::errc::no_such_file_or_directory) return names;
  while (!fault && entry != std::filesystem::directory_iterator()) {
    std::error_code unknown;
    if (entry->symlink_status(unknown).type() == std::filesystem::file_type::directory) {
      names.push_back(entry->path().filename().string());
    }
    entry.increment(fault);
  }
  if (fault) fail_on_file("list", folder, fault.value());
  return names;
}

// Paths of the complete checkpoints in a folder, by step. Errors: checkpoint_error.
[[nodiscard]] inline std::map<std::int64_t, std::string> checkpoints_in(const std::string& folder) {
  constexpr std::string_view replaced = ".replaced";
  std::map<std::int64_t, std::string> found;
  for (const std::string& name : folders_in(folder)) {
    if (const auto step = step_of_name(name)) found[*step] = folder + "/" + name;
  }
  for (const std::string& name : folders_in(folder)) {
    if (!name.starts_with('.') || !name.ends_with(replaced)) continue;
    const auto step =
        step_of_name(std::string_view(name).substr(1, name.size() - 1 - replaced.size()));
    if (step) found.try_emplace(*step, folder + "/" + name);
  }
  return found;
}

// Removes a folder and what is in it. Errors: checkpoint_error.
inline void remove_folder(const std::string& path) {
  std::error_code fault;
  std::filesystem::remove_all(path, fault);
  if (fault) fail_on_file("remove", path, fault.value());
}

// Takes a complete checkpoint's name away at once, for a crash in the middle of its removal.
inline void remove_checkpoint(const std::string& folder, std::int64_t step) {
  const std::string hidden = fmt::format("{}/.{}.partial", folder, step_name(step));
  remove_folder(hidden);
  rename_durably(fmt::format("{}/{}", folder, step_name(step)), hidden);
  remove_folder(hidden);
}

// Where a checkpoint of this step is written. Creates the folders; what an earlier crash has left
// is put back or removed. Errors: checkpoint_error, also if there are checkpoints of later steps.
inline std::string begin_partial(const std::string& folder, std::int64_t step) {
  create_folders(folder);
  for (const auto& [found, path] : checkpoints_in(folder)) {
    if (found > step) {
      throw checkpoint_error(fmt::format(
          "'{}' has a checkpoint of step {}, and this one would be of step {}, as if that had not "
          "been: load it and go on from there, move it away, or name another folder",
          folder, found, step));
    }
    const std::string complete = fmt::format("{}/{}", folder, step_name(found));
    if (path != complete) rename_durably(path, complete);
  }
  const std::string partial = fmt::format("{}/.{}.partial", folder, step_name(step));
  remove_folder(partial);
  create_folder(partial);
  return partial;
}

// Gives a complete one its name, in place of an earlier one of the same step. Returns its path.
inline std::string commit_partial(const std::string& folder, std::int64_t step) {
  const std::string name = step_name(step);
  const std::string complete = fmt::format("{}/{}", folder, name);
  const std::string replaced = fmt::format("{}/.{}.replaced", folder, name);
  if (std::filesystem::exists(complete)) {
    remove_folder(replaced);
    rename_durably(complete, replaced);
  }
  rename_durably(fmt::format("{}/.{}.partial", folder, name), complete);
  return complete;
}

// Removes all but the last checkpoints, unless `keep` is zero, and what is not to be loaded.
inline void prune(const std::string& folder, int keep) {
  for (const std::string& name : folders_in(folder)) {
    if (!name.starts_with(".step-")) continue;
    for (const std::string_view end : {".partial", ".replaced", ".abandoned"}) {
      if (name.ends_with(end)) remove_folder(folder + "/" + name);
    }
  }
  if (keep == 0) return;
  auto found = checkpoints_in(folder);
  while (found.size() > static_cast<std::size_t>(keep)) {
    remove_checkpoint(folder, found.begin()->first);
    found.erase(found.begin());
  }
}

// Puts aside what is newer than the step that all sites go on from.
inline void abandon_after(const std::string& folder, std::int64_t step) {
  for (const auto& [found, path] : checkpoints_in(folder)) {
    if (found <= step) continue;
    const std::string aside = fmt::format("{}/.{}.abandoned", folder, step_name(found));
    remove_folder(aside);
    rename_durably(path, aside);
  }
}

// What a site can load: of several sites their own, of a single one those in the root; the first of
// the sites also what the root has from a time with one site, and the other way.
[[nodiscard]] inline std::map<std::int64_t, std::string> checkpoints_of_site(
    const std::string& root, int site, int sites) {
  auto found = checkpoints_in(site_folder(root, site, sites));
  if (site == 0) found.merge(checkpoints_in(sites == 1 ? root + "/site-0" : root));
  return found;
}

}  // namespace detail

// The step of the latest complete checkpoint, of any site, if there is one: whether a trainer calls
// load() or initialize(). Looks only at names. Errors: checkpoint_error if it may not look.
[[nodiscard]] inline std::optional<std::int64_t> latest_checkpoint(const std::string& root) {
  auto found = detail::checkpoints_in(root);
  for (const std::string& name : detail::folders_in(root)) {
    if (name.starts_with("site-")) found.merge(detail::checkpoints_in(root + "/" + name));
  }
  if (found.empty()) return std::nullopt;
  return found.rbegin()->first;
}

}  // namespace mfsdp::inline MFSDP_ABI
