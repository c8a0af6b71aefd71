// The emulated machine of one test case.
#pragma once

#include <doctest/doctest.h>

#include "emulation/emulation.hpp"

// Fails the test for everything that the emulation has found wrong.
#define CHECK_NO_DEVICE_ERRORS()                                             \
  do {                                                                       \
    for (const std::string& device_error_found : emulation::take_errors()) { \
      ADD_FAIL_CHECK_AT(__FILE__, __LINE__, device_error_found);             \
    }                                                                        \
  } while (false)

namespace emulation {

// A fresh machine for the scope. At its end errors that nobody took, and leaks, fail the test:
// declare it before what uses it.
class session {
 public:
  explicit session(const configuration& how = {}) { reset(how); }
  ~session() {
    CHECK_NO_DEVICE_ERRORS();
    for (const std::string& leak : leaks()) ADD_FAIL_CHECK_AT(__FILE__, __LINE__, leak);
    reset();
  }
  session(const session&) = delete;
  session& operator=(const session&) = delete;
};

}  // namespace emulation
