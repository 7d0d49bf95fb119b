# Event files are read by TensorBoard itself where a Python has it. LOCKSTEP_TEST_TENSORBOARD_PYTHON names another Python.
find_program(LOCKSTEP_TEST_TENSORBOARD_PYTHON python3 DOC "A Python that has TensorBoard")
mark_as_advanced(LOCKSTEP_TEST_TENSORBOARD_PYTHON)
if(LOCKSTEP_TEST_TENSORBOARD_PYTHON)
  execute_process(COMMAND "${LOCKSTEP_TEST_TENSORBOARD_PYTHON}" -c "import tensorboard"
                  RESULT_VARIABLE missing OUTPUT_QUIET ERROR_QUIET)
  if(NOT missing)
    set_property(SOURCE io/summary_writer_test.cpp APPEND PROPERTY COMPILE_DEFINITIONS
                 "LOCKSTEP_TEST_TENSORBOARD_PYTHON=\"${LOCKSTEP_TEST_TENSORBOARD_PYTHON}\"")
  endif()
endif()
