# Checks that every test that a document quotes exists (docs/failures.md, docs/optimizers.md,
# docs/optimizer_failures.md), after a test of the check itself.
#
#   cmake -D DOCUMENT=<file> -D TEST_DIR=<dir> -D SCRATCH_DIR=<dir> -P failures.cmake
cmake_minimum_required(VERSION 3.24)

# Text without the characters that split or join CMake lists.
function(read_plain file result)
  file(READ ${file} text)
  string(REGEX REPLACE "[][;\\]" "," text "${text}")
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

# A quotation is `file`: "name of a TEST_CASE" for tests/mfsdp/<file>_test.cpp; nothing else in the
# document has quotation marks.
function(find_faults document test_dir result)
  set(faults)
  read_plain(${document} text)
  set(quotation "`([a-z0-9_/]+)`: \"([^\"\n]+)\"")
  string(REGEX MATCHALL "${quotation}" quotations "${text}")
  string(REGEX REPLACE "${quotation}" "" rest "${text}")
  if(rest MATCHES "[^\n]*\"[^\n]*")
    list(APPEND faults "not a quotation of a test: ${CMAKE_MATCH_0}")
  endif()
  if(NOT quotations)
    list(APPEND faults "no test is quoted")
  endif()
  foreach(found IN LISTS quotations)
    string(REGEX MATCH "${quotation}" found "${found}")
    set(name "${CMAKE_MATCH_2}")
    set(file ${test_dir}/${CMAKE_MATCH_1}_test.cpp)
    if(NOT EXISTS ${file})
      list(APPEND faults "no file for ${found}")
      continue()
    endif()
    read_plain(${file} source)
    string(REGEX REPLACE "TEST_CASE(_TEMPLATE)?\\([ \n]*" "TEST_CASE(" source "${source}")
    string(FIND "${source}" "TEST_CASE(\"${name}\"" position)
    if(position EQUAL -1)
      list(APPEND faults "no such TEST_CASE: ${found}")
    endif()
  endforeach()
  set(${result} "${faults}" PARENT_SCOPE)
endfunction()

# --------------------------------------------------------------------------- the test of the check

# A document that says `text` must give one fault that matches `expected`, or none if it is empty.
function(expect_fault expected text)
  file(REMOVE_RECURSE ${SCRATCH_DIR})
  file(WRITE ${SCRATCH_DIR}/tests/deep/some_test.cpp
       "TEST_CASE(\n    \"a, b [c]; d\") {}\nTEST_CASE_TEMPLATE(\"of T\", T, int) {}\n")
  file(WRITE ${SCRATCH_DIR}/text.md "${text}\n")
  find_faults(${SCRATCH_DIR}/text.md ${SCRATCH_DIR}/tests faults)
  list(LENGTH faults count)
  if((expected STREQUAL "" AND count GREATER 0)
     OR (NOT expected STREQUAL "" AND NOT (count EQUAL 1 AND faults MATCHES "${expected}")))
    message(FATAL_ERROR "planted: ${text}\nexpected: ${expected}\nfound: ${faults}")
  endif()
endfunction()

expect_fault("" "| [x]; | `deep/some`: \"a, b [c]; d\", `deep/some`: \"a, b [c]; d\" |")
expect_fault("" "`deep/some`: \"of T\"")
expect_fault("no such TEST_CASE" "`deep/some`: \"a, b [c]\"")
expect_fault("no file" "`other`: \"a, b [c]; d\"")
expect_fault("not a quotation" "`deep/some`: \"a, b [c]; d\" \"e\"")
expect_fault("no test" "nothing")

# ------------------------------------------------------------------------------------- the document

find_faults(${DOCUMENT} ${TEST_DIR} faults)
if(faults)
  list(JOIN faults "\n  " faults)
  message(FATAL_ERROR "${DOCUMENT}:\n  ${faults}")
endif()
