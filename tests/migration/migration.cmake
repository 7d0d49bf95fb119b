# A removed spelling does not compile, and the message names the new one (strategies/trace/removed_spellings.h).
set(target test_removed_spellings)
add_library(${target} OBJECT EXCLUDE_FROM_ALL "${CMAKE_CURRENT_SOURCE_DIR}/migration/removed_spellings.cpp")
lockstep_flags(${target})
target_link_libraries(${target} PRIVATE lockstep::lockstep)
add_test(NAME migration/removed_spellings
         COMMAND "${CMAKE_COMMAND}" "-DBUILD=${PROJECT_BINARY_DIR}" "-DTARGET=${target}"
                 -P "${CMAKE_CURRENT_SOURCE_DIR}/migration/check_messages.cmake")
set_tests_properties(migration/removed_spellings PROPERTIES LABELS migration TIMEOUT 120 RESOURCE_LOCK build_tree)

# So does an include path that moved (cmake/LockstepMoved.cmake).
set(target test_moved_header)
add_library(${target} OBJECT EXCLUDE_FROM_ALL "${CMAKE_CURRENT_SOURCE_DIR}/migration/moved_header.cpp")
lockstep_flags(${target})
target_link_libraries(${target} PRIVATE lockstep::lockstep)
add_test(NAME migration/moved_header COMMAND "${CMAKE_COMMAND}" --build "${PROJECT_BINARY_DIR}" --target ${target})
set_tests_properties(migration/moved_header PROPERTIES LABELS migration TIMEOUT 120 RESOURCE_LOCK build_tree
  PASS_REGULAR_EXPRESSION "lockstep/graph/pass.h has moved: include lockstep/graph/transform/pass.h")
