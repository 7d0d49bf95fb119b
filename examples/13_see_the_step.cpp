// What a strategy makes of a step, to look at: before, after, and on the way.
//
//   step --mirror--> --all-reduce--> --replicate--> --prove--> --share--> what runs
//    |                                                                       |
//    step.dot                      passes.html                     replicated.dot, step.html
//
// The DOT files are for Graphviz (dot -Tsvg step.dot > step.svg); the pages open in a browser and need
// nothing else. Equal replicas are drawn once, "x 4".
//
// Usage: 13_see_the_step [folder]     (default: see_the_step in the current folder)
#include <filesystem>
#include <iostream>

#include "lockstep/lockstep.h"

using namespace lockstep;

int main(int argc, char** argv) {
  const std::filesystem::path folder = argc > 1 && argv[1][0] != '-' ? argv[1] : "see_the_step";
  std::filesystem::create_directories(folder);

  MirroredStrategy strategy({.devices = {"cpu:0", "cpu:1", "cpu:2", "cpu:3"}});
  auto scope = strategy.scope();
  const Variable w1("w1", initializers::he_normal({784, 256}, 1)), b1("b1", initializers::zeros({256}));
  const Variable w2("w2", initializers::glorot_uniform({256, 10}, 2)), b2("b2", initializers::zeros({10}));
  const Sgd sgd(0.1F);
  const InputSpec images(DType::kF32, {kUnknown, 784}, "x"), labels(DType::kI64, {kUnknown}, "y");
  const auto train = strategy.function({images, labels}, [=](Value x, Value y) {
    const Value hidden = relu(matmul(x, w1) + b1);
    const Value loss = global_mean(softmax_cross_entropy(matmul(hidden, w2) + b2, y));
    sgd.minimize(loss, {w1, b1, w2, b2});
    return loss;
  });

  const auto say = [&](const char* file, const char* what) {
    std::cout << (folder / file).string() << ": " << what << '\n';
  };
  write_file_whole(folder / "step.dot", to_dot(train.step_graph(), {.title = "the step of one replica"}));
  say("step.dot", "the step as it was traced");
  write_file_whole(folder / "replicated.dot",
                   to_dot(train.replicated_graph(), {.title = "on four replicas"}));
  say("replicated.dot", "the step that runs");
  write_file_whole(folder / "overview.dot",
                   to_dot(train.replicated_graph(), {.max_depth = 0, .legend = false}));
  say("overview.dot", "its outermost scopes");
  write_file_whole(folder / "step.json", to_model_explorer_json(train.replicated_graph()));
  say("step.json", "the same for Model Explorer");

  if (const Decision graphviz = has_graphviz(); !graphviz) {
    std::cout << "no pages: " << graphviz.reason() << '\n';
    return 0;
  }
  write_html(train.step_graph(), train.replicated_graph(), folder / "step.html",
             {.title = "Before and after"});
  say("step.html", "both in one page, what differs marked");
  write_html(record_pipeline(strategy, train.step_graph()), folder / "passes.html",
             {.title = "Pass by pass"});
  say("passes.html", "a slider over the passes");
}
