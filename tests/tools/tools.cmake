# The lockstep command from outside: a test program that starts it, and plugins for it to load or refuse.
file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/*.cpp")
# With the parts of the command that a test looks at by themselves.
add_executable(test_tools ${sources} "${PROJECT_SOURCE_DIR}/tools/progress.cpp" "${PROJECT_SOURCE_DIR}/tools/terminal.cpp")
target_include_directories(test_tools PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/tools")
lockstep_test_flags(test_tools tools)
add_dependencies(test_tools lockstep_tool)
target_compile_definitions(test_tools PRIVATE
  LOCKSTEP_TOOL="$<TARGET_FILE:lockstep_tool>"
  LOCKSTEP_PLUGIN_DIR="${CMAKE_CURRENT_BINARY_DIR}/plugins"
  LOCKSTEP_DOCS_DIR="${PROJECT_SOURCE_DIR}/docs"
  LOCKSTEP_SHELLS_DIR="${CMAKE_CURRENT_LIST_DIR}/shells")

function(add_test_plugin name source)
  add_library(test_plugin_${name} MODULE "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/plugins/${source}")
  lockstep_flags(test_plugin_${name})
  target_compile_definitions(test_plugin_${name} PRIVATE ${ARGN})
  set_target_properties(test_plugin_${name} PROPERTIES
    PREFIX "" OUTPUT_NAME ${name} LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/plugins")
  add_dependencies(test_tools test_plugin_${name})
endfunction()
add_test_plugin(good good.cpp)
add_test_plugin(failing failing.cpp)
target_link_libraries(test_plugin_good PRIVATE lockstep::shared)
target_link_libraries(test_plugin_failing PRIVATE lockstep::shared)
add_test_plugin(no_entry refused.cpp LOCKSTEP_REFUSED_NO_ENTRY)
add_test_plugin(other_format refused.cpp LOCKSTEP_REFUSED_FORMAT)
add_test_plugin(other_build refused.cpp LOCKSTEP_REFUSED_BUILD)
add_test_plugin(other_registry refused.cpp
                "LOCKSTEP_REFUSED_REGISTRY=\"Lockstep ${PROJECT_VERSION} with libstdc++\"")

if(LOCKSTEP_SANITIZE STREQUAL "address")
  add_test(NAME tools/all COMMAND test_tools --gtest_brief=1)
  set_tests_properties(tools/all PROPERTIES LABELS tools TIMEOUT 600)
else()
  gtest_discover_tests(test_tools TEST_PREFIX tools/ DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                       PROPERTIES LABELS tools TIMEOUT 60)
endif()
