// bench/gpu/compiling.cpp - how long it takes until a step runs, and the memory of the card that it takes.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <unistd.h>

#include "card.h"
#include "lockstep/core/error.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/run/compile.h"
#include "rows.h"
#include "step.h"

namespace lockstep::bench {

namespace {

namespace fs = std::filesystem;

constexpr const char* kCache = "LOCKSTEP_CACHE";
constexpr long kBlockBatch = 16;
constexpr double kColdTarget = 2, kWarmTarget = 0.2;

// The context, cuBLASLt and NVRTC are there after a product and a kernel that the step does not have.
void load_libraries(const Runtime& runtime) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    GraphBuilder b;
    const auto there = b.device(kCard);
    const Value a = b.read(b.variable(str("a", static_cast<int>(dtype)), Tensor::full(dtype, {64, 64}, 0.5)));
    b.result(sigmoid(matmul(a, a)));
    CompileOptions options{.variables = std::make_shared<VariableStore>()};
    options.allow_tf32 = true;
    compile(b.finish(), runtime, options).run()[0].wait();
  }
}

// What a process printed: words, each "name=number". Empty if it failed.
std::map<std::string, double> answer_of(const std::string& command) {
  std::map<std::string, double> answer;
  std::FILE* const pipe = popen(command.c_str(), "re");
  if (pipe == nullptr) return answer;
  char word[256];
  while (std::fscanf(pipe, "%255s", word) == 1) {
    const std::string text = word;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) answer[text.substr(0, equals)] = std::atof(text.c_str() + equals + 1);
  }
  if (pclose(pipe) != 0) answer.clear();
  return answer;
}

}  // namespace

int compile_once(const char* what, long batch) {
  const Runtime runtime({.threads = 4});
  load_libraries(runtime);
  const Case chosen = parse_case(what);
  MemoryPool& pool = *runtime.pool(Device::parse(kCard));
  const std::int64_t live_before = pool.stats().live_bytes;
  const std::size_t used_before = used_card_bytes();
  pool.reset_peak();
  BuiltStep built = build_step(runtime, chosen, batch);

  const double begin = now();
  const Program program = compile_step(std::move(built.graph), runtime, chosen);
  program.run(built.feeds)[0].item();
  program.wait();
  const double seconds = now() - begin;

  for (int i = 0; i < 4; ++i) program.run(built.feeds);  // recorded, and as many under way as may be
  program.wait();
  const PlanSummary plan = program.plan(built.feeds);
  std::printf("seconds=%.6f planned=%lld variables=%lld peak=%lld card=%lld\n", seconds,
              static_cast<long long>(plan.planned_bytes), static_cast<long long>(variable_bytes(program)),
              static_cast<long long>(pool.stats().peak_bytes - live_before),
              static_cast<long long>(used_card_bytes()) - static_cast<long long>(used_before));
  return 0;
}

void measure_compiling(Report& report) {
  if (!report.wants("compile")) return;
  std::string folder = (fs::temp_directory_path() / "lockstep-bench-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) throw Error(ErrorCode::kUnavailable, "no folder for an empty cache");
  const std::string binary = fs::read_symlink("/proc/self/exe").string();
  const int trials = report.is_quick() ? 1 : 5;
  for (const char* what : {"block-tf32", "block-bf16"}) {
    std::vector<double> cold, warm;
    std::map<std::string, double> last;
    for (int trial = 0; trial < trials; ++trial) {
      const std::string command =
          str(kCache, "='", folder, "/", what, trial, "' '", binary, "' --compile ", what, " ", kBlockBatch);
      for (std::vector<double>* const seconds : {&cold, &warm}) {
        last = answer_of(command);
        if (!last.empty()) seconds->push_back(last["seconds"]);
      }
    }
    if (cold.empty() || warm.empty()) {
      std::printf("compiling %s failed\n", what);
      continue;
    }
    std::printf("compiling %-12s", what);
    Report::show(spread(cold), 1, 24);
    std::printf(" s, from the cache on disk ");
    Report::show(spread(warm), 1, 24);
    std::printf(
        " s\n  memory of the card: planned %.0f MiB a run, variables %.0f MiB, peak with two runs under way "
        "%.0f MiB; "
        "taken from CUDA %.0f MiB\n",
        last["planned"] / (1 << 20U), last["variables"] / (1 << 20U), last["peak"] / (1 << 20U),
        last["card"] / (1 << 20U));
    report.verdicts().at_most("compiling, s", what, spread(cold).median, kColdTarget);
    report.verdicts().at_most("compiling from the cache on disk, s", what, spread(warm).median, kWarmTarget);
  }
  std::error_code ignored;
  fs::remove_all(folder, ignored);
}

}  // namespace lockstep::bench
