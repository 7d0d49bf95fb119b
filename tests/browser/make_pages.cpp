// Makes the pages that browser_test.py opens: graph.html, passes.html, pair.html, large.html, unnamed.html in
// the folder given.
#include <filesystem>
#include <iostream>

#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

// What a strategy makes of the step of a small model: 12 equal layers and a head.
PipelineRecording passes() {
  MirroredStrategy strategy({.devices = {"cpu:0", "cpu:1", "cpu:2", "cpu:3"}});
  auto scope = strategy.scope();
  const Variable w("w", Tensor::zeros({16, 16})), v("v", Tensor::zeros({16, 1}));
  const Sgd sgd(0.1F);
  const auto step = strategy.function({{DType::kF32, {kUnknown, 16}, "x"}}, [=](Value x) {
    for (int i = 0; i < 12; ++i) {
      const auto layer = x.builder().scope(str("layer_", i));
      x = tanh(matmul(x, w)) + x;
    }
    const Value loss = global_mean(square(matmul(x, v)));
    sgd.minimize(loss, {w, v});
    return loss;
  });
  return record_pipeline(strategy, step.step_graph());
}

// 20,000 nodes on eight replicas in scopes that nobody can fold: no two layers have the same ops.
Graph large() {
  constexpr int kReplicas = 8, kLayers = 50, kNodes = 50;
  const char* const ops[] = {"neg", "square", "relu", "tanh", "exp", "abs"};
  std::string text;
  for (int r = 0; r < kReplicas; ++r) {
    const std::string prefix = r == 0 ? "" : str("replica_", r, "/");
    std::string before = str("%\"", prefix, "x\"");
    text += before + " = placeholder() : f32[8]\n";
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int i = 0; i < kNodes; ++i) {
        // A number with the digits that tell this layer from all others chooses the ops.
        const auto op = ops[static_cast<unsigned>(layer * 7919 + i * (layer + 3)) % 6];
        const std::string name =
            str("%\"", prefix, "model/block_", layer / 10, "/layer_", layer, "/n", i, "\"");
        text += str(name, " = ", op, "(", before, ") : f32[8] on \"cpu:", r, "\" replica ", r, "\n");
        before = name;
      }
    }
  }
  return parse(text);
}

// 20,000 nodes without scopes: drawn in parts.
Graph unnamed() {
  std::string text = "%x = placeholder() : f32[8]\n";
  for (int i = 0; i < 19999; ++i) {
    const auto earlier = [&](int back) { return i < back ? std::string("%x") : str("%n", i - back); };
    text += str("%n", i, " = add(", earlier(1), ", ", earlier(1 + i % 7), ") : f32[8]\n");
  }
  return parse(text);
}

// Two graphs that know nothing of each other, with a scope that very much leads into.
Graph one_of_a_pair(bool after) {
  std::string text = "%x = placeholder() : f32[4]\n";
  text += str("%rate = constant[value=f32[]{", after ? "2.0" : "1.0", "}]() : f32[]\n");
  text += "%scaled = mul(%x, %rate) : f32[4]\n%same = neg(%scaled) : f32[4]\n";
  text += after ? "%extra = tanh(%same) : f32[4]\n" : "%gone = exp(%same) : f32[4]\n";
  text += str("%out = relu(%", after ? "extra" : "gone", ") : f32[4]\n");
  for (int i = 0; i < 20; ++i)
    text += str("%feed_", i, " = placeholder() : f32[", i + 1, "]\n%wide/n", i, " = neg(%feed_", i,
                ") : f32[", i + 1, "]\n");
  return parse(text + "return %out\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: make_pages <folder>\n";
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  const PipelineRecording recording = passes();
  const HtmlOptions patient = {.graphviz = {.limit = std::chrono::minutes(5)}};
  write_html(recording.stages.back().graph, folder / "graph.html", {.title = "A graph"});
  write_html(recording, folder / "passes.html", {.title = "Pass by pass"});
  write_html(one_of_a_pair(false), one_of_a_pair(true), folder / "pair.html", {.title = "Before and after"});
  write_html(large(), folder / "large.html", patient);
  write_html(unnamed(), folder / "unnamed.html", patient);
}
