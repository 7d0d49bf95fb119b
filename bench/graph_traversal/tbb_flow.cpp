// A oneTBB flow graph of continue_nodes, with the default and with the lightweight policy. The calling thread
// works too, so an arena of w slots means w busy threads. The runs of one slice happen inside the arena:
// entering it is not part of what is measured.
#include <deque>
#include <vector>

#include <oneapi/tbb/flow_graph.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/task_arena.h>

#include "rival.h"
#include "support/measure.h"

namespace lockstep::bench {
namespace {

namespace flow = oneapi::tbb::flow;

template <class Node>
class TbbFlow final : public Rival {
 public:
  explicit TbbFlow(std::size_t workers)
      : limit_(oneapi::tbb::global_control::max_allowed_parallelism, workers),
        arena_(static_cast<int>(workers), 1) {}

  ~TbbFlow() override {
    arena_.execute([&] { clear(); });
  }

  BuildTimes build(const Shape& shape, const Body& body, std::span<Slot> slots) override {
    BuildTimes times;
    arena_.execute([&] {
      clear();
      const double begin = now();
      graph_ = std::make_unique<flow::graph>();
      for (std::size_t n = 0; n < shape.nodes(); ++n) {
        with_body(body, slots[n], [&](auto function) {
          nodes_.emplace_back(*graph_, [function](const flow::continue_msg&) { function(); });
        });
        for (const std::uint32_t before : shape.after(n)) flow::make_edge(nodes_[before], nodes_[n]);
        if (shape.after(n).empty()) sources_.push_back(&nodes_[n]);
      }
      times.build = now() - begin;
    });
    return times;
  }

  void run(std::size_t times) override {
    arena_.execute([&] {
      for (std::size_t t = 0; t < times; ++t) {
        for (Node* source : sources_) source->try_put(flow::continue_msg());
        graph_->wait_for_all();
      }
    });
  }

 private:
  void clear() {
    if (graph_ != nullptr) graph_->wait_for_all();
    sources_.clear();
    nodes_.clear();
    graph_.reset();
  }

  oneapi::tbb::global_control limit_;
  oneapi::tbb::task_arena arena_;
  std::unique_ptr<flow::graph> graph_;
  std::deque<Node> nodes_;  // nodes do not move
  std::vector<Node*> sources_;
};

}  // namespace

std::unique_ptr<Rival> make_tbb_flow(std::size_t workers) {
  return std::make_unique<TbbFlow<flow::continue_node<flow::continue_msg>>>(workers);
}

std::unique_ptr<Rival> make_tbb_flow_lightweight(std::size_t workers) {
  return std::make_unique<TbbFlow<flow::continue_node<flow::continue_msg, flow::lightweight>>>(workers);
}

}  // namespace lockstep::bench
