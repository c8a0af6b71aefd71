// The emulated machine of one test case.
#pragma once

#include <doctest/doctest.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

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

// Takes the errors: there must be one, which names all of these.
inline void expect_error(std::initializer_list<std::string_view> parts) {
  const std::vector<std::string> found = take_errors();
  REQUIRE_MESSAGE(!found.empty(), "no device error that says: " << *parts.begin());
  for (const std::string_view part : parts) {
    CHECK_MESSAGE(found[0].find(part) != std::string::npos, found[0] << "\nexpected: " << part);
  }
  for (std::size_t i = 1; i < found.size(); ++i) FAIL_CHECK(found[i]);
}

}  // namespace emulation
