# Compiles each .cuh of include/ by nvcc as the first line of a file, twice, and links the objects into
# one program, so that a missing include, guard or `inline` shows.
#
#   cmake -D NVCC=<file> -D INCLUDE_DIR=<dir> -D SCRATCH_DIR=<dir> -P device_headers.cmake
cmake_minimum_required(VERSION 3.24)

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(failed)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "${command}\n${output}")
  endif()
endfunction()

set(compile ${NVCC} -std=c++20 --expt-relaxed-constexpr -arch=sm_80 -O0 -I${INCLUDE_DIR})
set(objects)
file(GLOB_RECURSE headers RELATIVE ${INCLUDE_DIR} ${INCLUDE_DIR}/*.cuh)
foreach(header IN LISTS headers)
  string(MAKE_C_IDENTIFIER ${header} name)
  file(WRITE ${SCRATCH_DIR}/${name}.cu "#include \"${header}\"\n#include \"${header}\"\n")
  run(${compile} -c ${SCRATCH_DIR}/${name}.cu -o ${SCRATCH_DIR}/${name}.o)
  list(APPEND objects ${SCRATCH_DIR}/${name}.o)
endforeach()
file(WRITE ${SCRATCH_DIR}/main.cu "int main() {}\n")
run(${compile} ${SCRATCH_DIR}/main.cu ${objects} -lfmt -o ${SCRATCH_DIR}/program)
list(LENGTH headers count)
message(STATUS "${count} headers")
