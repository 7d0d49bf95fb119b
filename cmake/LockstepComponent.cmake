# One folder, one target, one include root; inside it rooms on floors.
#
#   lockstep_component(NAME graph DEPENDS core ROOMS ir text check LINK TBB::tbb)
#
# makes the target lockstep::graph from every source below graph/. Headers are included as "lockstep/graph/ir/op.h", in the
# tree and once installed, because each gets a one-line forwarding header in the build tree.
#
#   components  A target sees the headers of the components it depends on, and no others.
#   rooms       A room is a folder of the component ("." is the component's own folder, without the rooms' folders). It is
#               compiled by itself and sees its own headers and those of the rooms before it in the list, so that an include
#               to a higher room does not compile. Its sources lie anywhere below it.
#   internal    Headers below a folder named `internal` are seen by this component and by the tests alone.
#   cuda        A folder `cuda` is compiled only with LOCKSTEP_CUDA; it has .cu sources too.
#   public      <component>/public_headers.txt lists what is installed. A line that ends in " (umbrella)" is in
#               "lockstep/lockstep.h" too; one that ends in " (cuda)", " (nccl)" or " (gloo)" counts in a build with CUDA, NCCL or
#               Gloo. Headers that it does not list are for Lockstep's own components.
#
# DEPENDS names components (public), LINK libraries of other projects (private), CUDA those of NVIDIA, which the room `cuda` alone
# sees, GLOO that of the room `gloo`.

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

# The room that the file, a path below the component's folder, lies in.
function(lockstep_room_of file rooms result)
  string(REGEX MATCH "^[^/]+" first "${file}")
  if(NOT first IN_LIST rooms)
    if(NOT "." IN_LIST rooms)
      message(FATAL_ERROR "${file} lies in no room: the rooms are ${rooms}")
    endif()
    set(first ".")
  endif()
  set(${result} "${first}" PARENT_SCOPE)
endfunction()

# What every library target of Lockstep has in common.
function(lockstep_library_properties target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON  # so that a static Lockstep can be linked into a plug-in
    INSTALL_RPATH "$ORIGIN"       # installed shared components find each other
    LINKER_LANGUAGE CXX
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
endfunction()

# A shared library shows what exports.map allows.
function(lockstep_limit_exports target)
  if(NOT APPLE)
    set(exports "${PROJECT_SOURCE_DIR}/cmake/exports.map")
    target_link_options(${target} PRIVATE "LINKER:--version-script=${exports}")
    set_target_properties(${target} PROPERTIES LINK_DEPENDS "${exports}")
  endif()
endfunction()

function(lockstep_component)
  cmake_parse_arguments(arg "" "NAME" "DEPENDS;ROOMS;LINK;CUDA;GLOO" ${ARGN})
  set(folder "${PROJECT_SOURCE_DIR}/${arg_NAME}")
  set(target lockstep_${arg_NAME})
  set(root "${PROJECT_BINARY_DIR}/include/${arg_NAME}")
  set(internal_root "${PROJECT_BINARY_DIR}/include-internal/${arg_NAME}")
  set(prefix lockstep/${arg_NAME})
  list(TRANSFORM arg_DEPENDS PREPEND lockstep_)

  file(GLOB_RECURSE sources RELATIVE "${folder}" CONFIGURE_DEPENDS "${folder}/*.cpp" "${folder}/*.cu")
  file(GLOB_RECURSE headers RELATIVE "${folder}" CONFIGURE_DEPENDS "${folder}/*.h")
  if(NOT LOCKSTEP_HAS_CUDA)
    list(FILTER sources EXCLUDE REGEX "(^|/)cuda/")
    list(FILTER headers EXCLUDE REGEX "(^|/)cuda/")
  endif()
  if(NOT LOCKSTEP_HAS_NCCL)
    list(FILTER sources EXCLUDE REGEX "(^|/)nccl/")
    list(FILTER headers EXCLUDE REGEX "(^|/)nccl/")
  endif()
  if(NOT LOCKSTEP_HAS_GLOO)
    list(FILTER sources EXCLUDE REGEX "(^|/)gloo/")
    list(FILTER headers EXCLUDE REGEX "(^|/)gloo/")
  endif()
  set(internal_headers ${headers})
  list(FILTER internal_headers INCLUDE REGEX "(^|/)internal/")
  set(visible_headers ${headers})
  list(FILTER visible_headers EXCLUDE REGEX "(^|/)internal/")
  lockstep_forward_headers("${root}" ${prefix} "${folder}" ${visible_headers})
  lockstep_forward_headers("${internal_root}" ${prefix} "${folder}" ${internal_headers})

  foreach(kind IN ITEMS sources headers)
    foreach(file IN LISTS ${kind})
      lockstep_room_of("${file}" "${arg_ROOMS}" room)
      list(APPEND ${kind}_of_${room} "${file}")
    endforeach()
  endforeach()
  set(room_roots)
  set(room_targets)
  foreach(room IN LISTS arg_ROOMS)
    string(MAKE_C_IDENTIFIER "${target}_${room}" room_target)
    set(room_root "${PROJECT_BINARY_DIR}/include-rooms/${room_target}")
    lockstep_forward_headers("${room_root}" ${prefix} "${folder}" ${headers_of_${room}})
    list(APPEND room_roots "${room_root}")
    list(TRANSFORM sources_of_${room} PREPEND "${folder}/")
    add_library(${room_target} OBJECT ${sources_of_${room}})
    lockstep_flags(${room_target})
    lockstep_library_properties(${room_target})
    # Results must not depend on the compiler's fusing.
    target_compile_options(${room_target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>
                           $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false>)
    target_include_directories(${room_target} PRIVATE ${room_roots})
    target_link_libraries(${room_target} PRIVATE ${arg_DEPENDS} ${arg_LINK})
    if(room MATCHES "^(cuda|nccl)$")
      target_link_libraries(${room_target} PRIVATE ${arg_CUDA})
    endif()
    if(room STREQUAL "gloo")
      target_link_libraries(${room_target} PRIVATE ${arg_GLOO})
    endif()
    if(room STREQUAL "nccl")
      target_include_directories(${room_target} SYSTEM PRIVATE "${LOCKSTEP_NCCL_INCLUDE_DIR}")
    endif()
    set_target_properties(${room_target} PROPERTIES LOCKSTEP_ROOTS "${room_roots}")
    list(APPEND room_targets ${room_target})
  endforeach()

  list(TRANSFORM room_targets REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE objects)
  add_library(${target} ${objects})
  add_library(lockstep::${arg_NAME} ALIAS ${target})
  lockstep_library_properties(${target})
  if(lockstep_sanitizer)
    target_link_options(${target} PRIVATE ${lockstep_sanitizer})
  endif()
  if(BUILD_SHARED_LIBS)
    lockstep_limit_exports(${target})
  endif()
  target_link_libraries(${target} PUBLIC ${arg_DEPENDS} PRIVATE ${arg_LINK} ${arg_CUDA} ${arg_GLOO})
  target_include_directories(${target} PUBLIC "$<BUILD_INTERFACE:${root}>"
                             "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")

  set(list_file "${folder}/public_headers.txt")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${list_file}")
  file(STRINGS "${list_file}" listed REGEX "^[^#]")
  if(NOT LOCKSTEP_HAS_CUDA)
    list(FILTER listed EXCLUDE REGEX " \\(cuda\\)$")
  endif()
  if(NOT LOCKSTEP_HAS_NCCL)
    list(FILTER listed EXCLUDE REGEX " \\(nccl\\)$")
  endif()
  if(NOT LOCKSTEP_HAS_GLOO)
    list(FILTER listed EXCLUDE REGEX " \\(gloo\\)$")
  endif()
  set(umbrella ${listed})
  list(FILTER umbrella INCLUDE REGEX " \\(umbrella\\)$")
  list(TRANSFORM umbrella REPLACE " .*" "")
  list(TRANSFORM listed REPLACE " .*" "")
  foreach(header IN LISTS listed)
    if(NOT header IN_LIST visible_headers)
      message(FATAL_ERROR "${list_file} lists ${header}, which is no header of ${arg_NAME}, or an internal one")
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${arg_NAME}
    LOCKSTEP_HEADERS "${listed}"
    LOCKSTEP_UMBRELLA_HEADERS "${umbrella}"
    LOCKSTEP_LINK "${arg_LINK};${arg_CUDA};${arg_GLOO}"
    LOCKSTEP_ROOMS "${room_targets}"
    LOCKSTEP_INTERNAL_ROOT "${internal_root}")
endfunction()

# lockstep_umbrella(COMPONENTS core graph): lockstep::lockstep, every component at once, with the generated header
# "lockstep/lockstep.h" that includes every header marked for it.
function(lockstep_umbrella)
  cmake_parse_arguments(arg "" "" "COMPONENTS" ${ARGN})
  set(LOCKSTEP_UMBRELLA_INCLUDES "")
  foreach(component IN LISTS arg_COMPONENTS)
    get_target_property(headers lockstep_${component} LOCKSTEP_UMBRELLA_HEADERS)
    foreach(header IN LISTS headers)
      string(APPEND LOCKSTEP_UMBRELLA_INCLUDES "#include \"lockstep/${component}/${header}\"\n")
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
    lockstep_library_properties(lockstep_shared)
    lockstep_limit_exports(lockstep_shared)
    foreach(component IN LISTS arg_COMPONENTS)
      get_target_property(libraries lockstep_${component} LOCKSTEP_LINK)
      get_target_property(rooms lockstep_${component} LOCKSTEP_ROOMS)
      foreach(room IN LISTS rooms)
        target_sources(lockstep_shared PRIVATE $<TARGET_OBJECTS:${room}>)
      endforeach()
      target_link_libraries(lockstep_shared PRIVATE ${libraries})
      target_include_directories(lockstep_shared INTERFACE
                                 "$<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include/${component}>")
    endforeach()
    target_include_directories(lockstep_shared INTERFACE "$<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include/lockstep>"
                               "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
    set_target_properties(lockstep_shared PROPERTIES OUTPUT_NAME lockstep)
  endif()
  add_library(lockstep::shared ALIAS lockstep_shared)
  set_target_properties(lockstep_shared PROPERTIES EXPORT_NAME shared)
endfunction()
