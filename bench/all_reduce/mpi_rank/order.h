// bench/all_reduce/mpi_rank/order.h - what the benchmark tells its MPI processes.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::bench {

// So many all-reduces of so many floats, then a byte to the reply pipe by rank 0: 1 where the sums are right.
// 0 floats: end.
struct Order {
  std::int64_t floats;
  std::int64_t times;
};

inline std::string order_pipe(const std::string& folder, int rank) {
  return folder + "/order_" + std::to_string(rank);
}
inline std::string reply_pipe(const std::string& folder) { return folder + "/reply"; }

}  // namespace lockstep::bench
