# Rivals that are measured where they are found; the benchmark is complete without them.
find_package(MPI QUIET COMPONENTS CXX)
if(MPI_CXX_FOUND AND MPIEXEC_EXECUTABLE)
  add_executable(bench_all_reduce_mpi_rank all_reduce/mpi_rank/main.cpp)
  lockstep_flags(bench_all_reduce_mpi_rank)
  target_compile_definitions(bench_all_reduce_mpi_rank PRIVATE OMPI_SKIP_MPICXX)
  target_link_libraries(bench_all_reduce_mpi_rank PRIVATE MPI::MPI_CXX)
  add_dependencies(bench_all_reduce bench_all_reduce_mpi_rank)
  target_compile_definitions(bench_all_reduce PRIVATE
    LOCKSTEP_BENCH_MPIRUN="${MPIEXEC_EXECUTABLE}"
    LOCKSTEP_BENCH_MPI_RANK="$<TARGET_FILE:bench_all_reduce_mpi_rank>")
endif()

find_package(Gloo QUIET CONFIG)
if(TARGET gloo)
  target_compile_definitions(bench_all_reduce PRIVATE LOCKSTEP_BENCH_GLOO)
  target_link_libraries(bench_all_reduce PRIVATE gloo)
endif()
