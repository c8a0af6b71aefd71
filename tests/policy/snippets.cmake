# Checks that code in the documentation is code that is compiled, after a test of the check itself.
# A block
#
#   <!-- snippet: examples/own_optimizer.cpp normalized_momentum -->
#   ```cpp
#   ...
#   ```
#
# equals the lines between `// [begin normalized_momentum]` and `// [end normalized_momentum]`.
#
#   cmake -D ROOT=<dir> -D SCRATCH_DIR=<dir> -P snippets.cmake
cmake_minimum_required(VERSION 3.24)

# The text between the first `begin` and the next `end` in `text`; `found` says whether both exist.
# Works on whole strings: brackets and semicolons in lines would upset CMake's lists.
function(text_between text begin end result found)
  set(${found} FALSE PARENT_SCOPE)
  string(FIND "${text}" "${begin}" from)
  if(from EQUAL -1)
    return()
  endif()
  string(LENGTH "${begin}" length)
  math(EXPR from "${from} + ${length}")
  string(SUBSTRING "${text}" ${from} -1 rest)
  string(FIND "${rest}" "${end}" to)
  if(to EQUAL -1)
    return()
  endif()
  string(SUBSTRING "${rest}" 0 ${to} between)
  set(${result} "${between}" PARENT_SCOPE)
  set(${found} TRUE PARENT_SCOPE)
endfunction()

# What is wrong with the snippets of one page; empty if nothing. Counts them.
function(check_page root page result count)
  file(READ ${root}/${page} rest)
  set(faults)
  set(snippets 0)
  while(TRUE)
    string(FIND "${rest}" "<!-- snippet: " at)
    if(at EQUAL -1)
      break()
    endif()
    string(SUBSTRING "${rest}" ${at} -1 rest)
    math(EXPR snippets "${snippets} + 1")
    string(REGEX MATCH "^<!-- snippet: ([^ \n]+) ([^ \n]+) -->\n```cpp\n" head "${rest}")
    if(head STREQUAL "")
      string(REGEX MATCH "^[^\n]*" line "${rest}")
      string(APPEND faults "\n  ${page}: '${line}' is not FILE NAME and a cpp block")
      string(SUBSTRING "${rest}" 1 -1 rest)
      continue()
    endif()
    set(file ${CMAKE_MATCH_1})
    set(name ${CMAKE_MATCH_2})
    text_between("${rest}" "```cpp\n" "```" quoted closed)
    string(LENGTH "${head}" length)
    string(SUBSTRING "${rest}" ${length} -1 rest)

    set(source "")
    if(EXISTS ${root}/${file})
      file(READ ${root}/${file} source)
    endif()
    text_between("${source}" "// [begin ${name}]\n" "// [end ${name}]" region known)
    if(NOT known)
      string(APPEND faults "\n  ${page}: ${file} has no region '${name}'")
    elseif(NOT closed OR NOT "${quoted}" STREQUAL "${region}")
      string(APPEND faults "\n  ${page}: the snippet '${name}' differs from ${file}")
    endif()
  endwhile()
  set(${result} "${faults}" PARENT_SCOPE)
  set(${count} ${snippets} PARENT_SCOPE)
endfunction()

# ------------------------------------------------------------------------------ a test of the check

file(WRITE ${SCRATCH_DIR}/code.cpp "int a;\n// [begin one]\nint b[2]; // \\ \"c\";\n// [end one]\n")
function(expect_fault expected block)
  file(WRITE ${SCRATCH_DIR}/page.md "# Page [1]; text\n\n${block}")
  check_page(${SCRATCH_DIR} page.md faults count)
  if((expected STREQUAL "" AND faults) OR NOT faults MATCHES "${expected}" OR NOT count EQUAL 1)
    message(FATAL_ERROR "planted: ${block}\nexpected: ${expected}\nfound ${count}: ${faults}")
  endif()
endfunction()

set(head "<!-- snippet: code.cpp one -->\n```cpp\n")
expect_fault("" "${head}int b[2]; // \\ \"c\";\n```\n")
expect_fault("differs" "${head}int b[3]; // \\ \"c\";\n```\n")
expect_fault("differs" "${head}int b[2]; // \\ \"c\"\n```\n")
expect_fault("differs" "${head}int b[2]; // \\ \"c\";\n")
expect_fault("no region 'two'" "<!-- snippet: code.cpp two -->\n```cpp\n```\n")
expect_fault("no region 'one'" "<!-- snippet: other.cpp one -->\n```cpp\n```\n")
expect_fault("not FILE NAME" "<!-- snippet: code.cpp -->\n```cpp\n```\n")
expect_fault("not FILE NAME" "<!-- snippet: code.cpp one -->\n\nint b[2];\n")

# ----------------------------------------------------------------------------------------- the tree

file(GLOB_RECURSE pages RELATIVE ${ROOT} ${ROOT}/docs/*.md)
if(EXISTS ${ROOT}/README.md)
  list(APPEND pages README.md)
endif()
set(all_faults)
set(total 0)
foreach(page IN LISTS pages)
  check_page(${ROOT} ${page} faults count)
  string(APPEND all_faults "${faults}")
  math(EXPR total "${total} + ${count}")
endforeach()
if(all_faults)
  message(FATAL_ERROR "${all_faults}")
endif()
message(STATUS "${total} snippets")
