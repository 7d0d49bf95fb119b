# lockstep_moved_headers(TARGET lockstep_lockstep TABLE docs/migration.md): for each row "| `lockstep/old.h` | `lockstep/new.h` |" of
# the table, a header at the old place that names the new one and stops the compiler. The target's users and the package get them.
function(lockstep_moved_headers)
  cmake_parse_arguments(arg "" "TARGET;TABLE" "" ${ARGN})
  set(table "${PROJECT_SOURCE_DIR}/${arg_TABLE}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${table}")
  file(STRINGS "${table}" rows REGEX "^\\| `lockstep/[a-z0-9_/]+\\.h` \\| `lockstep/")
  set(root "${PROJECT_BINARY_DIR}/include/moved")
  foreach(row IN LISTS rows)
    string(REGEX MATCH "`([^`]+)` \\| `([^`]+)`" matched "${row}")
    set(old "${CMAKE_MATCH_1}")
    file(CONFIGURE OUTPUT "${root}/${old}" @ONLY
         CONTENT "#error \"${old} has moved: include ${CMAKE_MATCH_2} (docs/migration.md)\"\n")
  endforeach()
  target_include_directories(${arg_TARGET} INTERFACE "$<BUILD_INTERFACE:${root}>")
  if(LOCKSTEP_INSTALL)
    install(DIRECTORY "${root}/lockstep" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  endif()
endfunction()
