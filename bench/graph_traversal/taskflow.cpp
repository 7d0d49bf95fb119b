// The graph as a Taskflow programmer writes it by hand: emplaced once, run again and again.
#include <vector>

#include <taskflow/taskflow.hpp>

#include "rival.h"
#include "support/measure.h"

namespace lockstep::bench {
namespace {

class Taskflow final : public Rival {
 public:
  explicit Taskflow(std::size_t workers) : executor_(workers) {}

  BuildTimes build(const Shape& shape, const Body& body, std::span<Slot> slots) override {
    taskflow_.clear();
    const double begin = now();
    std::vector<tf::Task> tasks;
    tasks.reserve(shape.nodes());
    for (std::size_t n = 0; n < shape.nodes(); ++n) {
      tasks.push_back(
          with_body(body, slots[n], [&](auto function) { return tf::Task(taskflow_.emplace(function)); }));
      for (const std::uint32_t before : shape.after(n)) tasks[before].precede(tasks.back());
    }
    return {now() - begin, 0};
  }

  void run(std::size_t times) override {
    for (std::size_t t = 0; t < times; ++t) executor_.run(taskflow_).wait();
  }

 private:
  tf::Taskflow taskflow_;
  tf::Executor executor_;
};

}  // namespace

std::unique_ptr<Rival> make_taskflow(std::size_t workers) { return std::make_unique<Taskflow>(workers); }

}  // namespace lockstep::bench
