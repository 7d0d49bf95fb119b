# Every public header compiles alone: one generated source file per header, which includes nothing else.
set(sources)
set(headers lockstep/lockstep.h)
foreach(component IN LISTS LOCKSTEP_COMPONENTS)
  get_target_property(component_headers lockstep_${component} LOCKSTEP_HEADERS)
  list(TRANSFORM component_headers PREPEND lockstep/${component}/)
  list(APPEND headers ${component_headers})
endforeach()
foreach(header IN LISTS headers)
  string(REGEX REPLACE "[^a-z0-9_]" "_" stem "${header}")
  set(source "${CMAKE_CURRENT_BINARY_DIR}/headers/${stem}.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "#include \"${header}\"\n" @ONLY)
  list(APPEND sources "${source}")
endforeach()

add_library(test_headers OBJECT ${sources})
lockstep_flags(test_headers)
target_compile_options(test_headers PRIVATE -O0 -g0)  # only whether it compiles matters
target_link_libraries(test_headers PRIVATE lockstep::lockstep Taskflow::Taskflow)

add_test(NAME headers/compile_alone
         COMMAND "${CMAKE_COMMAND}" --build "${PROJECT_BINARY_DIR}" --target test_headers)
set_tests_properties(headers/compile_alone PROPERTIES LABELS headers TIMEOUT 600 RESOURCE_LOCK build_tree)
