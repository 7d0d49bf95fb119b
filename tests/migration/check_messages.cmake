# cmake -DBUILD=<build tree> -DTARGET=<target> -P check_messages.cmake: builds the target, which must fail with every message
# below as a failed assertion, and with no other error.
cmake_minimum_required(VERSION 3.25)
set(messages
    "is_single_tower[(][)] is compat::is_single_tower[(]strategy[)] now"
    "between_graph[(][)] is compat::between_graph[(]strategy[)] now"
    "should_init[(][)] is compat::should_init[(]strategy[)] now"
    "should_checkpoint[(][)] is compat::should_checkpoint[(]strategy[)] now"
    "should_save_summary[(][)] is compat::should_save_summary[(]strategy[)] now"
    "extended::initialize[(][)] is compat::initialize[(]strategy[)] now"
    "extended::finalize[(][)] is compat::finalize[(]strategy[)] now"
    "extended::value_container[(][)] is compat::value_container[(]value[)] now"
    "experimental_run[(][)] is compat::experimental_run[(]strategy, [.][.][.][)] now")
list(TRANSFORM messages APPEND ": include lockstep/strategies/compat[.]h")
list(APPEND messages
    "NpzLimits is ReadLimits now: include lockstep/core/read_limits[.]h"
    "CheckpointLimits is ReadLimits now: include lockstep/core/read_limits[.]h"
    "GraphFileLimits is ReadLimits now: include lockstep/core/read_limits[.]h"
    "ParseLimits is ReadLimits now: include lockstep/core/read_limits[.]h")

execute_process(COMMAND "${CMAKE_COMMAND}" --build "${BUILD}" --target ${TARGET}
                OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE failed)
if(NOT failed)
  message(FATAL_ERROR "${TARGET} compiled: a removed spelling is accepted")
endif()
# The compilers say "static assertion failed: <message>" (g++) and "static_assert failed due to ... "<message>"" (clang).
set(refused "error: static(_assert| assertion) failed[^\n]*")
set(rest "${output}")
foreach(message IN LISTS messages)
  if(NOT rest MATCHES "${refused}${message}")
    message(FATAL_ERROR "no message says: ${message}\n${output}")
  endif()
  string(REGEX REPLACE "${refused}${message}" "" rest "${rest}")
endforeach()
if(rest MATCHES " error: [^\n]*")
  message(FATAL_ERROR "refused for another reason:${CMAKE_MATCH_0}\n${output}")
endif()
