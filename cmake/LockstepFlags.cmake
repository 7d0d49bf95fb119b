# Compiler flags of Lockstep's own targets. Nothing here reaches a consumer.

set(lockstep_warnings -Wall -Wextra -Wpedantic -Wshadow -Wconversion)
if(LOCKSTEP_WERROR)
  list(APPEND lockstep_warnings -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  if(CMAKE_UNITY_BUILD)
    list(APPEND lockstep_warnings -Wno-subobject-linkage)  # in a unity build every source counts as a header
  endif()
  # g++ merges functions with equal code and then warns as if each were called with the other's types (-Warray-bounds
  # in instances of one template); without the merging it has nothing to warn about.
  list(APPEND lockstep_warnings -fno-ipa-icf)
  if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    list(APPEND lockstep_warnings -Wno-restrict)  # g++ 12 gives it for any "text" + std::string it inlines
  else()
    # g++ 13 gives it for any function that takes a temporary and returns a reference, whatever the reference is to.
    list(APPEND lockstep_warnings -Wno-dangling-reference)
  endif()
endif()

set(lockstep_sanitizer)
if(LOCKSTEP_SANITIZE STREQUAL "address")
  set(lockstep_sanitizer -fsanitize=address,undefined -fno-sanitize-recover=all)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    list(APPEND lockstep_sanitizer "-fsanitize-ignorelist=${PROJECT_SOURCE_DIR}/cmake/sanitizer_ignore.txt")
  endif()
elseif(LOCKSTEP_SANITIZE STREQUAL "thread")
  set(lockstep_sanitizer -fsanitize=thread)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND lockstep_warnings -Wno-tsan)  # Taskflow uses fences, which g++'s thread sanitizer does not model
  endif()
elseif(LOCKSTEP_SANITIZE)
  message(FATAL_ERROR "LOCKSTEP_SANITIZE is '${LOCKSTEP_SANITIZE}'; it can be empty, 'address' or 'thread'")
endif()

# C++20, warnings and sanitizers for one target of this project.
function(lockstep_flags target)
  target_compile_features(${target} PRIVATE cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  # Messages about bugs of our own name the file below the project, not below the builder's home.
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${lockstep_warnings};-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>")
  if(lockstep_sanitizer)
    target_compile_options(${target} PRIVATE ${lockstep_sanitizer} -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE ${lockstep_sanitizer})
  endif()
endfunction()
