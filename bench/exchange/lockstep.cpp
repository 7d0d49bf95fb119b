// Lockstep: a group with an exchange of its own, through memory that processes of one machine share, or over Gloo's connections.
#include "lockstep/core/gloo/gloo_group.h"
#include "team.h"

namespace lockstep::bench {
namespace {

class Lockstep final : public Exchanger {
 public:
  Lockstep(int rank, int size, const std::string& folder, bool shares) {
    FileRendezvous rendezvous(folder);
    comm_ = connect_gloo({.rank = rank, .size = size, .shared_memory = shares}, rendezvous,
                         deadline_in(std::chrono::seconds(30)));
  }
  void all_reduce(float* data, std::int64_t floats) override {
    comm_->all_reduce(ReplicaReduce::kSum, DType::kF32, data, data, floats).wait();
  }

 private:
  std::unique_ptr<Communicator> comm_;
};

}  // namespace

std::unique_ptr<Exchanger> make_lockstep(int rank, int size, const std::string& folder) {
  return std::make_unique<Lockstep>(rank, size, folder + "/lockstep", true);
}

std::unique_ptr<Exchanger> make_connected(int rank, int size, const std::string& folder) {
  return std::make_unique<Lockstep>(rank, size, folder + "/connected", false);
}

}  // namespace lockstep::bench
