# Install rules. Nothing here depends on the machine, so the package is the same everywhere and
# works from whatever place it is moved to.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_dir ${CMAKE_INSTALL_DATADIR}/cmake/mfsdp)

install(TARGETS mfsdp EXPORT mfsdp-targets FILE_SET HEADERS)
install(EXPORT mfsdp-targets NAMESPACE mfsdp:: DESTINATION ${package_dir})

configure_package_config_file(cmake/mfsdp-config.cmake.in mfsdp-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(mfsdp-config-version.cmake COMPATIBILITY SameMinorVersion
                                 ARCH_INDEPENDENT)
install(FILES cmake/MfsdpCheckpoint.cmake cmake/MfsdpCuda.cmake cmake/MfsdpMpi.cmake
              cmake/MfsdpNccl.cmake cmake/FindNCCL.cmake
              ${PROJECT_BINARY_DIR}/mfsdp-config.cmake
              ${PROJECT_BINARY_DIR}/mfsdp-config-version.cmake DESTINATION ${package_dir})

configure_file(cmake/mfsdp.pc.in mfsdp.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/mfsdp.pc DESTINATION ${CMAKE_INSTALL_DATADIR}/pkgconfig)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
