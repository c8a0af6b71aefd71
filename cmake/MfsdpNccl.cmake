# mfsdp::nccl where there is NCCL, for this project and for those who ask find_package for the
# component nccl. Needs mfsdp::cuda.

# In a function, so that the caller's CMAKE_MODULE_PATH stays as it is. NCCL can be told by its
# configuration not to block since 2.14.
function(mfsdp_find_nccl folder)
  if(TARGET NCCL::NCCL)
    return()
  endif()
  list(PREPEND CMAKE_MODULE_PATH ${folder})
  find_package(NCCL 2.14 QUIET)
endfunction()

mfsdp_find_nccl(${CMAKE_CURRENT_LIST_DIR})
if(TARGET NCCL::NCCL AND NOT TARGET mfsdp::nccl)
  add_library(mfsdp_nccl INTERFACE IMPORTED GLOBAL)
  add_library(mfsdp::nccl ALIAS mfsdp_nccl)
  target_link_libraries(mfsdp_nccl INTERFACE mfsdp::cuda NCCL::NCCL)
endif()
