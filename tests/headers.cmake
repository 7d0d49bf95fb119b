# Every public header compiles alone. One that its own source includes first does so wherever that source is compiled by itself, as
# the `alone` preset has it; for every other a source file is generated that includes nothing else.
set(sources)
set(headers lockstep/lockstep.h)
foreach(component IN LISTS LOCKSTEP_COMPONENTS)
  get_target_property(component_headers lockstep_${component} LOCKSTEP_HEADERS)
  foreach(header IN LISTS component_headers)
    string(REGEX REPLACE "\\.h$" ".cpp" source "${PROJECT_SOURCE_DIR}/${component}/${header}")
    set(first)
    if(EXISTS "${source}")
      file(STRINGS "${source}" first REGEX "^#include" LIMIT_COUNT 1)
    endif()
    if(NOT first STREQUAL "#include \"lockstep/${component}/${header}\"")
      list(APPEND headers lockstep/${component}/${header})
    endif()
  endforeach()
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
