// tcp_socket: connections that never block, and the frames that travel on them. The only includer
// of sockets.
#pragma once

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "mfsdp/concepts.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// A connected or listening socket that never blocks. Move-only.
class tcp_socket {
 public:
  tcp_socket() = default;
  explicit tcp_socket(int file) : file_(file) {
    (void)fcntl(file_, F_SETFL, fcntl(file_, F_GETFL, 0) | O_NONBLOCK);
    (void)fcntl(file_, F_SETFD, FD_CLOEXEC);
  }
  tcp_socket(tcp_socket&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  tcp_socket& operator=(tcp_socket&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  ~tcp_socket() {
    if (file_ >= 0) (void)close(file_);
  }

  [[nodiscard]] bool open() const { return file_ >= 0; }
  [[nodiscard]] int get() const { return file_; }

  // Waits until there is something to read, or to write, or the other end is gone.
  void wait(short events, std::chrono::milliseconds patience) const {
    pollfd entry{file_, events, 0};
    (void)::poll(&entry, 1, static_cast<int>(patience.count()));
  }

  // Appends what has come; false when the other end is gone.
  bool receive(std::string& to) const {
    std::array<char, 4096> part;
    while (true) {
      const ssize_t got = recv(file_, part.data(), part.size(), 0);
      if (got > 0) {
        to.append(part.data(), static_cast<std::size_t>(got));
      } else if (got < 0 && errno == EINTR) {
        continue;
      } else {
        return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
      }
    }
  }
  // False when the other end is gone, or does not take it before the deadline.
  bool send_all(std::string_view bytes, deadline until) const {
    while (!bytes.empty()) {
      const ssize_t sent = send(file_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent > 0) {
        bytes.remove_prefix(static_cast<std::size_t>(sent));
      } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
        return false;
      } else if (std::chrono::steady_clock::now() > until) {
        return false;
      } else {
        wait(POLLOUT, std::chrono::milliseconds(10));
      }
    }
    return true;
  }

 private:
  int file_ = -1;
};

struct free_addresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using addresses = std::unique_ptr<addrinfo, free_addresses>;

// Empty if the name is not known (yet).
[[nodiscard]] inline addresses resolve(const char* host, int port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  if (getaddrinfo(host, std::to_string(port).c_str(), &hints, &list) != 0) return {};
  return addresses(list);
}

// What ranks send each other: a letter, the length, the text.
enum class frame_kind : char { bytes = 'b', refusal = 'r', failure = 'f', farewell = 'q' };

[[nodiscard]] inline std::string framed(frame_kind kind, std::string_view text) {
  std::string out(1, static_cast<char>(kind));
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(text.size() >> shift);
  return out.append(text);
}

// Takes the first frame out of what has come, if it is there whole.
[[nodiscard]] inline std::optional<std::pair<frame_kind, std::string>> take_frame(
    std::string& come) {
  if (come.size() < 5) return std::nullopt;
  std::size_t length = 0;
  for (std::size_t i = 1; i < 5; ++i) {
    length = length << 8 | static_cast<unsigned char>(come[i]);
  }
  if (come.size() - 5 < length) return std::nullopt;
  std::pair frame{static_cast<frame_kind>(come[0]), come.substr(5, length)};
  come.erase(0, 5 + length);
  return frame;
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
