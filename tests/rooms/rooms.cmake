# An include that points up does not compile: not from one component to a higher one, and not from one room to a higher one.
# Each source below is compiled with what the sources of its room see. The ones that point up must be refused, for want of
# that header and for nothing else; the one that points down shows that the rest of their text is right.

# add_room_test(<name> <room's target> <header>): <header> must not be found, or must be if it is not named.
function(add_room_test name room)
  set(target test_rooms_${name})
  add_library(${target} OBJECT EXCLUDE_FROM_ALL "${CMAKE_CURRENT_SOURCE_DIR}/rooms/${name}.cpp")
  lockstep_flags(${target})
  target_include_directories(${target} PRIVATE $<TARGET_PROPERTY:${room},INCLUDE_DIRECTORIES>)
  target_link_libraries(${target} PRIVATE $<TARGET_PROPERTY:${room},LINK_LIBRARIES>)
  add_test(NAME rooms/${name} COMMAND "${CMAKE_COMMAND}" --build "${PROJECT_BINARY_DIR}" --target ${target})
  set_tests_properties(rooms/${name} PROPERTIES LABELS rooms TIMEOUT 120 RESOURCE_LOCK build_tree)
  foreach(header IN LISTS ARGN)
    set_tests_properties(rooms/${name} PROPERTIES PASS_REGULAR_EXPRESSION
                         "${header}: No such file or directory|'${header}' file not found")
  endforeach()
endfunction()

add_room_test(down lockstep_graph_text)
add_room_test(up_a_room lockstep_graph_text lockstep/graph/run/program.h)
add_room_test(up_a_room_internal lockstep_graph_text lockstep/graph/run/internal/plan.h)
add_room_test(up_a_component lockstep_graph_run lockstep/strategies/strategy.h)
add_room_test(into_another_component lockstep_graph_run lockstep/core/communicators/internal/in_process_room.h)
