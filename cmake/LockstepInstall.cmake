# The installed package: headers, libraries, what find_package(lockstep) needs, and the manual.
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/lockstep")
set(installed ${LOCKSTEP_COMPONENTS})
if(TARGET lockstep_testing)
  list(APPEND installed testing)
endif()
foreach(component IN LISTS installed)
  get_target_property(headers lockstep_${component} LOCKSTEP_HEADERS)
  foreach(header IN LISTS headers)
    cmake_path(GET header PARENT_PATH subfolder)
    install(FILES "${component}/${header}"
            DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/lockstep/${component}/${subfolder}")
  endforeach()
  install(TARGETS lockstep_${component} EXPORT lockstep)
endforeach()
install(TARGETS lockstep_lockstep EXPORT lockstep)
if(TARGET lockstep_shared)
  install(TARGETS lockstep_shared EXPORT lockstep)
endif()
install(FILES "${PROJECT_BINARY_DIR}/include/lockstep/lockstep/lockstep.h"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/lockstep")
install(EXPORT lockstep NAMESPACE lockstep:: DESTINATION "${package_dir}" FILE lockstepTargets.cmake)

# Where Taskflow, oneTBB, Highway and Gloo lay during the build is remembered as the last place to look; vcpkg moves its trees, and
# needs none.
set(LOCKSTEP_TASKFLOW_VERSION "${Taskflow_VERSION}")
foreach(package IN ITEMS Taskflow TBB hwy Gloo)
  string(TOUPPER ${package} upper)
  set(LOCKSTEP_${upper}_PATHS "")
  if(NOT DEFINED VCPKG_TARGET_TRIPLET)
    set(LOCKSTEP_${upper}_PATHS "PATHS \"${${package}_DIR}\"")
  endif()
endforeach()
configure_package_config_file(cmake/lockstepConfig.cmake.in "${PROJECT_BINARY_DIR}/lockstepConfig.cmake"
                              INSTALL_DESTINATION "${package_dir}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/lockstepConfig.cmake" "${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake"
        DESTINATION "${package_dir}")

# The manual, as it lies in the tree: its pages name each other and their pictures.
install(DIRECTORY docs/ DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(FILES README.md LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}")
