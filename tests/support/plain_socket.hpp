// Sockets of a test, beside those under test.
#pragma once

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <thread>

namespace mfsdp_test {

// A plain socket of the test's own at a port of this machine; port 0 is any free one.
struct plain_socket {
  int file = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};

  explicit plain_socket(int port) {
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  plain_socket(const plain_socket&) = delete;
  plain_socket& operator=(const plain_socket&) = delete;
  ~plain_socket() { close(file); }

  int listen_there() {
    REQUIRE(bind(file, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(listen(file, 8) == 0);
    socklen_t length = sizeof address;
    REQUIRE(getsockname(file, reinterpret_cast<sockaddr*>(&address), &length) == 0);
    return ntohs(address.sin_port);
  }
  void connect_there() {
    while (connect(file, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      std::this_thread::yield();
    }
  }
};

// A port that nobody has at the moment.
inline int free_port() {
  return plain_socket(0).listen_there();
}

}  // namespace mfsdp_test
