#include <string>
#include <vector>

#include "lockstep/core/runtime.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/run/program.h"
#include "rival.h"
#include "support/measure.h"

namespace lockstep::bench {
namespace {

class Lockstep final : public Rival {
 public:
  explicit Lockstep(std::size_t workers) : runtime_({.threads = workers}) {}

  BuildTimes build(const Shape& shape, const Body& body, std::span<Slot> slots) override {
    program_ = Program();
    BuildTimes times;
    const double begin = now();
    GraphBuilder builder;
    std::vector<NodeId> ids;
    ids.reserve(shape.nodes());
    std::vector<NodeId> after;
    std::string name;
    for (std::size_t n = 0; n < shape.nodes(); ++n) {
      name = "n";
      name += std::to_string(n);
      after.clear();
      for (const std::uint32_t before : shape.after(n)) after.push_back(ids[before]);
      ids.push_back(with_body(body, slots[n], [&](auto function) {
        return builder.call(name, std::function<void()>(function), {.seconds = body.seconds()}, after);
      }));
    }
    Graph graph = builder.finish();
    const double built = now();
    program_ = compile(std::move(graph), runtime_);
    return {built - begin, now() - built};
  }

  void run(std::size_t times) override {
    for (std::size_t t = 0; t < times; ++t) program_.run_into({}, {});
  }

  std::string remark() const override {
    const PlanSummary plan = program_.plan();
    return std::to_string(plan.clusters) + " clusters, " + std::to_string(plan.lanes) + " lanes";
  }

 private:
  Runtime runtime_;
  Program program_;
};

}  // namespace

std::unique_ptr<Rival> make_lockstep(std::size_t workers) { return std::make_unique<Lockstep>(workers); }

}  // namespace lockstep::bench
