# The pages of io/drawings/html.h in a real browser: registered where Chromium, its driver, Graphviz and Python are found.
find_program(LOCKSTEP_CHROMIUM NAMES chromium chromium-browser google-chrome)
find_program(LOCKSTEP_CHROMEDRIVER NAMES chromedriver)
find_program(LOCKSTEP_DOT NAMES dot)
find_package(Python3 COMPONENTS Interpreter QUIET)
if(NOT (LOCKSTEP_CHROMIUM AND LOCKSTEP_CHROMEDRIVER AND LOCKSTEP_DOT AND Python3_Interpreter_FOUND))
  message(STATUS "No browser tests: they need chromium, chromedriver, dot (Graphviz) and python3")
  return()
endif()

add_executable(make_pages browser/make_pages.cpp)
lockstep_flags(make_pages)
target_link_libraries(make_pages PRIVATE lockstep::lockstep)
set(pages "${CMAKE_CURRENT_BINARY_DIR}/pages")
file(MAKE_DIRECTORY "${pages}")
add_test(NAME browser/make_pages COMMAND make_pages "${pages}")
set_tests_properties(browser/make_pages PROPERTIES LABELS browser TIMEOUT 300 FIXTURES_SETUP browser_pages)
add_test(NAME browser/pages
         COMMAND "${Python3_EXECUTABLE}" "${CMAKE_CURRENT_SOURCE_DIR}/browser/browser_test.py" --pages "${pages}"
                 --chromium "${LOCKSTEP_CHROMIUM}" --driver "${LOCKSTEP_CHROMEDRIVER}"
                 --screenshots "${pages}/screenshots")
set_tests_properties(browser/pages PROPERTIES LABELS browser TIMEOUT 180 FIXTURES_REQUIRED browser_pages)
