// Files as checkpoints need them: created once, written and read at given places, durable, and
// never through a symbolic link. POSIX.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "mfsdp/error.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// What a person can do about an errno.
[[nodiscard]] inline std::string_view remedy(int code) {
  switch (code) {
    case ENOSPC:
    case EDQUOT:
      return "free some space, or name a folder on another disk";
    case EFBIG:
      return "raise the limit on the size of files (ulimit -f), or name a folder on another disk";
    case EACCES:
    case EPERM:
    case EROFS:
      return "give this user the right to it, or name another folder";
    case ENOENT:
    case ENOTDIR:
    case ENAMETOOLONG:
      return "check the path";
    case EEXIST:
    case ENOTEMPTY:
      return "remove it, or name another one";
    case ELOOP:
    case EMLINK:
      return "symbolic links are not followed here: put the file itself there";
    case EMFILE:
    case ENFILE:
      return "raise the limit on open files (ulimit -n)";
    default:
      return "check the disk and the log of the system";
  }
}

[[noreturn]] inline void fail_on_file(std::string_view doing, std::string_view path, int code) {
  throw checkpoint_error(fmt::format("cannot {} '{}': {}; {}", doing, path,
                                     std::generic_category().message(code), remedy(code)));
}

// A regular file that is open, either for writing or for reading; movable. Errors of all members:
// checkpoint_error with the path, the cause and what to do.
class file {
 public:
  // A new, empty one to write to. Fails if anything has that name, be it a link to nowhere.
  [[nodiscard]] static file create(const std::string& path) {
    return {path, O_WRONLY | O_CREAT | O_EXCL, "create"};
  }
  // An existing one to write to.
  [[nodiscard]] static file amend(const std::string& path) { return {path, O_WRONLY, "open"}; }
  // One to lock, whose content does not matter; it may be there.
  [[nodiscard]] static file create_or_open(const std::string& path) {
    return {path, O_WRONLY | O_CREAT, "create"};
  }
  // An existing one to read. Fails on links, and at once on pipes and devices.
  [[nodiscard]] static file open(const std::string& path) { return {path, O_RDONLY, "open"}; }

  file(file&& other) noexcept
      : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}
  file& operator=(file&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  // Without a word about errors: after writing, close().
  ~file() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  [[nodiscard]] const std::string& path() const { return path_; }

  [[nodiscard]] std::int64_t size() const {
    struct stat about;
    if (::fstat(descriptor_, &about) != 0) fail("examine", errno);
    return about.st_size;
  }

  // All of these bytes, at this place, from any thread.
  void write(std::span<const std::byte> bytes, std::int64_t offset) {
    while (!bytes.empty()) {
      require_allowed(bytes.size(), offset);
      const ssize_t count =
          ::pwrite(descriptor_, bytes.data(), std::min(bytes.size(), at_once), offset);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) fail("write to", count < 0 ? errno : EIO);
      bytes = bytes.subspan(static_cast<std::size_t>(count));
      offset += count;
    }
  }
  // As many bytes as the span has, from this place on, from any thread. Fails if the file ends
  // before.
  void read(std::span<std::byte> bytes, std::int64_t offset) const {
    while (!bytes.empty()) {
      const ssize_t count =
          ::pread(descriptor_, bytes.data(), std::min(bytes.size(), at_once), offset);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail("read", errno);
      if (count == 0) {
        throw checkpoint_error(fmt::format(
            "'{}' ends at byte {}, {} too early: it is damaged or incomplete; take another "
            "checkpoint",
            path_, size(), bytes.size()));
      }
      bytes = bytes.subspan(static_cast<std::size_t>(count));
      offset += count;
    }
  }

  // Says that these bytes will be read soon, so that the system can fetch them in the meantime.
  void will_read(std::int64_t bytes, std::int64_t offset) const {
    (void)::posix_fadvise(descriptor_, offset, bytes, POSIX_FADV_WILLNEED);
  }

  // Waits until what was written is on the disk.
  void sync() {
    while (::fsync(descriptor_) != 0) {
      if (errno != EINTR) fail("write to the disk", errno);
    }
  }
  // Whether nobody else has locked this file; nobody can then, until unlock, or until this process
  // and those that it has forked meanwhile have closed it or ended. Always where the file system
  // has no locks.
  [[nodiscard]] bool try_lock() const {
    int result = 0;
    do {
      result = ::flock(descriptor_, LOCK_EX | LOCK_NB);
    } while (result != 0 && errno == EINTR);
    if (result == 0 || errno == ENOSYS || errno == EOPNOTSUPP || errno == ENOLCK) return true;
    if (errno != EWOULDBLOCK) fail("lock", errno);
    return false;
  }
  // Also for processes forked since, which hold the same lock.
  void unlock() const noexcept { (void)::flock(descriptor_, LOCK_UN); }
  // Some file systems report only here that writing failed. Nothing may follow.
  void close() {
    if (::close(std::exchange(descriptor_, -1)) != 0 && errno != EINTR) fail("close", errno);
  }

 private:
  // Systems take no more than 2 GiB in one call.
  static constexpr std::size_t at_once = std::size_t{1} << 30;

  file(const std::string& path, int flags, std::string_view doing) : path_(path) {
    constexpr int always =
        O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;  // no waiting for a pipe's other end
    do {
      descriptor_ = ::open(path.c_str(), flags | always, 0666);
    } while (descriptor_ < 0 && errno == EINTR);
    if (descriptor_ < 0) fail(doing, errno);
    struct stat about;
    const bool known = ::fstat(descriptor_, &about) == 0;
    if (known && S_ISREG(about.st_mode)) return;
    const int code = errno;
    ::close(std::exchange(descriptor_, -1));
    if (!known) fail("examine", code);
    throw checkpoint_error(
        fmt::format("cannot {} '{}': it is a folder, a pipe or a device; put a regular file there",
                    doing, path));
  }

  // Beyond the limit on file sizes a system does not only refuse: its signal ends the process.
  void require_allowed(std::size_t count, std::int64_t offset) const {
    struct rlimit limit;
    if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    const auto from = static_cast<std::uint64_t>(offset);
    if (from > limit.rlim_cur || count > limit.rlim_cur - from) fail("write to", EFBIG);
  }

  [[noreturn]] void fail(std::string_view doing, int code) const {
    fail_on_file(doing, path_, code);
  }

  std::string path_;
  int descriptor_ = -1;
};

// A new file with these bytes, on the disk. Errors: checkpoint_error.
inline void write_file(const std::string& path, std::string_view bytes) {
  file fresh = file::create(path);
  fresh.write(std::as_bytes(std::span(bytes)), 0);
  fresh.sync();
  fresh.close();
}

// Waits until the names in a folder are on the disk. Errors: checkpoint_error.
inline void sync_folder(const std::string& path) {
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) fail_on_file("open", path, errno);
  int code = 0;
  while (::fsync(folder) != 0) {
    code = errno;
    if (code != EINTR) break;
    code = 0;
  }
  ::close(folder);
  if (code == EINVAL || code == ENOTSUP)
    return;  // this file system keeps names without being asked
  if (code != 0) fail_on_file("write to the disk", path, code);
}

// Creates a folder in one that is there. Fails if anything has that name. Errors: checkpoint_error.
inline void create_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) != 0) fail_on_file("create", path, errno);
}

// Creates a folder and those above it that are not there, all durably: each name is on the disk.
// Nothing if the folder is there. Errors: checkpoint_error.
inline void create_folders(const std::string& path) {
  const auto is_there = [&] {
    std::error_code unknown;
    return std::filesystem::is_directory(path, unknown);
  };
  if (is_there()) return;
  std::filesystem::path folder = path;
  if (!folder.has_filename()) folder = folder.parent_path();  // "a/" is "a"
  const std::string above = folder.parent_path().string();
  if (!above.empty()) create_folders(above);
  // Another process may have created it since.
  if (::mkdir(path.c_str(), 0777) != 0 && !(errno == EEXIST && is_there())) {
    fail_on_file("create", path, errno);
  }
  sync_folder(above.empty() ? "." : above);
}

// Renames a file or a folder within one folder, at once and durably: whoever looks, also after a
// crash, finds the old name or the new one. A file replaces a file of that name; nothing replaces a
// folder that is not empty. What is in it is to be synced before. Errors: checkpoint_error.
inline void rename_durably(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    fail_on_file(fmt::format("rename '{}' to", from), to, errno);
  }
  const std::filesystem::path folder = std::filesystem::path(to).parent_path();
  sync_folder(folder.empty() ? "." : folder.string());
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
