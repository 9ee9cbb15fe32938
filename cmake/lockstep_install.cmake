# cmake --install, and the package that find_package(lockstep CONFIG) reads.
include(CMakePackageConfigHelpers)
get_property(_layers GLOBAL PROPERTY LOCKSTEP_LAYERS)
add_library(lockstep INTERFACE)
target_link_libraries(lockstep INTERFACE ${_layers})
add_library(lockstep::lockstep ALIAS lockstep)

install(TARGETS lockstep ${_layers} EXPORT lockstep_targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT lockstep_targets NAMESPACE lockstep:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
install(DIRECTORY src/lockstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES cmake/FindLockstepTorch.cmake cmake/FindLockstepNccl.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
configure_package_config_file(cmake/lockstep-config.cmake.in ${CMAKE_BINARY_DIR}/lockstep-config.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/lockstep-config-version.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_BINARY_DIR}/lockstep-config.cmake ${CMAKE_BINARY_DIR}/lockstep-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
