# cmake -DPROGRAM=<executable> -DEXPECTED=<file> -P check_output.cmake
# Runs the program; it has to end with 0 and print exactly what the file holds.
execute_process(COMMAND "${PROGRAM}" OUTPUT_VARIABLE printed RESULT_VARIABLE result)
if(NOT result STREQUAL "0")
  message(FATAL_ERROR "${PROGRAM} ended with '${result}' after printing:\n${printed}")
endif()
file(READ "${EXPECTED}" expected)
if(NOT printed STREQUAL expected)
  message(FATAL_ERROR "${PROGRAM} printed\n${printed}\nbut ${EXPECTED} holds\n${expected}")
endif()
