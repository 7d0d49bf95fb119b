# A spelling that was removed (strategies/trace/removed_spellings.h) or cannot be meant does not compile, and the message says what is written instead.
foreach(name removed_spellings first_tries)
  set(target test_${name}_refused)
  set(source "${CMAKE_CURRENT_SOURCE_DIR}/migration/${name}.cpp")
  add_library(${target} OBJECT EXCLUDE_FROM_ALL "${source}")
  lockstep_flags(${target})
  target_link_libraries(${target} PRIVATE lockstep::lockstep)
  add_test(NAME migration/${name}
           COMMAND "${CMAKE_COMMAND}" "-DBUILD=${PROJECT_BINARY_DIR}" "-DTARGET=${target}" "-DSOURCE=${source}"
                   -P "${CMAKE_CURRENT_SOURCE_DIR}/migration/check_messages.cmake")
  set_tests_properties(migration/${name} PROPERTIES LABELS migration TIMEOUT 120 RESOURCE_LOCK build_tree)
endforeach()

# So does an include path that moved (cmake/LockstepMoved.cmake).
set(target test_moved_header)
add_library(${target} OBJECT EXCLUDE_FROM_ALL "${CMAKE_CURRENT_SOURCE_DIR}/migration/moved_header.cpp")
lockstep_flags(${target})
target_link_libraries(${target} PRIVATE lockstep::lockstep)
add_test(NAME migration/moved_header COMMAND "${CMAKE_COMMAND}" --build "${PROJECT_BINARY_DIR}" --target ${target})
set_tests_properties(migration/moved_header PROPERTIES LABELS migration TIMEOUT 120 RESOURCE_LOCK build_tree
  PASS_REGULAR_EXPRESSION "lockstep/graph/pass.h has moved: include lockstep/graph/transform/pass.h")
