// A folder for the files of a test, and what a refused one says.
#pragma once

#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/fsuid.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "mfsdp/error.hpp"

namespace checkpoint_files {

// Empty at first, gone at the end.
class temporary_folder {
 public:
  temporary_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "mfsdp-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~temporary_folder() { std::filesystem::remove_all(path_); }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;

  [[nodiscard]] std::string path() const { return path_; }
  [[nodiscard]] std::string operator/(std::string_view name) const {
    return path_ + "/" + std::string(name);
  }

 private:
  std::string path_;
};

// This thread has no more rights to files than others have, even if the tests run as root.
class without_privileges {
 public:
  without_privileges() : before_(setfsuid(65534)) {}
  ~without_privileges() { setfsuid(static_cast<uid_t>(before_)); }
  without_privileges(const without_privileges&) = delete;
  without_privileges& operator=(const without_privileges&) = delete;

 private:
  int before_;
};

inline void put_bytes(const std::string& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  REQUIRE(out.flush());
}

// What the checkpoint_error says that `call` throws; nothing if it throws none.
template <class Call>
[[nodiscard]] std::string refusal_of(Call&& call) {
  try {
    static_cast<void>(call());
  } catch (const mfsdp::checkpoint_error& refused) {
    return refused.what();
  }
  return "";
}

}  // namespace checkpoint_files
