# What `cmake --install` puts in place, and the package that find_package(xstage) finds.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

foreach(room model plan schedule sim)
  set_target_properties(xstage_${room} PROPERTIES EXPORT_NAME ${room})
endforeach()
install(TARGETS xstage_model xstage_plan xstage_schedule xstage_sim EXPORT xstageTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/xstage
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
install(FILES ${PROJECT_SOURCE_DIR}/profiles/h200-nv18-x2.json
        DESTINATION ${CMAKE_INSTALL_DATADIR}/xstage/profiles)
if(TARGET xstage)
  install(TARGETS xstage RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/xstage)
install(EXPORT xstageTargets NAMESPACE xstage:: DESTINATION ${package})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/xstageConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/xstageConfig.cmake
                              INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/xstageConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/xstageConfig.cmake
              ${PROJECT_BINARY_DIR}/xstageConfigVersion.cmake DESTINATION ${package})
