// rendezvous: the ranks of a job find each other over TCP. Rank 0 listens, the others come to it,
// and the connections stay, for notices of failures.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "mfsdp/collective/job.hpp"
#include "mfsdp/collective/rank_notices.hpp"
#include "mfsdp/collective/tcp_socket.hpp"

namespace mfsdp::inline MFSDP_ABI {

// A meeting of all ranks of a job, which is over when each has come. Errors, on every rank that can
// be reached: collective_error that says who did not come before the timeout, who is there twice,
// or that ranks were started for different numbers of ranks; that the port is taken. Connections
// that do not speak for a rank of this job are closed and do not matter.
class rendezvous : public rank_notices {
  using clock = std::chrono::steady_clock;

 public:
  explicit rendezvous(job here, std::chrono::milliseconds timeout = std::chrono::minutes(2))
      : job_(std::move(here)), until_(deadline_after(timeout)) {
    if (job_.size < 1 || job_.rank < 0 || job_.rank >= job_.size || job_.port < 1) {
      throw spec_error(
          fmt::format("a rendezvous of rank {} of {} at port {}", job_.rank, job_.size, job_.port));
    }
    if (job_.size == 1) return;
    peers_.resize(job_.rank == 0 ? static_cast<std::size_t>(job_.size) : 1);
    if (job_.rank == 0) {
      receive_all();
    } else {
      come();
    }
  }

  // Those who stay need not wonder.
  ~rendezvous() override {
    const deadline soon = clock::now() + std::chrono::milliseconds(100);
    for (const peer& p : peers_) {
      if (p.connection.open()) {
        (void)p.connection.send_all(detail::framed(detail::frame_kind::farewell, {}), soon);
      }
    }
  }

  // Brings bytes of rank 0 to all ranks, which call it alike. Errors: collective_error.
  [[nodiscard]] std::string share(std::string_view bytes, std::chrono::milliseconds timeout) {
    until_ = deadline_after(timeout);
    if (job_.rank != 0) return expect_bytes();
    for (std::size_t r = 1; r < peers_.size(); ++r) {
      if (!peers_[r].connection.send_all(detail::framed(detail::frame_kind::bytes, bytes),
                                         until_)) {
        throw collective_error(fmt::format("{}: rank {} is gone", at(), r));
      }
    }
    return std::string(bytes);
  }

  void tell(std::string_view cause) override {
    announce(fmt::format("{} {}", job_.rank, cause), peers_.size());
  }

  std::optional<failure> heard() override {
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      peer& p = peers_[i];
      if (!p.connection.open()) continue;
      const bool there = p.connection.receive(p.come);
      while (auto frame = detail::take_frame(p.come)) {
        if (frame->first == detail::frame_kind::farewell) p.left = true;
        if (frame->first == detail::frame_kind::bytes) shared_.push_back(std::move(frame->second));
        if (frame->first == detail::frame_kind::failure) {
          if (job_.rank == 0) announce(frame->second, i);
          note_failure(frame->second);
        }
      }
      if (there) continue;
      p.connection = {};
      if (!p.left) {
        const std::string gone = fmt::format("{} its process has ended without a word", i);
        if (job_.rank == 0) announce(gone, i);
        note_failure(gone);
      }
    }
    return failure_;
  }

 private:
  struct peer {
    detail::tcp_socket connection{};
    std::string come{};  // and not read yet
    bool left = false;
  };

  [[nodiscard]] std::string at() const {
    return fmt::format("rendezvous at {}:{}", job_.host, job_.port);
  }
  [[nodiscard]] bool late() const { return clock::now() > until_; }
  [[nodiscard]] std::string greeting() const {
    return fmt::format("mfsdp rendezvous 1 {} {} {}\n", job_.size, job_.rank, job_.id);
  }

  void announce(std::string_view text, std::size_t but) const {
    const deadline soon = clock::now() + std::chrono::milliseconds(100);
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      if (i != but && peers_[i].connection.open()) {
        (void)peers_[i].connection.send_all(detail::framed(detail::frame_kind::failure, text),
                                            soon);
      }
    }
  }
  void note_failure(const std::string& text) {
    if (failure_) return;
    const std::size_t space = text.find(' ');
    if (space == std::string::npos) return;
    failure_ = failure{std::atoi(text.c_str()), text.substr(space + 1)};
  }

  // ----- rank 0

  [[nodiscard]] detail::tcp_socket listening() const {
    // At all addresses of this machine, since its own name is often one of the loopback to itself;
    // within the machine if the job says so.
    const bool within = job_.host == "localhost" || job_.host == "127.0.0.1" || job_.host == "::1";
    const char* const host = within ? job_.host.c_str() : nullptr;
    const detail::addresses list = detail::resolve(host, job_.port, AI_PASSIVE);
    for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
      detail::tcp_socket fresh(socket(a->ai_family, a->ai_socktype, a->ai_protocol));
      if (!fresh.open()) continue;
      const int yes = 1;
      (void)setsockopt(fresh.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
      if (bind(fresh.get(), a->ai_addr, a->ai_addrlen) == 0 &&
          listen(fresh.get(), SOMAXCONN) == 0) {
        return fresh;
      }
      if (errno == EADDRINUSE) {
        throw collective_error(fmt::format(
            "{}: rank 0 cannot listen there, the port is taken; another program or an earlier "
            "job has it. Set MFSDP_RENDEZVOUS_PORT to a free port, on all ranks",
            at()));
      }
    }
    throw collective_error(
        fmt::format("{}: rank 0 cannot listen there: {}", at(), std::strerror(errno)));
  }

  void receive_all() {
    const detail::tcp_socket door = listening();
    std::vector<peer> waiting;  // that have not said who they are
    while (std::ranges::count_if(peers_, [](const peer& p) { return p.connection.open(); }) + 1 <
           job_.size) {
      if (late()) refuse_all(fmt::format("{} did not come in time", missing()));
      std::vector<pollfd> ready{{door.get(), POLLIN, 0}};
      for (const peer& p : waiting) ready.push_back({p.connection.get(), POLLIN, 0});
      (void)::poll(ready.data(), ready.size(), 20);
      for (int file = 0; (file = accept(door.get(), nullptr, nullptr)) >= 0;) {
        waiting.push_back({detail::tcp_socket(file)});
      }
      std::erase_if(waiting, [&](peer& p) { return !p.connection.receive(p.come) || admit(p); });
    }
    for (std::size_t r = 1; r < peers_.size(); ++r) {
      (void)peers_[r].connection.send_all(detail::framed(detail::frame_kind::bytes, "welcome"),
                                          until_);
    }
  }

  // Whether this connection needs no more attention: it has become a rank's, or is a stranger's.
  bool admit(peer& p) {
    constexpr std::size_t longest = 1024;
    const std::size_t end = p.come.find('\n');
    const std::string_view prefix = "mfsdp rendezvous 1 ";
    const std::size_t known = std::min(prefix.size(), p.come.size());
    if (p.come.size() > longest || p.come.substr(0, known) != prefix.substr(0, known)) return true;
    if (end == std::string::npos) return false;
    int size = 0;
    int rank = 0;
    int read = 0;
    if (std::sscanf(p.come.c_str() + prefix.size(), "%d %d%n", &size, &rank, &read) < 2) {
      return true;
    }
    const std::size_t id = prefix.size() + static_cast<std::size_t>(read) + 1;
    if (id > end || p.come.substr(id, end - id) != job_.id) {
      (void)p.connection.send_all(detail::framed(detail::frame_kind::refusal, "of another job"),
                                  until_);
      return true;
    }
    std::string wrong;
    if (size != job_.size) {
      wrong = fmt::format("rank {} was started as one of {} ranks, rank 0 as one of {}", rank, size,
                          job_.size);
    } else if (rank < 1 || rank >= size) {
      wrong = fmt::format("a process came as rank {} of {}", rank, size);
    } else {
      peer& place = peers_[static_cast<std::size_t>(rank)];
      if (place.connection.open() && place.connection.receive(place.come)) {
        wrong = fmt::format("rank {} came twice; every process needs a rank of its own", rank);
      } else {
        p.come.erase(0, end + 1);
        place = std::move(p);
        return true;
      }
    }
    (void)p.connection.send_all(detail::framed(detail::frame_kind::refusal, wrong), until_);
    refuse_all(wrong);
  }

  [[nodiscard]] std::string missing() const {
    std::string ranks;
    int count = 0;
    for (std::size_t r = 1; r < peers_.size(); ++r) {
      if (peers_[r].connection.open()) continue;
      ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", r);
      ++count;
    }
    return fmt::format("{} {} of {}", count == 1 ? "rank" : "ranks", ranks, job_.size);
  }

  [[noreturn]] void refuse_all(const std::string& why) const {
    const deadline soon = clock::now() + std::chrono::milliseconds(100);
    for (const peer& p : peers_) {
      if (p.connection.open()) {
        (void)p.connection.send_all(detail::framed(detail::frame_kind::refusal, why), soon);
      }
    }
    throw collective_error(fmt::format("{}: {}", at(), why));
  }

  // ----- the others

  // Connected, perhaps to somebody else; empty if nobody listens yet.
  [[nodiscard]] detail::tcp_socket connected() const {
    const detail::addresses list = detail::resolve(job_.host.c_str(), job_.port, 0);
    for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
      detail::tcp_socket fresh(socket(a->ai_family, a->ai_socktype, a->ai_protocol));
      if (!fresh.open()) continue;
      if (connect(fresh.get(), a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS) continue;
      fresh.wait(POLLOUT, std::chrono::seconds(1));
      int code = 0;
      socklen_t length = sizeof code;
      if (getsockopt(fresh.get(), SOL_SOCKET, SO_ERROR, &code, &length) == 0 && code == 0 &&
          fresh.send_all(greeting(), std::min(until_, clock::now() + std::chrono::seconds(1)))) {
        return fresh;
      }
    }
    return {};
  }

  void come() {
    std::string why = "nobody listens there";
    while (!late()) {
      peers_[0] = {connected()};
      if (peers_[0].connection.open()) {
        why =
            "who listens there does not answer as rank 0 of this job; if that is another "
            "program, set MFSDP_RENDEZVOUS_PORT to a free port, on all ranks";
        try {
          (void)expect_bytes();
          return;
        } catch (const disconnected&) {  // by another program, or a rank 0 that has ended
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    throw collective_error(
        fmt::format("{}: rank {} of {} reached its deadline, {}", at(), job_.rank, job_.size, why));
  }

  struct disconnected : collective_error {
    using collective_error::collective_error;
  };

  std::string expect_bytes() {
    peer& root = peers_[0];
    bool there = true;
    if (!shared_.empty()) {
      std::string bytes = std::move(shared_.front());
      shared_.erase(shared_.begin());
      return bytes;
    }
    while (true) {
      there = root.connection.receive(root.come);
      if (auto frame = detail::take_frame(root.come)) {
        if (frame->first == detail::frame_kind::bytes) return std::move(frame->second);
        if (frame->first != detail::frame_kind::refusal) {
          throw collective_error(fmt::format("{}: rank 0 has left: {}", at(), frame->second));
        }
        throw collective_error(
            fmt::format("{}: rank {} was turned away: {}", at(), job_.rank, frame->second));
      }
      if (!there) throw disconnected(fmt::format("{}: rank 0 is gone", at()));
      if (late()) {
        throw collective_error(
            fmt::format("{}: rank {} reached its deadline waiting for rank 0, or for ranks that "
                        "did not come; who listens there may be another program, which "
                        "MFSDP_RENDEZVOUS_PORT avoids",
                        at(), job_.rank));
      }
      root.connection.wait(POLLIN, std::chrono::milliseconds(20));
    }
  }

  job job_;
  deadline until_;
  std::vector<peer> peers_;          // of rank 0: by rank; of the others: rank 0
  std::vector<std::string> shared_;  // by rank 0, and not asked for yet
  std::optional<failure> failure_;
};

}  // namespace mfsdp::inline MFSDP_ABI
