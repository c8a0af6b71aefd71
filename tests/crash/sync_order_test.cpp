// In which order a save writes, syncs, renames and removes. This program has those functions of the
// C library of its own, which record each call before they make it, so that those of libstdc++ are
// seen too; what a descriptor stands for is asked of /proc. Linux.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mfsdp/checkpoint.hpp"
#include "support/checkpoint_files.hpp"
#include "support/checkpoint_values.hpp"

namespace sync_order_test {

namespace {

enum class act { create, write, sync, close, make_folder, rename, remove, returned };

struct file_call {
  act what;
  std::string path;
  std::string to{};        // of a rename
  std::int64_t bytes = 0;  // of a write

  friend bool operator==(const file_call&, const file_call&) = default;
};

// Calls one at a time, so that their order in the list is that in which they were made and ended.
class call_recorder {
 public:
  void watch(const std::string& folder) {
    const std::scoped_lock guard(mutex_);
    folder_ = folder;
    calls_.clear();
  }
  [[nodiscard]] std::vector<file_call> take() {
    const std::scoped_lock guard(mutex_);
    folder_.clear();
    return std::move(calls_);
  }
  template <class Call>
  auto record(file_call now, Call&& call) {
    const std::scoped_lock guard(mutex_);
    if (!folder_.empty() && now.path.starts_with(folder_)) calls_.push_back(std::move(now));
    return call();
  }

 private:
  std::mutex mutex_;
  std::string folder_;
  std::vector<file_call> calls_;
};

call_recorder& recorder() {
  static call_recorder one;
  return one;
}

std::string path_of(int descriptor) {
  std::array<char, 4096> text;
  const std::string link = fmt::format("/proc/self/fd/{}", descriptor);
  const ssize_t length = ::readlink(link.c_str(), text.data(), text.size());
  return length < 0 ? std::string() : std::string(text.data(), static_cast<std::size_t>(length));
}

std::string path_at(int folder, const char* name) {
  return folder == AT_FDCWD || name[0] == '/' ? std::string(name)
                                              : fmt::format("{}/{}", path_of(folder), name);
}

template <class... Argument>
int system_call(long number, Argument... arguments) {
  return static_cast<int>(::syscall(number, arguments...));
}

int open_recorded(int folder, const char* path, int flags, mode_t mode) {
  const auto call = [&] { return system_call(SYS_openat, folder, path, flags, mode); };
  return (flags & O_CREAT) == 0 ? call()
                                : recorder().record({act::create, path_at(folder, path)}, call);
}

int remove_recorded(int folder, const char* path, int flags) {
  return recorder().record({act::remove, path_at(folder, path)},
                           [&] { return system_call(SYS_unlinkat, folder, path, flags); });
}

}  // namespace

}  // namespace sync_order_test

extern "C" {

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return sync_order_test::open_recorded(AT_FDCWD, path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return sync_order_test::open_recorded(folder, path, flags, mode);
}

ssize_t pwrite(int file, const void* bytes, size_t count, off_t offset) {
  return sync_order_test::recorder().record(
      {sync_order_test::act::write,
       sync_order_test::path_of(file),
       {},
       static_cast<std::int64_t>(count)},
      [&] { return static_cast<ssize_t>(::syscall(SYS_pwrite64, file, bytes, count, offset)); });
}

int fsync(int file) {
  return sync_order_test::recorder().record(
      {sync_order_test::act::sync, sync_order_test::path_of(file)},
      [&] { return sync_order_test::system_call(SYS_fsync, file); });
}

int fdatasync(int file) {
  return sync_order_test::recorder().record(
      {sync_order_test::act::sync, sync_order_test::path_of(file)},
      [&] { return sync_order_test::system_call(SYS_fdatasync, file); });
}

int close(int file) {
  return sync_order_test::recorder().record(
      {sync_order_test::act::close, sync_order_test::path_of(file)},
      [&] { return sync_order_test::system_call(SYS_close, file); });
}

int mkdir(const char* path, mode_t mode) noexcept {
  return sync_order_test::recorder().record({sync_order_test::act::make_folder, path}, [&] {
    return sync_order_test::system_call(SYS_mkdirat, AT_FDCWD, path, mode);
  });
}

int rename(const char* from, const char* to) noexcept {
  return sync_order_test::recorder().record({sync_order_test::act::rename, from, to}, [&] {
    return sync_order_test::system_call(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
  });
}

int unlink(const char* path) noexcept {
  return sync_order_test::remove_recorded(AT_FDCWD, path, 0);
}

int rmdir(const char* path) noexcept {
  return sync_order_test::remove_recorded(AT_FDCWD, path, AT_REMOVEDIR);
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  return sync_order_test::remove_recorded(folder, path, flags);
}

}  // extern "C"

namespace sync_order_test {

namespace {

using checkpoint_files::temporary_folder;
using call_list = std::vector<file_call>;

// Of a checkpoint's files, by their names.
using file_sizes = std::map<std::string, std::int64_t>;

// What is wrong in the order of the calls of a save of this step, and of others before and after
// it; nothing if it survives a loss of power at any moment. `sizes` of the files that it has.
class order_checker {
 public:
  order_checker(const call_list& calls, std::string root, std::int64_t step, int ranks)
      : calls_(calls),
        root_(std::move(root)),
        name_(mfsdp::detail::step_name(step)),
        partial_(fmt::format("{}/.{}.partial", root_, name_)),
        path_(fmt::format("{}/{}", root_, name_)),
        ranks_(ranks) {}

  [[nodiscard]] std::string fault(const file_sizes& sizes) const {
    const std::size_t begun = find({act::make_folder, partial_});
    const std::size_t named = find({act::rename, partial_, path_});
    const std::size_t manifest = find({act::create, partial_ + "/manifest.json"});
    if (begun == none || named == none || manifest == none) return "no folder, manifest or name";
    if (manifest > named) return "named before the manifest is there";
    std::size_t last_close = 0;
    for (const auto& [file, bytes] : sizes) {
      const std::string path = fmt::format("{}/{}", partial_, file);
      if (const std::string text = fault_of_file(path, bytes); !text.empty()) {
        return fmt::format("{}: {}", file, text);
      }
      const std::size_t closed = find({act::close, path});
      if (file != "manifest.json" && closed > manifest) return file + ": open beside the manifest";
      last_close = std::max(last_close, closed);
    }
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      if (calls_[i].what != act::create || !calls_[i].path.starts_with(partial_ + "/")) continue;
      if (!sizes.contains(calls_[i].path.substr(partial_.size() + 1))) return "another file";
    }
    const std::size_t folder = find({act::sync, partial_}, last_close);
    if (folder == none || folder > named) return "named before its folder is synced";
    const std::size_t durable = find({act::sync, root_}, named);
    if (durable == none) return "the name is not synced";
    if (const std::string text = fault_of_root(durable); !text.empty()) return text;
    int returned = 0;
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      if (calls_[i] != file_call{act::returned, path_}) continue;
      if (i < durable) return "returned before the name is synced";
      ++returned;
    }
    if (returned != ranks_) return "returned on other ranks";
    for (std::size_t i = begun; i < durable; ++i) {
      const bool removes = calls_[i].what == act::remove || calls_[i].what == act::rename;
      if (removes && i != named && calls_[i].path.starts_with(root_ + "/step-")) {
        return "an earlier checkpoint is touched before the new one has its name: " +
               calls_[i].path;
      }
    }
    return {};
  }

 private:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);

  // The first such call from there on.
  [[nodiscard]] std::size_t find(const file_call& call, std::size_t from = 0) const {
    for (std::size_t i = from; i < calls_.size(); ++i) {
      if (calls_[i] == call) return i;
    }
    return none;
  }

  [[nodiscard]] std::string fault_of_file(const std::string& path, std::int64_t bytes) const {
    const std::size_t created = find({act::create, path});
    const std::size_t closed = find({act::close, path});
    if (created == none || closed == none) return "not created or not closed";
    std::int64_t written = 0;
    bool synced = false;
    for (std::size_t i = created; i < calls_.size(); ++i) {
      if (calls_[i].path != path) continue;
      if (calls_[i].what == act::write) {
        if (i > closed) return "written after it is closed";
        written += calls_[i].bytes;
        synced = false;
      }
      if (calls_[i].what == act::sync && i < closed) synced = true;
    }
    if (written != bytes) return fmt::format("{} bytes are written of {}", written, bytes);
    return synced ? "" : "closed before all that is written is synced";
  }

  // The folder itself, where the save has created it.
  [[nodiscard]] std::string fault_of_root(std::size_t durable) const {
    const std::size_t created = find({act::make_folder, root_});
    if (created == none || created > durable) return {};
    const std::string above = std::filesystem::path(root_).parent_path().string();
    const std::size_t synced = find({act::sync, above}, created);
    return synced == none || synced > durable ? "the folder of checkpoints is not synced" : "";
  }

  const call_list& calls_;
  std::string root_;
  std::string name_;
  std::string partial_;
  std::string path_;
  int ranks_;
};

constexpr std::int64_t last_step = 4;

struct recorded_run {
  call_list calls;
  std::string root;
  int ranks = 1;
  std::map<std::int64_t, file_sizes> sizes;  // by step

  [[nodiscard]] std::string fault(const call_list& list, std::int64_t step) const {
    return order_checker(list, root, step, ranks).fault(sizes.at(step));
  }
};

file_sizes sizes_of_files(const std::string& folder) {
  file_sizes sizes;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    sizes[entry.path().filename().string()] = static_cast<std::int64_t>(entry.file_size());
  }
  return sizes;
}

// save(model, step) returns the path of that step's checkpoint. Of four of them two are kept.
template <class Save>
recorded_run record_saves(int ranks, Save&& save) {
  const temporary_folder outside;
  recorded_run result;
  result.ranks = ranks;
  result.root = std::filesystem::canonical(outside.path()).string() + "/run";
  mfsdp::model_spec spec;
  spec.unit("u").matrix("up", 700, 500).matrix("down", 50, 70).vector("v", 70);
  std::mutex mutex;
  recorder().watch(std::filesystem::path(result.root).parent_path().string());
  mfsdp::thread_world{ranks}.run([&](auto comm) {
    mfsdp::sharded_model model{spec, comm, mfsdp::owner_placement{}, mfsdp::sgd{.momentum = 0.9}};
    mfsdp::background_saver saver(result.root);
    for (std::int64_t step = 1; step <= last_step; ++step) {
      checkpoint_values::set_values(model, 1, step);
      const std::string path = save(model, saver, result.root, step);
      recorder().record({act::returned, path}, [] {});
      const std::scoped_lock guard(mutex);
      result.sizes[step] = sizes_of_files(path);
    }
  });
  result.calls = recorder().take();
  return result;
}

const auto by_save = [](auto& model, auto&, const std::string& root, std::int64_t) {
  return mfsdp::save(model, root);
};

const auto behind_training = [](auto& model, auto& saver, const std::string&, std::int64_t step) {
  saver.save(model);
  std::optional<std::string> path;
  while (step % 2 == 0 && !path) path = saver.poll();
  return path ? *path : *saver.wait();
};

void check_order(const recorded_run& run) {
  CAPTURE(run.ranks);
  for (std::int64_t step = 1; step <= last_step; ++step) {
    CAPTURE(step);
    CHECK(run.sizes.at(step).size() == (run.ranks == 1 ? 3 : 5));
    CHECK(run.fault(run.calls, step) == "");
  }
  // The first checkpoint has lost its name and then its files: the recorder sees removals.
  const std::string hidden = run.root + "/.step-000000000001.removed";
  CHECK(std::ranges::count(run.calls,
                           file_call{act::rename, run.root + "/step-000000000001", hidden}) == 1);
  CHECK(std::ranges::count_if(run.calls, [&](const file_call& call) {
          return call.what == act::remove && call.path.starts_with(hidden + "/");
        }) == std::ssize(run.sizes.at(1)));
}

}  // namespace

TEST_CASE("save writes and syncs before it names, and names before it removes") {
  for (const int ranks : {1, 2}) check_order(record_saves(ranks, by_save));
}

TEST_CASE("background_saver does so too") {
  for (const int ranks : {1, 2}) check_order(record_saves(ranks, behind_training));
}

TEST_CASE("another order is refused") {
  const recorded_run run = record_saves(2, by_save);
  const std::int64_t step = 3;
  const std::string partial = run.root + "/.step-000000000003.partial";
  const std::string states = partial + "/states-00001-of-00002.safetensors";
  const std::string manifest = partial + "/manifest.json";
  const std::string path = run.root + "/step-000000000003";
  const auto at = [&](const call_list& list, const file_call& call, std::ptrdiff_t from = 0) {
    const auto found = std::find(list.begin() + from, list.end(), call);
    REQUIRE(found != list.end());
    return found - list.begin();
  };
  const file_call naming{act::rename, partial, path};
  const std::ptrdiff_t named = at(run.calls, naming);
  // The list after a change.
  const auto without = [&](std::ptrdiff_t which) {
    call_list list = run.calls;
    list.erase(list.begin() + which);
    return run.fault(list, step);
  };
  const auto moved = [&](std::ptrdiff_t which, std::ptrdiff_t before) {
    call_list list = run.calls;
    const file_call call = list[static_cast<std::size_t>(which)];
    list.erase(list.begin() + which);
    list.insert(list.begin() + (before > which ? before - 1 : before), call);
    return run.fault(list, step);
  };
  const auto inserted = [&](const file_call& call, std::ptrdiff_t before) {
    call_list list = run.calls;
    list.insert(list.begin() + before, call);
    return run.fault(list, step);
  };
  const auto find = [&](act what, const std::string& of, std::ptrdiff_t from = 0) {
    return at(run.calls, {what, of}, from);
  };
  const std::ptrdiff_t durable = find(act::sync, run.root, named);

  CHECK(moved(named, named) == "");
  CHECK(without(find(act::sync, states)) ==
        "states-00001-of-00002.safetensors: closed before all that is written is synced");
  CHECK(moved(find(act::sync, states), find(act::create, states) + 1) ==
        "states-00001-of-00002.safetensors: closed before all that is written is synced");
  CHECK(moved(find(act::sync, states), find(act::close, states) + 1) ==
        "states-00001-of-00002.safetensors: closed before all that is written is synced");
  CHECK(inserted({act::write, states, {}, 0}, find(act::close, states) + 1) ==
        "states-00001-of-00002.safetensors: written after it is closed");
  CHECK(moved(find(act::close, states), find(act::create, manifest) + 1) ==
        "states-00001-of-00002.safetensors: open beside the manifest");
  CHECK(without(find(act::sync, manifest)) ==
        "manifest.json: closed before all that is written is synced");
  CHECK(without(find(act::sync, partial)) == "named before its folder is synced");
  CHECK(moved(find(act::sync, partial), find(act::create, manifest)) ==
        "named before its folder is synced");
  CHECK(moved(named, find(act::sync, partial)) == "named before its folder is synced");
  CHECK(moved(named, find(act::create, manifest)) == "named before the manifest is there");
  CHECK(inserted({act::create, partial + "/more"}, named) == "another file");
  CHECK(moved(find(act::returned, path), durable) == "returned before the name is synced");
  CHECK(without(find(act::returned, path)) == "returned on other ranks");
  CHECK(inserted({act::rename, run.root + "/step-000000000001", "elsewhere"}, named) ==
        "an earlier checkpoint is touched before the new one has its name: " + run.root +
            "/step-000000000001");
  CHECK(inserted({act::remove, run.root + "/step-000000000001/manifest.json"}, durable) ==
        "an earlier checkpoint is touched before the new one has its name: " + run.root +
            "/step-000000000001/manifest.json");
  call_list unsynced = run.calls;
  std::erase(unsynced, file_call{act::sync, run.root});
  CHECK(run.fault(unsynced, step) == "the name is not synced");
  const std::string above = std::filesystem::path(run.root).parent_path().string();
  std::erase(unsynced = run.calls, file_call{act::sync, above});
  CHECK(run.fault(unsynced, 1) == "the folder of checkpoints is not synced");
}

}  // namespace sync_order_test
