# Event files are read by TensorBoard itself where a Python has it. LOCKSTEP_TEST_TENSORBOARD_PYTHON names another Python.
find_program(LOCKSTEP_TEST_TENSORBOARD_PYTHON python3 DOC "A Python that has TensorBoard")
mark_as_advanced(LOCKSTEP_TEST_TENSORBOARD_PYTHON)
set_property(SOURCE io/traces/summary_writer_test.cpp APPEND PROPERTY COMPILE_DEFINITIONS
             "LOCKSTEP_TEST_TENSORBOARD_PYTHON=\"${LOCKSTEP_TEST_TENSORBOARD_PYTHON}\"")
