# One folder, one target, one include root.
#
#   lockstep_component(NAME graph DEPENDS core LINK TBB::tbb)
#
# makes the target lockstep::graph from every source file below graph/. Its public headers are all *.h below graph/
# that do not lie in a folder named `internal`; they are included as "lockstep/graph/...". The same spelling works in
# the tree and once installed, because each public header gets a one-line forwarding header in the build tree, under a
# root of its own component. A target therefore sees the headers of its dependencies and no others. Internal headers
# are forwarded under a second root, which only the component's own sources and the tests are given.
#
# DEPENDS names components (public), LINK libraries of other projects (private). A component
# without sources is an interface target.

# Makes <root>/<prefix>/... mirror the given files, rewriting only what changed and removing what is gone.
function(lockstep_forward_headers root prefix source_dir)
  set(wanted)
  foreach(header IN LISTS ARGN)
    set(forward "${root}/${prefix}/${header}")
    list(APPEND wanted "${forward}")
    # Relative, so that the text is the same wherever the tree lies: compiler caches compare it.
    cmake_path(GET forward PARENT_PATH forward_dir)
    file(RELATIVE_PATH target "${forward_dir}" "${source_dir}/${header}")
    file(CONFIGURE OUTPUT "${forward}" CONTENT "#include \"${target}\"\n" @ONLY)
  endforeach()
  file(GLOB_RECURSE stale "${root}/*.h")
  if(wanted)
    list(REMOVE_ITEM stale ${wanted})
  endif()
  if(stale)
    file(REMOVE ${stale})
  endif()
endfunction()

function(lockstep_component)
  cmake_parse_arguments(arg "" "NAME" "DEPENDS;LINK" ${ARGN})
  set(folder "${PROJECT_SOURCE_DIR}/${arg_NAME}")
  set(target lockstep_${arg_NAME})
  set(root "${PROJECT_BINARY_DIR}/include/${arg_NAME}")
  set(internal_root "${PROJECT_BINARY_DIR}/include-internal/${arg_NAME}")

  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${folder}/*.cpp")
  file(GLOB_RECURSE headers RELATIVE "${folder}" CONFIGURE_DEPENDS "${folder}/*.h")
  set(internal_headers ${headers})
  list(FILTER internal_headers INCLUDE REGEX "(^|/)internal/")
  list(FILTER headers EXCLUDE REGEX "(^|/)internal/")
  lockstep_forward_headers("${root}" lockstep/${arg_NAME} "${folder}" ${headers})
  lockstep_forward_headers("${internal_root}" lockstep/${arg_NAME} "${folder}" ${internal_headers})

  list(TRANSFORM arg_DEPENDS PREPEND lockstep_)
  if(sources)
    set(scope PUBLIC)
    add_library(${target} ${sources})
    lockstep_flags(${target})
    target_compile_options(${target} PRIVATE -ffp-contract=off)  # results must not depend on the compiler's fusing
    target_link_libraries(${target} PRIVATE ${arg_LINK})
    target_include_directories(${target} PRIVATE "${internal_root}")
    if(BUILD_SHARED_LIBS AND NOT APPLE)
      set(exports "${PROJECT_SOURCE_DIR}/cmake/exports.map")
      target_link_options(${target} PRIVATE "LINKER:--version-script=${exports}")
      set_target_properties(${target} PROPERTIES LINK_DEPENDS "${exports}")
    endif()
    set_target_properties(${target} PROPERTIES
      CXX_VISIBILITY_PRESET hidden
      VISIBILITY_INLINES_HIDDEN ON
      POSITION_INDEPENDENT_CODE ON  # so that a static Lockstep can be linked into a plug-in
      INSTALL_RPATH "$ORIGIN"       # installed shared components find each other
      VERSION ${PROJECT_VERSION}
      SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  else()
    set(scope INTERFACE)
    add_library(${target} INTERFACE)
  endif()
  add_library(lockstep::${arg_NAME} ALIAS ${target})
  target_compile_features(${target} ${scope} cxx_std_20)
  target_link_libraries(${target} ${scope} ${arg_DEPENDS})
  target_include_directories(${target} ${scope} "$<BUILD_INTERFACE:${root}>"
                             "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${arg_NAME}
    LOCKSTEP_HEADERS "${headers}"
    LOCKSTEP_LINK "${arg_LINK}"
    LOCKSTEP_INTERNAL_ROOT "${internal_root}")
endfunction()

# lockstep_umbrella(COMPONENTS core graph EXCEPT core/x.h): lockstep::lockstep, every component at once, with the
# generated header "lockstep/lockstep.h" that includes every public header but those after EXCEPT.
function(lockstep_umbrella)
  cmake_parse_arguments(arg "" "" "COMPONENTS;EXCEPT" ${ARGN})
  set(LOCKSTEP_UMBRELLA_INCLUDES "")
  foreach(component IN LISTS arg_COMPONENTS)
    get_target_property(headers lockstep_${component} LOCKSTEP_HEADERS)
    foreach(header IN LISTS headers)
      if(NOT "${component}/${header}" IN_LIST arg_EXCEPT)
        string(APPEND LOCKSTEP_UMBRELLA_INCLUDES "#include \"lockstep/${component}/${header}\"\n")
      endif()
    endforeach()
  endforeach()
  set(root "${PROJECT_BINARY_DIR}/include/lockstep")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/lockstep.h.in" "${root}/lockstep/lockstep.h" @ONLY)

  add_library(lockstep_lockstep INTERFACE)
  add_library(lockstep::lockstep ALIAS lockstep_lockstep)
  list(TRANSFORM arg_COMPONENTS PREPEND lockstep_ OUTPUT_VARIABLE targets)
  target_link_libraries(lockstep_lockstep INTERFACE ${targets})
  target_include_directories(lockstep_lockstep INTERFACE "$<BUILD_INTERFACE:${root}>"
                             "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  set_target_properties(lockstep_lockstep PROPERTIES EXPORT_NAME lockstep)
  set(LOCKSTEP_COMPONENTS ${arg_COMPONENTS} PARENT_SCOPE)
endfunction()

# lockstep_shared(COMPONENTS core graph): lockstep::shared, the objects of all components in one shared library. Programs that
# load plugins link it, and so do the plugins: all of them then have one registry (docs/decisions/0010-one-shared-library.md).
# With BUILD_SHARED_LIBS the components are shared already, and it is another name for all of them.
function(lockstep_shared)
  cmake_parse_arguments(arg "" "" "COMPONENTS" ${ARGN})
  if(BUILD_SHARED_LIBS)
    add_library(lockstep_shared INTERFACE)
    target_link_libraries(lockstep_shared INTERFACE lockstep_lockstep)
  else()
    add_library(lockstep_shared SHARED)
    lockstep_flags(lockstep_shared)
    foreach(component IN LISTS arg_COMPONENTS)
      set(target lockstep_${component})
      get_target_property(libraries ${target} LOCKSTEP_LINK)
      target_sources(lockstep_shared PRIVATE $<TARGET_OBJECTS:${target}>)
      target_link_libraries(lockstep_shared PRIVATE ${libraries})
      target_include_directories(lockstep_shared INTERFACE
                                 "$<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include/${component}>")
    endforeach()
    target_include_directories(lockstep_shared INTERFACE "$<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include/lockstep>"
                               "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
    target_compile_features(lockstep_shared INTERFACE cxx_std_20)
    if(NOT APPLE)
      set(exports "${PROJECT_SOURCE_DIR}/cmake/exports.map")
      target_link_options(lockstep_shared PRIVATE "LINKER:--version-script=${exports}")
      set_target_properties(lockstep_shared PROPERTIES LINK_DEPENDS "${exports}")
    endif()
    set_target_properties(lockstep_shared PROPERTIES
      LINKER_LANGUAGE CXX
      OUTPUT_NAME lockstep
      VERSION ${PROJECT_VERSION}
      SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  endif()
  add_library(lockstep::shared ALIAS lockstep_shared)
  set_target_properties(lockstep_shared PROPERTIES EXPORT_NAME shared)
endfunction()
