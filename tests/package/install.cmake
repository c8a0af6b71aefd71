# Installs into one place and moves the result to PREFIX: a package must not remember its prefix.
file(REMOVE_RECURSE ${PREFIX} ${PREFIX}.installed)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${PREFIX}.installed
                COMMAND_ERROR_IS_FATAL ANY)
file(RENAME ${PREFIX}.installed ${PREFIX})
