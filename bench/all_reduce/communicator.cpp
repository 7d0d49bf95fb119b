// Lockstep: an InProcessGroup.
#include "lockstep/core/communicators/communicator.h"

#include "lockstep/core/communicators/in_process_group.h"
#include "rivals.h"
#include "threads.h"

namespace lockstep::bench {
namespace {

class CommunicatorRival final : public Rival {
 public:
  explicit CommunicatorRival(const Arrays& arrays)
      : arrays_(arrays), group_(arrays.participants()), threads_(arrays.participants(), false) {
    for (int p = 0; p < arrays.participants(); ++p) participants_.push_back(group_.join(p));
  }

  std::string name() const override { return "Lockstep"; }

  void run(std::int64_t floats, std::size_t times) override {
    threads_.run([&](int participant) {
      Communicator& comm = *participants_[static_cast<std::size_t>(participant)];
      float* data = arrays_[participant];
      for (std::size_t i = 0; i < times; ++i)
        comm.all_reduce(ReplicaReduce::kSum, DType::kF32, data, data, floats).wait();
    });
  }

 private:
  const Arrays& arrays_;
  InProcessGroup group_;
  std::vector<std::unique_ptr<Communicator>> participants_;
  Threads threads_;
};

}  // namespace

std::unique_ptr<Rival> make_communicator(const Arrays& arrays) {
  return std::make_unique<CommunicatorRival>(arrays);
}

}  // namespace lockstep::bench
