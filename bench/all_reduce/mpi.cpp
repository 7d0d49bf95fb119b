// The rival: MPI, in processes of their own that mpirun starts (mpi_rank/main.cpp). They are told what to do
// through named pipes, on which they sleep in between: a process that waits inside MPI would spin while the
// others are measured.
#include "rivals.h"

#if defined(LOCKSTEP_BENCH_MPI_RANK)

#include <array>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mpi_rank/order.h"

namespace lockstep::bench {
namespace {

class Mpi final : public Rival {
 public:
  explicit Mpi(int participants) {
    std::array<char, 32> pattern{"/tmp/bench_all_reduce_XXXXXX"};
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("MPI: no temporary folder");
    folder_ = pattern.data();
    for (int p = 0; p < participants; ++p) mkfifo(order_pipe(folder_, p).c_str(), 0600);
    mkfifo(reply_pipe(folder_).c_str(), 0600);
    start(participants);
    // Opened for both, so that opening waits for nobody; a rank that fails to start closes the other end too
    // late to see.
    for (int p = 0; p < participants; ++p)
      orders_.push_back(open(order_pipe(folder_, p).c_str(), O_RDWR | O_CLOEXEC));
    reply_ = open(reply_pipe(folder_).c_str(), O_RDWR | O_CLOEXEC);
  }
  ~Mpi() override {
    for (const int pipe : orders_) tell(pipe, {0, 0});
    int status = 0;
    waitpid(child_, &status, 0);
    for (const int pipe : orders_) close(pipe);
    close(reply_);
    for (std::size_t p = 0; p < orders_.size(); ++p) unlink(order_pipe(folder_, static_cast<int>(p)).c_str());
    unlink(reply_pipe(folder_).c_str());
    rmdir(folder_.c_str());
  }

  std::string name() const override { return "MPI"; }
  bool in_place() const override { return false; }

  void run(std::int64_t floats, std::size_t times) override {
    for (const int pipe : orders_) tell(pipe, {floats, static_cast<std::int64_t>(times)});
    char right = 0;
    if (read(reply_, &right, 1) != 1 || right != 1) throw std::runtime_error("MPI: wrong sum, or no answer");
  }

 private:
  static void tell(int pipe, Order order) {
    if (write(pipe, &order, sizeof order) != sizeof order) std::fprintf(stderr, "MPI: a rank is gone\n");
  }
  void start(int participants) {
    child_ = fork();
    if (child_ != 0) return;
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    const std::string count = std::to_string(participants);
    execl(LOCKSTEP_BENCH_MPIRUN, LOCKSTEP_BENCH_MPIRUN, "--oversubscribe", "-n", count.c_str(),
          LOCKSTEP_BENCH_MPI_RANK, folder_.c_str(), static_cast<char*>(nullptr));
    std::fprintf(stderr, "MPI: cannot start %s\n", LOCKSTEP_BENCH_MPIRUN);
    _exit(1);
  }

  std::string folder_;
  int child_ = -1;
  int reply_ = -1;
  std::vector<int> orders_;
};

}  // namespace

std::unique_ptr<Rival> make_mpi(int participants) { return std::make_unique<Mpi>(participants); }

}  // namespace lockstep::bench

#else

namespace lockstep::bench {
std::unique_ptr<Rival> make_mpi(int) { return nullptr; }
}  // namespace lockstep::bench

#endif
