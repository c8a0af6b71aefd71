# mfsdp_add_header_tests(<target>)
#
# Compiles each header as the first line of a file, so that it must bring everything it needs, and
# all of them below macros that C and POSIX headers are known to define. Every file includes its
# headers twice, and all objects are linked into one program, so that a missing include guard or
# `inline` shows. (VERIFY_INTERFACE_HEADER_SETS does only the first.)
function(mfsdp_add_header_tests target)
  set(macros "#define I 1\n#define B0 0\n#define small char\n")
  string(APPEND macros "#define min(a, b) ((a) < (b) ? (a) : (b))\n")
  string(APPEND macros "#define max(a, b) ((a) > (b) ? (a) : (b))\n")

  set(sources)
  set(includes)
  get_target_property(headers ${target} HEADER_SET)
  get_target_property(base ${target} HEADER_DIRS)
  if(NOT TARGET mfsdp::mpi)
    list(FILTER headers EXCLUDE REGEX "/collective/mpi\\.hpp$")
  endif()
  if(NOT TARGET mfsdp::checkpoint)
    list(FILTER headers EXCLUDE REGEX "/mfsdp/checkpoint(\\.hpp|/[a-z0-9_]+\\.hpp)$")
  endif()
  list(FILTER headers EXCLUDE REGEX "\\.cuh$") # tests/policy/device_headers.cmake has those
  if(NOT TARGET mfsdp::cuda)
    list(FILTER headers EXCLUDE REGEX "/mfsdp/(cuda/|backend/cuda\\.hpp$|collective/rank_order_terms\\.hpp$)")
  endif()
  if(NOT TARGET mfsdp::nccl)
    list(FILTER headers EXCLUDE REGEX "/collective/nccl[a-z_]*\\.hpp$")
  endif()
  foreach(header IN LISTS headers)
    cmake_path(RELATIVE_PATH header BASE_DIRECTORY ${base})
    set(include "#include \"${header}\"\n")
    set(alone ${CMAKE_CURRENT_BINARY_DIR}/headers/${header}.cpp)
    file(CONFIGURE OUTPUT ${alone} CONTENT "${include}${include}")
    list(APPEND sources ${alone})
    string(APPEND includes ${include}${include})
  endforeach()
  set(hostile ${CMAKE_CURRENT_BINARY_DIR}/headers/macros.cpp)
  file(CONFIGURE OUTPUT ${hostile} CONTENT "${macros}${includes}")
  set(main ${CMAKE_CURRENT_BINARY_DIR}/headers/main.cpp)
  file(CONFIGURE OUTPUT ${main} CONTENT "int main() {}\n")

  add_executable(${target}_headers ${main} ${hostile} ${sources})
  target_link_libraries(${target}_headers PRIVATE mfsdp_development $<TARGET_NAME_IF_EXISTS:mfsdp::mpi>
                                                  $<TARGET_NAME_IF_EXISTS:mfsdp::checkpoint>
                                                  $<TARGET_NAME_IF_EXISTS:mfsdp::cuda>
                                                  $<TARGET_NAME_IF_EXISTS:mfsdp::nccl>)
  target_compile_options(${target}_headers PRIVATE -O0)
  add_test(NAME policy.headers COMMAND ${target}_headers)
  set_tests_properties(policy.headers PROPERTIES LABELS policy)
endfunction()
