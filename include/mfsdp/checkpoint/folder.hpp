// Where checkpoints lie:
//
//   <root>/step-000000000120/          a complete one, of a model of one site
//   <root>/site-1/step-000000000120/   one of several sites'
//   .step-000000000120.partial/        being written, or left by who has died while writing
//   .step-000000000120.removed/        no longer kept: unlinked while the next one is written
//   .lock                              locked by who is saving here
//   .step-000000000120.abandoned/      put aside by load, or without manifest.json when this step
//                                      was saved; stays until a person removes it
//
// Nothing with a dot before its name is ever loaded, nor a folder without manifest.json.
#pragma once

#include <charconv>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "mfsdp/checkpoint/file.hpp"
#include "mfsdp/error.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

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

// One that may not be examined is there: who opens it says why.
[[nodiscard]] inline bool is_there(const std::string& path) {
  std::error_code unknown;
  return std::filesystem::symlink_status(path, unknown).type() !=
         std::filesystem::file_type::not_found;
}

// Paths of the complete checkpoints in a folder, by step. Errors: checkpoint_error.
[[nodiscard]] inline std::map<std::int64_t, std::string> checkpoints_in(const std::string& folder) {
  std::map<std::int64_t, std::string> found;
  for (const std::string& name : folders_in(folder)) {
    const auto step = step_of_name(name);
    if (!step) continue;
    const std::string path = folder + "/" + name;
    if (is_there(path + "/manifest.json")) found[*step] = path;
  }
  return found;
}

// Takes a checkpoint's name away, at once: `.step-000000000120.<end>`, with a number after it where
// there is one already. Errors: checkpoint_error.
inline void hide(const std::string& folder, const std::string& name, std::int64_t step,
                 std::string_view end) {
  const std::string hidden = fmt::format("{}/.{}.{}", folder, step_name(step), end);
  std::string unused = hidden;
  for (int n = 2; is_there(unused); ++n) unused = fmt::format("{}-{}", hidden, n);
  rename_durably(fmt::format("{}/{}", folder, name), unused);
}

// As long as it lives nobody else changes what checkpoints a folder has, which is created if need
// be. Errors: checkpoint_error if somebody does.
class folder_lock {
 public:
  explicit folder_lock(const std::string& folder) : lock_(opened(folder)) {
    if (lock_.try_lock()) return;
    throw checkpoint_error(fmt::format(
        "another job, or another saver of this one, is saving to '{}' now: end it, or name another "
        "folder",
        folder));
  }
  ~folder_lock() { lock_.unlock(); }
  folder_lock(const folder_lock&) = delete;
  folder_lock& operator=(const folder_lock&) = delete;

 private:
  static file opened(const std::string& folder) {
    create_folders(folder);
    return file::create_or_open(folder + "/.lock");
  }

  file lock_;
};

// Where a checkpoint of this step is written. Creates the folders; what an earlier crash has left
// is out of the way. Errors: checkpoint_error, also if there is one of this step or a later one.
inline void begin_partial(const std::string& folder, std::int64_t step) {
  create_folders(folder);
  const auto found = checkpoints_in(folder);
  if (!found.empty() && found.rbegin()->first > step) {
    throw checkpoint_error(fmt::format(
        "'{}' has checkpoints until step {}, and this one would be of step {}, as if those had not "
        "been: load the latest and go on from there, load another on purpose (load_options.step), "
        "which puts newer ones aside, move them away, or name another folder",
        folder, found.rbegin()->first, step));
  }
  const std::string name = step_name(step);
  const std::string complete = fmt::format("{}/{}", folder, name);
  if (found.contains(step)) {
    throw checkpoint_error(
        fmt::format("there is one already, '{}', and none is replaced: move it away, or name "
                    "another folder",
                    complete));
  }
  if (is_there(complete)) hide(folder, name, step, "abandoned");  // without a manifest
  const std::string partial = fmt::format(".{}.partial", name);
  if (is_there(folder + "/" + partial)) hide(folder, partial, step, "removed");
  create_folder(folder + "/" + partial);
}

// Gives a complete one its name.
inline void commit_partial(const std::string& folder, std::int64_t step) {
  const std::string name = step_name(step);
  rename_durably(fmt::format("{}/.{}.partial", folder, name), fmt::format("{}/{}", folder, name));
}

// Takes the names of all but the last checkpoints away, unless `keep` is zero. Errors:
// checkpoint_error.
inline void prune(const std::string& folder, int keep) {
  if (keep == 0) return;
  const auto found = checkpoints_in(folder);
  auto excess = std::ssize(found) - keep;
  for (const auto& [step, path] : found) {
    if (excess-- <= 0) break;
    hide(folder, step_name(step), step, "removed");
  }
}

// Puts checkpoints of these steps aside. Errors: checkpoint_error.
inline void abandon(const std::string& folder, const std::vector<std::uint64_t>& steps) {
  for (const std::uint64_t each : steps) {
    const auto step = static_cast<std::int64_t>(each);
    hide(folder, step_name(step), step, "abandoned");
  }
}

// Unlinks what has no name any more and what was never completed, but for what is being written.
// Errors: checkpoint_error, after all that can be removed is.
inline void unlink_removed(const std::string& folder, std::int64_t writing) {
  const std::string own = fmt::format(".{}.partial", step_name(writing));
  std::string left;
  for (const std::string& name : folders_in(folder)) {
    const bool partial = name.ends_with(".partial") && name != own;
    if (!name.starts_with(".step-") || !(partial || name.find(".removed") != name.npos)) continue;
    const std::string path = folder + "/" + name;
    std::error_code fault;
    std::filesystem::remove_all(path, fault);
    if (fault) left += fmt::format("{}'{}': {}", left.empty() ? "" : ", ", path, fault.message());
  }
  if (!left.empty()) throw checkpoint_error("cannot remove " + left);
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
