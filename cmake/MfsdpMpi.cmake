# mfsdp::mpi, for this project and for those who ask find_package for the component mpi.
add_library(mfsdp_mpi INTERFACE IMPORTED GLOBAL)
add_library(mfsdp::mpi ALIAS mfsdp_mpi)
target_link_libraries(mfsdp_mpi INTERFACE mfsdp::mfsdp MPI::MPI_CXX)
# Without the C++ bindings, which MPI has dropped.
target_compile_definitions(mfsdp_mpi INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
