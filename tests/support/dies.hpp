// Whether a piece of code ends its process.
#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace mfsdp_test {

// Calls body() in a child of this process. True: it was ended by a signal, or by a sanitizer.
template <class Body>
bool dies(const Body& body) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);  // doctest's would report a failure
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) || WEXITSTATUS(status) != 0;
}

}  // namespace mfsdp_test
