#include "mfsdp/checkpoint/file.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/checkpoint_files.hpp"

namespace file_test {

using checkpoint_files::put_bytes;
using checkpoint_files::refusal_of;
using checkpoint_files::temporary_folder;
using mfsdp::detail::file;

namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string read_text(const file& from, std::int64_t offset, std::size_t count) {
  std::string text(count, '?');
  from.read(std::as_writable_bytes(std::span(text)), offset);
  return text;
}

}  // namespace

TEST_CASE("what is written anywhere in a file is read from there") {
  const temporary_folder folder;
  const std::string path = folder / "f";
  file out = file::create(path);
  CHECK(out.path() == path);
  out.write(bytes_of("world"), 6);
  out.write(bytes_of("hello "), 0);
  out.write({}, 100);  // nothing, so the file does not grow
  CHECK(out.size() == 11);
  out.sync();
  out.close();

  const file in = file::open(path);
  CHECK(in.size() == 11);
  CHECK(read_text(in, 0, 11) == "hello world");
  CHECK(read_text(in, 4, 3) == "o w");
  CHECK(read_text(in, 11, 0) == "");
}

TEST_CASE("files can be moved") {
  const temporary_folder folder;
  put_bytes(folder / "a", "aa");
  put_bytes(folder / "b", "bb");
  file first = file::open(folder / "a");
  file second = std::move(first);
  CHECK(read_text(second, 0, 2) == "aa");
  second = file::open(folder / "b");
  CHECK(second.path() == folder / "b");
  CHECK(read_text(second, 0, 2) == "bb");
}

TEST_CASE("a file that ends too early says where") {
  const temporary_folder folder;
  const std::string path = folder / "f";
  put_bytes(path, "0123456789");
  const file in = file::open(path);
  CHECK(refusal_of([&] { return read_text(in, 8, 5); }) ==
        "'" + path +
            "' ends at byte 10, 3 too early: it is damaged or incomplete; take another checkpoint");
  CHECK(refusal_of([&] { return read_text(in, 50, 1); }).find("1 too early") != std::string::npos);
}

TEST_CASE("only a name that nothing has yet is created") {
  const temporary_folder folder;
  put_bytes(folder / "f", "kept");
  std::filesystem::create_symlink("nowhere", folder / "dangling");
  std::filesystem::create_directory(folder / "d");
  for (const char* const name : {"f", "dangling", "d"}) {
    CAPTURE(name);
    CHECK(refusal_of([&] { return file::create(folder / name); }) ==
          "cannot create '" + (folder / name) + "': File exists; remove it, or name another one");
  }
  CHECK(read_text(file::open(folder / "f"), 0, 4) == "kept");
  CHECK(!std::filesystem::exists(folder / "nowhere"));
  CHECK(refusal_of([&] { return file::create(folder / "no/such/folder"); }) ==
        "cannot create '" + (folder / "no/such/folder") +
            "': No such file or directory; check the path");
  CHECK(refusal_of([&] {
          return file::create(folder / std::string(300, 'x'));
        }).ends_with("File name too long; check the path"));
}

TEST_CASE("only a regular file is opened, at once and by its own name") {
  const temporary_folder folder;
  put_bytes(folder / "f", "1");
  std::filesystem::create_symlink("f", folder / "link");
  std::filesystem::create_directory(folder / "d");
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(refusal_of([&] { return file::open(folder / "link"); }) ==
        "cannot open '" + (folder / "link") +
            "': Too many levels of symbolic links; symbolic links are not followed here: put the "
            "file itself there");
  CHECK(refusal_of([&] { return file::open(folder / "none"); }) ==
        "cannot open '" + (folder / "none") + "': No such file or directory; check the path");
  for (const std::string& path :
       {folder / "d", folder / "pipe", std::string("/dev/null"), std::string("/dev/full")}) {
    CAPTURE(path);
    CHECK(refusal_of([&] { return file::open(path); }) ==
          "cannot open '" + path +
              "': it is a folder, a pipe or a device; put a regular file there");
  }
}

TEST_CASE("a limit on file sizes is an error, not a signal") {
  const temporary_folder folder;
  rlimit before;
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit limit = before;
  limit.rlim_cur = 1000;
  file out = file::create(folder / "f");
  const std::string text(600, 'x');
  REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  const std::string inside = refusal_of([&] { return out.write(bytes_of(text), 400), 0; });
  const std::string across = refusal_of([&] { return out.write(bytes_of(text), 401), 0; });
  const std::string beyond = refusal_of([&] { return out.write(bytes_of(text), 5000), 0; });
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(inside == "");
  CHECK(across == "cannot write to '" + (folder / "f") +
                      "': File too large; raise the limit on the size of files (ulimit -f), or "
                      "name a folder on another disk");
  CHECK(beyond == across);
}

TEST_CASE("an error of the system says what to do about it") {
  const auto fail_with = [](int code) {
    return refusal_of([&] { return mfsdp::detail::fail_on_file("write to", "f", code), 0; });
  };
  CHECK(fail_with(ENOSPC) ==
        "cannot write to 'f': No space left on device; free some space, or name a folder on "
        "another disk");
  CHECK(fail_with(EROFS) ==
        "cannot write to 'f': Read-only file system; give this user the right to it, or name "
        "another folder");
  CHECK(fail_with(EMFILE).ends_with("raise the limit on open files (ulimit -n)"));
  CHECK(fail_with(EIO).ends_with("Input/output error; check the disk and the log of the system"));
}

TEST_CASE("folders are created with those above them") {
  const temporary_folder folder;
  put_bytes(folder / "f", "1");
  for (const char* const name : {"a", "b/c/d", "b/e/", "b//g/./h", "a"}) {
    CAPTURE(name);
    mfsdp::detail::create_folders(folder / name);
    CHECK(std::filesystem::is_directory(folder / name));
  }
  std::filesystem::create_directory_symlink("a", folder / "link");
  mfsdp::detail::create_folders(folder / "link/below");
  CHECK(std::filesystem::is_directory(folder / "a/below"));
  CHECK(refusal_of([&] { return mfsdp::detail::create_folders(folder / "f"), 0; }) ==
        "cannot create '" + (folder / "f") + "': File exists; remove it, or name another one");
  CHECK(refusal_of([&] { return mfsdp::detail::create_folders(folder / "f/x/y"), 0; }) != "");
  CHECK(
      refusal_of([&] { return mfsdp::detail::create_folders(""), 0; }).ends_with("check the path"));
}

TEST_CASE("a folder that cannot be synced because its file system has no such thing is no error") {
  mfsdp::detail::sync_folder("/proc/self");
}

TEST_CASE("folders are created once, renames replace files and no full folders") {
  const temporary_folder folder;
  mfsdp::detail::create_folder(folder / "a");
  put_bytes(folder / "a/f", "1");
  CHECK(refusal_of([&] {
          return mfsdp::detail::create_folder(folder / "a"), 0;
        }).ends_with("File exists; remove it, or name another one"));

  mfsdp::detail::sync_folder(folder / "a");
  mfsdp::detail::rename_durably(folder / "a", folder / "b");
  CHECK(!std::filesystem::exists(folder / "a"));
  CHECK(std::filesystem::exists(folder / "b/f"));

  mfsdp::detail::create_folder(folder / "c");
  CHECK(refusal_of([&] { return mfsdp::detail::rename_durably(folder / "c", folder / "b"), 0; }) ==
        "cannot rename '" + (folder / "c") + "' to '" + (folder / "b") +
            "': Directory not empty; remove it, or name another one");
  put_bytes(folder / "b/g", "2");
  mfsdp::detail::rename_durably(folder / "b/g", folder / "b/f");
  CHECK(read_text(file::open(folder / "b/f"), 0, 1) == "2");
  CHECK(refusal_of([&] {
          return mfsdp::detail::sync_folder(folder / "a"), 0;
        }).starts_with("cannot open '" + (folder / "a") + "': No such file"));
}

}  // namespace file_test
