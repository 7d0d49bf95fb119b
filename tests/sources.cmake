# Every source is listed by a test, in the comment that its first line begins: "// Tests: graph/ir/op.cpp, ...".
add_test(NAME sources/each_has_a_test
         COMMAND "${CMAKE_COMMAND}" "-DROOT=${PROJECT_SOURCE_DIR}" -P "${CMAKE_CURRENT_SOURCE_DIR}/check_sources.cmake")
set_tests_properties(sources/each_has_a_test PROPERTIES LABELS sources TIMEOUT 60)
