# Each source file here is a libFuzzer target, run for a bounded time over a small corpus; clang with the address
# sanitizer only. What it finds new in a run stays in the build tree; an input that breaks something belongs into the
# corpus, with the fix.
file(GLOB fuzz_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/*.cpp")
get_target_property(internal_root lockstep_io LOCKSTEP_INTERNAL_ROOT)
foreach(source IN LISTS fuzz_sources)
  cmake_path(GET source STEM target)
  add_executable(fuzz_${target} "${source}")
  lockstep_flags(fuzz_${target})
  target_link_libraries(fuzz_${target} PRIVATE lockstep::lockstep)
  target_include_directories(fuzz_${target} PRIVATE "${CMAKE_CURRENT_LIST_DIR}/.." "${internal_root}")
  target_compile_options(fuzz_${target} PRIVATE -fsanitize=fuzzer)
  target_link_options(fuzz_${target} PRIVATE -fsanitize=fuzzer)
  set(found "${CMAKE_CURRENT_BINARY_DIR}/fuzz/${target}")
  file(MAKE_DIRECTORY "${found}")
  set(dictionary "${CMAKE_CURRENT_LIST_DIR}/${target}.dict")
  if(EXISTS "${dictionary}")
    set(dictionary "-dict=${dictionary}")
  else()
    set(dictionary "")
  endif()
  # Leaks are looked for in the other tests: at the end of a process that takes seconds on 64-bit Arm.
  add_test(NAME fuzz/${target}
    COMMAND fuzz_${target} -max_total_time=10 -timeout=20 -rss_limit_mb=2048 -max_len=4096 -detect_leaks=0
            -print_final_stats=1 ${dictionary} "-artifact_prefix=${found}/found-" "${found}"
            "${CMAKE_CURRENT_LIST_DIR}/corpus/${target}")
  set_tests_properties(fuzz/${target} PROPERTIES LABELS fuzz TIMEOUT 120 ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0")
endforeach()

# What the targets explore counts its branches for them.
get_target_property(explored lockstep_io LOCKSTEP_ROOMS)
foreach(room IN LISTS explored ITEMS lockstep_graph_text)
  target_compile_options(${room} PRIVATE -fsanitize=fuzzer-no-link)
endforeach()
