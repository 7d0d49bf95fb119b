# The package proved from outside: a project of its own consumes Lockstep installed, and as a subdirectory.
set(scratch "${CMAKE_CURRENT_BINARY_DIR}/install")
set(prefix "${scratch}/prefix")

# Compilers, flags and search paths of this build, handed on so that the consumer finds the same dependencies.
set(settings "${scratch}/settings.cmake")
set(setting_lines "")
foreach(variable IN ITEMS CMAKE_CXX_COMPILER CMAKE_CXX_COMPILER_LAUNCHER CMAKE_TOOLCHAIN_FILE VCPKG_TARGET_TRIPLET
                          VCPKG_INSTALLED_DIR)
  if(${variable})
    string(APPEND setting_lines "set(${variable} [[${${variable}}]] CACHE STRING \"\")\n")
  endif()
endforeach()
file(CONFIGURE OUTPUT "${settings}" CONTENT "${setting_lines}" @ONLY)

# add_consumer_test(<name> [<ctest option>...]): configures the consumer, builds it, and runs it.
function(add_consumer_test name)
  add_test(NAME install/${name}
           COMMAND "${CMAKE_CTEST_COMMAND}"
                   --build-and-test "${CMAKE_CURRENT_SOURCE_DIR}/install" "${scratch}/${name}"
                   --build-generator "${CMAKE_GENERATOR}" --build-noclean --build-options -C "${settings}" ${ARGN}
                   --test-command consumer)
  # As a subdirectory all of Lockstep is compiled: minutes, if no compiler cache has it.
  set_tests_properties(install/${name} PROPERTIES LABELS install TIMEOUT 1800)
endfunction()

# From an empty prefix: a header that is no longer installed must not be found there.
add_test(NAME install/clean COMMAND "${CMAKE_COMMAND}" -E rm -rf "${prefix}")
set_tests_properties(install/clean PROPERTIES LABELS install TIMEOUT 60 FIXTURES_SETUP empty_prefix)
add_test(NAME install/install
         COMMAND "${CMAKE_COMMAND}" --install "${PROJECT_BINARY_DIR}" --prefix "${prefix}")
set_tests_properties(install/install PROPERTIES
                     LABELS install TIMEOUT 120 RESOURCE_LOCK build_tree FIXTURES_REQUIRED empty_prefix
                     FIXTURES_SETUP installed_package)

# Nothing tells this consumer where Taskflow and oneTBB lie: the package has to know.
add_consumer_test(find_package "-DCMAKE_PREFIX_PATH=${prefix}")
set_tests_properties(install/find_package PROPERTIES
                     FIXTURES_REQUIRED installed_package FIXTURES_SETUP consumer_plugin)

# The manual comes with it, with its pictures.
set(manual "${prefix}/${CMAKE_INSTALL_DOCDIR}")
add_test(NAME install/manual
         COMMAND "${CMAKE_COMMAND}" -E cat "${manual}/cli.md" "${manual}/seeing_graphs.md" "${manual}/pictures/linear.svg"
                 "${manual}/README.md" "${manual}/LICENSE")
set_tests_properties(install/manual PROPERTIES LABELS install TIMEOUT 60 FIXTURES_REQUIRED installed_package)

# The installed command loads what the consumer built for it.
if(LOCKSTEP_TOOLS)
  add_test(NAME install/plugin
           COMMAND "${prefix}/${CMAKE_INSTALL_BINDIR}/lockstep" run "${CMAKE_CURRENT_SOURCE_DIR}/install/plugin.lks"
                   --load "${scratch}/find_package/consumer_plugin.so" --feed "x=f32[2]{1.0, -2.0}")
  set_tests_properties(install/plugin PROPERTIES
                       LABELS install TIMEOUT 60 FIXTURES_REQUIRED "installed_package;consumer_plugin"
                       PASS_REGULAR_EXPRESSION "y: f32\\[2\\] {3, -6}")
endif()

# Lockstep is compiled once more for this one, as cheaply as can be: whether it builds and links is the question. Without CUDA, which
# the installed one has where there is a compiler for it.
add_consumer_test(add_subdirectory "-DLOCKSTEP_SOURCE_DIR=${PROJECT_SOURCE_DIR}"
                  "-DCMAKE_PREFIX_PATH=${CMAKE_PREFIX_PATH}" "-DBUILD_SHARED_LIBS=${BUILD_SHARED_LIBS}"
                  -DLOCKSTEP_CUDA=OFF -DCMAKE_CXX_FLAGS=-O0 -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=24)

# Another version of Taskflow comes first on the path of this consumer: a static Lockstep refuses it with the reason,
# a shared one takes it.
file(CONFIGURE OUTPUT "${scratch}/other_taskflow/TaskflowConfig.cmake"
     CONTENT "add_library(Taskflow::Taskflow INTERFACE IMPORTED)\n" @ONLY)
file(CONFIGURE OUTPUT "${scratch}/other_taskflow/TaskflowConfigVersion.cmake"
     CONTENT "set(PACKAGE_VERSION 99.1.2)\n" @ONLY)
add_test(NAME install/other_taskflow
         COMMAND "${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_SOURCE_DIR}/install" -B "${scratch}/other_taskflow/build"
                 --fresh -G "${CMAKE_GENERATOR}" -C "${settings}" "-DCMAKE_PREFIX_PATH=${prefix}"
                 "-DTaskflow_DIR=${scratch}/other_taskflow")
set_tests_properties(install/other_taskflow PROPERTIES
                     LABELS install TIMEOUT 120 FIXTURES_REQUIRED installed_package)
if(BUILD_SHARED_LIBS)
  set_tests_properties(install/other_taskflow PROPERTIES PASS_REGULAR_EXPRESSION "Build files have been written")
else()
  set_tests_properties(install/other_taskflow PROPERTIES
                       PASS_REGULAR_EXPRESSION "built with[ \n]+Taskflow[ \n]+${Taskflow_VERSION},[ \n]+but[ \n]+Taskflow[ \n]+'99.1.2'")
endif()
