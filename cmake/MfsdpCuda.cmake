# mfsdp::cuda, for this project and for those who ask find_package for the component cuda.
add_library(mfsdp_cuda INTERFACE IMPORTED GLOBAL)
add_library(mfsdp::cuda ALIAS mfsdp_cuda)
target_link_libraries(mfsdp_cuda INTERFACE mfsdp::mfsdp CUDA::cudart CUDA::cublasLt)

# mfsdp_cuda_kernels(<target>)
#
# Links a target with mfsdp::cuda and compiles the kernels for it: one file of two lines in the build
# folder, by nvcc, for CMAKE_CUDA_ARCHITECTURES. All other files of the target are left to the host
# compiler. Once for each executable, or for the one shared library that uses the backend. A macro,
# since the language CUDA is enabled in the caller's folder.
macro(mfsdp_cuda_kernels target)
  if(NOT DEFINED CMAKE_CUDA_COMPILER AND CUDAToolkit_NVCC_EXECUTABLE)
    set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
  endif()
  enable_language(CUDA)
  mfsdp_add_cuda_kernels(${target})
endmacro()

# The file is a library of its own, so that options of the target that nvcc does not know do no harm.
function(mfsdp_add_cuda_kernels target)
  set(file ${CMAKE_CURRENT_BINARY_DIR}/${target}_kernels.cu)
  file(CONFIGURE OUTPUT ${file}
       CONTENT "#include <lordo/cuda/instantiate.cuh>\n#include <mfsdp/cuda/instantiate.cuh>\n")
  add_library(${target}_kernels OBJECT ${file})
  target_link_libraries(${target}_kernels PRIVATE mfsdp::cuda)
  # CMake 3.25 does not know C++20 of nvcc.
  set_property(TARGET ${target}_kernels PROPERTY CUDA_STANDARD)
  target_compile_options(${target}_kernels PRIVATE -std=c++20 --expt-relaxed-constexpr)
  target_compile_definitions(${target}_kernels
                             PRIVATE $<TARGET_PROPERTY:${target},COMPILE_DEFINITIONS>)
  set_target_properties(${target}_kernels PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_kernels>)
  target_link_libraries(${target} PRIVATE mfsdp::cuda)
endfunction()
