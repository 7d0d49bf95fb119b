# Every source is listed by a test, in the comment that its first line begins: "// Tests: graph/ir/op.cpp, ...".
add_test(NAME sources/each_has_a_test
         COMMAND "${CMAKE_COMMAND}" "-DROOT=${PROJECT_SOURCE_DIR}" -P "${CMAKE_CURRENT_SOURCE_DIR}/check_sources.cmake")
set_tests_properties(sources/each_has_a_test PROPERTIES LABELS sources TIMEOUT 60)
# What lies below a folder internal/ is declared in lockstep::internal: no such name can be taken for a public one.
add_test(NAME sources/internal_names_are_internal
         COMMAND "${CMAKE_COMMAND}" "-DROOT=${PROJECT_SOURCE_DIR}" -P "${CMAKE_CURRENT_SOURCE_DIR}/check_internal.cmake")
set_tests_properties(sources/internal_names_are_internal PROPERTIES LABELS sources TIMEOUT 60)
