# Checks every #include of include/ against the layers, after a test of the check itself.
#
#   cmake -D INCLUDE_DIR=<dir> -D SCRATCH_DIR=<dir> -P layers.cmake
cmake_minimum_required(VERSION 3.24)

# ----------------------------------------------------------------------------------------- the table

# A header includes only lower layers, and its own one where that is allowed: any header in L0, L1
# and L3, the same folder in L2. mfsdp never includes lordo; host headers never include .cuh.
set(layer_0 "mfsdp/(config|version|error|dtype|view|fnv1a)")
set(layer_1 "mfsdp/(spec|layout|kernel|concepts|cost|precision|schedule|workspace|cuda/(context|kernels|launch|memory|products|recorded_step|recorder|runtime))" "lordo/(subspace|concepts|periods)")
set(layer_2 "mfsdp/(backend|collective|placement|optimizer)/[a-z0-9_]+"
            "lordo/projector/[a-z0-9_]+")
set(layer_3 "mfsdp/(plan|plan_layout|plan_text|plan_report|planner|exchange_report|sharded_model|runtime/[a-z0-9_]+)"
            "mfsdp/checkpoint/[a-z0-9_]+"
            "lordo/optimizer/[a-z0-9_]+" "lordo/(diagnostics|wall_clock)")
set(layer_4 "mfsdp/(mfsdp|checkpoint|cuda/instantiate)" "lordo/(lordo|cuda/instantiate)")

# Other libraries, each with the headers that may include it.
set(posix "(fcntl|unistd|sys/file|sys/resource|sys/stat)\\.h")
set(sockets "(fcntl|netdb|poll|sys/socket|unistd)\\.h")
set(third_party "Eigen/" "cublasLt.h" "cuda_runtime_api.h" "fmt/" "immintrin.h" "mpi.h" "nccl.h" "nlohmann/" "${posix}"
                "${sockets}")
set(includers_of_Eigen/ mfsdp/backend/eigen.hpp)
set(includers_of_cublasLt.h mfsdp/cuda/products.hpp)
set(includers_of_cuda_runtime_api.h mfsdp/cuda/runtime.hpp)
set(includers_of_fmt/ mfsdp/error.hpp)
set(includers_of_nlohmann/ mfsdp/checkpoint/json.hpp)
set(includers_of_${posix} mfsdp/checkpoint/file.hpp)
set(includers_of_${sockets} mfsdp/collective/tcp_socket.hpp)
set(includers_of_nccl.h mfsdp/collective/nccl_api.hpp)
set(includers_of_mpi.h mfsdp/collective/mpi.hpp)
set(includers_of_immintrin.h mfsdp/backend/packed_product.hpp)

# ----------------------------------------------------------------------------------------- the check

function(layer_of header result)
  foreach(layer RANGE 4)
    foreach(pattern IN LISTS layer_${layer})
      if(header MATCHES "^${pattern}\\.(hpp|cuh)$")
        set(${result} ${layer} PARENT_SCOPE)
        return()
      endif()
    endforeach()
  endforeach()
  set(${result} "" PARENT_SCOPE)
endfunction()

# What is wrong with `header` including `target`; empty if nothing.
function(why_not header target result)
  set(${result} "" PARENT_SCOPE)
  layer_of(${header} from)
  if(NOT target MATCHES "^(mfsdp|lordo)/")
    if(target MATCHES "^[a-z0-9_]+$") # standard library
      return()
    endif()
    foreach(library IN LISTS third_party)
      if(target MATCHES "^${library}" AND header IN_LIST includers_of_${library})
        return()
      endif()
    endforeach()
    set(${result} "this header may not include another library" PARENT_SCOPE)
    return()
  endif()

  layer_of(${target} to)
  cmake_path(GET header PARENT_PATH header_folder)
  cmake_path(GET target PARENT_PATH target_folder)
  if(to STREQUAL "")
    set(${result} "the target has no layer" PARENT_SCOPE)
  elseif(header MATCHES "^mfsdp/" AND target MATCHES "^lordo/")
    set(${result} "mfsdp does not know lordo" PARENT_SCOPE)
  elseif(header MATCHES "\\.hpp$" AND target MATCHES "\\.cuh$")
    set(${result} "host code does not include device code" PARENT_SCOPE)
  elseif(to GREATER from)
    set(${result} "layer ${from} includes layer ${to}" PARENT_SCOPE)
  elseif(to EQUAL from AND (from EQUAL 4 OR (from EQUAL 2 AND NOT header_folder STREQUAL target_folder)))
    set(${result} "siblings of layer ${from} do not know each other" PARENT_SCOPE)
  endif()
endfunction()

function(find_breaches root result)
  set(breaches)
  file(GLOB_RECURSE headers RELATIVE ${root} ${root}/*)
  if(NOT headers)
    message(FATAL_ERROR "no headers in ${root}")
  endif()
  foreach(header IN LISTS headers)
    layer_of(${header} layer)
    if(layer STREQUAL "")
      list(APPEND breaches "${header}: not in the table of tests/policy/layers.cmake")
      continue()
    endif()
    file(STRINGS ${root}/${header} lines REGEX "^[ \t]*#[ \t]*include")
    foreach(line IN LISTS lines)
      string(REGEX MATCH "[<\"]([^>\"]+)[>\"]" target "${line}")
      set(target ${CMAKE_MATCH_1})
      why_not(${header} ${target} reason)
      if(reason)
        list(APPEND breaches "${header} -> ${target}: ${reason}")
      elseif(EXISTS ${root}/${target})
        list(APPEND includes_of_${header} ${target})
      endif()
    endforeach()
  endforeach()

  # Take away headers that include nothing that is left; what cannot be taken away is in a cycle or
  # includes one.
  set(left ${headers})
  set(before none)
  while(NOT "${left}" STREQUAL "${before}")
    set(before ${left})
    foreach(header IN LISTS before)
      set(closed TRUE)
      foreach(target IN LISTS includes_of_${header})
        if(target IN_LIST left)
          set(closed FALSE)
        endif()
      endforeach()
      if(closed)
        list(REMOVE_ITEM left ${header})
      endif()
    endforeach()
  endwhile()
  if(left)
    list(JOIN left ", " names)
    list(APPEND breaches "include cycle among ${names}")
  endif()
  set(${result} "${breaches}" PARENT_SCOPE)
endfunction()

# --------------------------------------------------------------------------- the test of the check

# A tree with the includes "from -> to" must give one breach that matches `expected`, or none if it
# is empty.
function(expect_breach expected)
  file(REMOVE_RECURSE ${SCRATCH_DIR})
  foreach(edge IN LISTS ARGN)
    string(REGEX MATCH "^(.+) -> (.+)$" edge ${edge})
    set(target ${CMAKE_MATCH_2})
    file(APPEND ${SCRATCH_DIR}/${CMAKE_MATCH_1} "#include \"${target}\"\n")
    if(target MATCHES "^(mfsdp|lordo)/")
      file(APPEND ${SCRATCH_DIR}/${target} "")
    endif()
  endforeach()
  find_breaches(${SCRATCH_DIR} breaches)
  list(LENGTH breaches count)
  if((expected STREQUAL "" AND count GREATER 0)
     OR (NOT expected STREQUAL "" AND NOT (count EQUAL 1 AND breaches MATCHES "${expected}")))
    message(FATAL_ERROR "planted: ${ARGN}\nexpected: ${expected}\nfound: ${breaches}")
  endif()
endfunction()

expect_breach("" "mfsdp/view.hpp -> mfsdp/config.hpp" "mfsdp/backend/eigen.hpp -> Eigen/Core"
              "mfsdp/optimizer/soap.hpp -> mfsdp/optimizer/adamw.hpp" "mfsdp/view.hpp -> vector"
              "lordo/projector/svd.hpp -> mfsdp/concepts.hpp" "mfsdp/error.hpp -> fmt/format.h")
expect_breach("layer 0 includes layer 1" "mfsdp/view.hpp -> mfsdp/layout.hpp")
expect_breach("layer 2 includes layer 3" "mfsdp/placement/owner.hpp -> mfsdp/plan.hpp")
expect_breach("siblings of layer 2" "mfsdp/optimizer/muon.hpp -> mfsdp/backend/eigen.hpp")
expect_breach("mfsdp does not know lordo" "mfsdp/mfsdp.hpp -> lordo/concepts.hpp")
expect_breach("host code" "mfsdp/backend/cuda.hpp -> mfsdp/backend/kernels.cuh")
expect_breach("another library" "mfsdp/optimizer/muon.hpp -> Eigen/Core")
expect_breach("another library" "mfsdp/view.hpp -> unheard/of.hpp")
expect_breach("not in the table" "mfsdp/misc.hpp -> mfsdp/view.hpp")
expect_breach("cycle among mfsdp/plan.hpp, mfsdp/planner.hpp" "mfsdp/plan.hpp -> mfsdp/planner.hpp"
              "mfsdp/planner.hpp -> mfsdp/plan.hpp" "mfsdp/plan.hpp -> mfsdp/view.hpp")

# ----------------------------------------------------------------------------------------- the tree

find_breaches(${INCLUDE_DIR} breaches)
if(breaches)
  list(JOIN breaches "\n  " breaches)
  message(FATAL_ERROR "\n  ${breaches}")
endif()
