# Finds what Lockstep is built with; the same calls serve system packages and vcpkg (docs/dependencies.md).

# Imported targets become visible to a project that adds this one as a subdirectory: it links them in the end.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)

find_package(Threads REQUIRED)
find_package(Taskflow REQUIRED CONFIG)  # without a version: its package accepts no other minor version than asked for
if(Taskflow_VERSION VERSION_LESS 3.9)
  message(FATAL_ERROR "Lockstep needs Taskflow 3.9 or later; found ${Taskflow_VERSION} in ${Taskflow_DIR}")
endif()
find_package(TBB REQUIRED CONFIG COMPONENTS tbb tbbmalloc)
find_package(cereal REQUIRED CONFIG)
find_package(hwy REQUIRED CONFIG)  # Highway
find_package(ZLIB REQUIRED)
if(LOCKSTEP_TOOLS)
  find_package(CLI11 REQUIRED CONFIG)
endif()

# OpenBLAS where nobody asked for another one. Its functions are declared where they are used: no header is needed.
if(NOT BLA_VENDOR)
  set(BLA_VENDOR OpenBLAS)
endif()
find_package(BLAS REQUIRED)
