#include <algorithm>
#include <optional>
#include <vector>

#include <taskflow/taskflow.hpp>

#include "layers.h"
#include "operations.h"
#include "support/measure.h"

namespace lockstep::bench {

Measured measure_taskflow(std::size_t n, int repeats) {
  Measured measured;
  const std::size_t before = live_heap_bytes();
  std::optional<tf::Taskflow> taskflow;
  double build = 1e9;
  double dump = 1e9;
  for (int trial = 0; trial < repeats; ++trial) {
    taskflow.emplace();
    double begin = cpu_now();
    Layers layers;
    std::vector<tf::Task> tasks;
    tasks.reserve(n);
    for (std::size_t k = 0; k < n; ++k) {
      tasks.push_back(taskflow->emplace([] {}));
      tasks.back().name("add_" + std::to_string(k));
      if (!Layers::has_inputs(k)) continue;
      const auto [a, b] = layers.inputs(k);
      tasks[a].precede(tasks.back());
      tasks[b].precede(tasks.back());
    }
    build = std::min(build, cpu_now() - begin);
    if (trial == 0) {  // its pool keeps what later trials free
      tasks = {};
      measured.bytes_a_node = static_cast<double>(live_heap_bytes() - before) / static_cast<double>(n);
    }
    begin = cpu_now();
    const std::string text = taskflow->dump();
    dump = std::min(dump, cpu_now() - begin);
  }
  measured.timings = {{"build", build}, {"print", dump}};
  return measured;
}

}  // namespace lockstep::bench
