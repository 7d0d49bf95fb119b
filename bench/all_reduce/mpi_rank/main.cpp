// One rank of the MPI rival: bench_all_reduce_mpi_rank FOLDER, started by mpirun, which bench_all_reduce
// starts.
#include <algorithm>
#include <cstdio>
#include <vector>

#include <fcntl.h>
#include <mpi.h>
#include <unistd.h>

#include "order.h"

int main(int argc, char** argv) {
  using namespace lockstep::bench;
  if (argc != 2) {
    std::fprintf(stderr, "bench_all_reduce_mpi_rank FOLDER\n");
    return 2;
  }
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int orders = open(order_pipe(argv[1], rank).c_str(), O_RDONLY);
  const int reply = open(reply_pipe(argv[1]).c_str(), O_WRONLY);
  std::vector<float> data;
  std::int64_t checked = 0;
  char right = 1;
  Order order{};
  while (read(orders, &order, sizeof order) == sizeof order && order.floats > 0) {
    const auto floats = static_cast<std::size_t>(order.floats);
    const int count = static_cast<int>(order.floats);
    if (data.size() < floats) data.resize(floats);
    if (checked != order.floats) std::fill(data.begin(), data.end(), static_cast<float>(rank + 1));
    for (std::int64_t i = 0; i < order.times; ++i) {
      MPI_Allreduce(MPI_IN_PLACE, data.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      if (checked == order.floats) continue;
      const float sum = static_cast<float>(size * (size + 1) / 2);
      right =
          std::all_of(data.begin(), data.begin() + order.floats, [sum](float x) { return x == sum; }) ? 1 : 0;
      std::fill(data.begin(), data.end(), 0.0F);
      checked = order.floats;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0 && write(reply, &right, 1) != 1) break;
  }
  MPI_Finalize();
}
