// bench/mirrored_step/taskflow.cpp - the tiny step by hand: one task an op, one for the mean, one for the
// update.
#include <array>
#include <vector>

#include <taskflow/taskflow.hpp>

#include "participants.h"

namespace lockstep::bench {
namespace {

using Numbers = std::array<float, kTinyElements>;

Numbers filled(float value) {
  Numbers out{};
  out.fill(value);
  return out;
}

struct Replica {
  alignas(64) Numbers x, y, h;
};

class TaskflowTiny final : public Participant {
 public:
  TaskflowTiny(std::size_t replicas, std::size_t threads)
      : executor_(threads), w_(filled(1)), replicas_(replicas) {
    tf::Task mean = taskflow_.emplace([this] {
      const float part = 1 / static_cast<float>(replicas_.size());
      mean_ = replicas_[0].h;
      for (std::size_t r = 1; r < replicas_.size(); ++r)
        for (std::size_t i = 0; i < mean_.size(); ++i) mean_[i] += replicas_[r].h[i];
      for (float& m : mean_) m *= part;
    });
    taskflow_
        .emplace([this] {
          for (std::size_t i = 0; i < w_.size(); ++i) w_[i] -= mean_[i];
        })
        .succeed(mean);
    for (std::size_t r = 0; r < replicas; ++r) {
      Replica& replica = replicas_[r];
      replica.x = filled(kTinyX + static_cast<float>(r) / 1000);
      replica.y = filled(kTinyY + static_cast<float>(r) / 100000);
      tf::Task last;
      for (int i = 0; i < kTinyOps; ++i) {
        tf::Task op = i % 2 == 0 ? taskflow_.emplace([this, &replica, first = i == 0] {
          const Numbers& from = first ? w_ : replica.h;
          for (std::size_t j = 0; j < from.size(); ++j) replica.h[j] = from[j] * replica.x[j];
        })
                                 : taskflow_.emplace([&replica] {
                                     for (std::size_t j = 0; j < replica.h.size(); ++j)
                                       replica.h[j] += replica.y[j];
                                   });
        if (i > 0) op.succeed(last);
        last = op;
      }
      mean.succeed(last);
    }
  }

  double run(std::size_t steps) override {
    for (std::size_t s = 0; s < steps; ++s) executor_.run(taskflow_).wait();
    return w_[0];
  }

 private:
  tf::Executor executor_;
  tf::Taskflow taskflow_;
  Numbers w_, mean_{};
  std::vector<Replica> replicas_;
};

}  // namespace

std::unique_ptr<Participant> make_taskflow(const std::string& model, std::int64_t batch,
                                           std::size_t threads) {
  if (model != "tiny") return nullptr;
  return std::make_unique<TaskflowTiny>(static_cast<std::size_t>(batch), threads);
}

}  // namespace lockstep::bench
