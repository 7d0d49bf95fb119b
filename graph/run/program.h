// graph/run/program.h - a graph compiled for a runtime; run many times.
//
//   Program program = compile(graph, runtime);
//   std::vector<Tensor> y = program.run({{"x", x}});             // by name
//   program.run_into(feeds, results);                            // by position, into the caller's memory
//   std::future<std::vector<Tensor>> later = program.run_async({x});
//
// A step either commits or has no effect: variables change at the very end, together, or (on an exception, a
// cancellation or a deadline before that) not at all, and the program can run again. The same inputs, seed
// and step give the same bits, whatever the number of threads and however nodes are clustered.
//
// Thread safety: a Program is a cheap handle and may run from any number of threads at once, tasks of its own
// executor included. Runs that write one variable take turns, and exclude those that read it; runs that draw
// random numbers take turns too (each has its own step). Waiting runs get their turn in the order in which
// they came (core/variable_store.h states the guarantees). The calling thread works on the run itself and
// workers help: neither a run, nor the end of a plan or a Program, waits for a worker to be free, so runs
// inside tasks cannot deadlock. A small program runs on the calling thread alone. If a lambda node runs a
// program that needs a variable that the lambda's own run holds, that is an error; both may read it. Two runs
// whose lambdas each run a program that needs the other's variable wait for each other: give such runs a
// deadline, or use the variables in one order.
//
// Deferred calls (graph/ir/kernel.h): while all that is left of a run goes on elsewhere, the calling thread
// sleeps. If the run is stopped or fails meanwhile, run() throws at once and the caller has its feeds and
// results again; the memory, the locks and the plan of the run come back when the last such call has ended,
// which may be after the program is gone. A later run that needs a variable of the stopped one waits until
// then.
//
// Feeds and results may lie in another memory than the host's (core/tensor.h): they are copied there and back.
//
// Out of memory: a run that cannot get memory throws std::bad_alloc and has changed nothing; a run that has
// no memory to call workers continues alone.
//
// fork(): the child has the programs of its parent but none of the threads. In the child run() works on the
// calling thread alone, run_async() throws FailedPrecondition, and programs and runtimes end without waiting.
// Variables that a run of the parent held at the time of the fork stay locked in the child: fork between
// runs.
//
// Plans: the first run with given feed shapes makes a plan for them (memory, clusters); later runs find it.
// The CompileOptions::max_plans most recently used ones are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/base/steady_time.h"
#include "lockstep/core/error.h"
#include "lockstep/core/runtime.h"
#include "lockstep/core/source_site.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/run/observer.h"

namespace lockstep {

// A value for the placeholder of that name.
struct Feed {
  std::string_view name;
  Tensor value;
};

struct RunOptions {
  // The run fails with kDeadlineExceeded if it has not reached its commit by then. Checked between nodes, and
  // while deferred calls are waited for.
  std::optional<SteadyTime> deadline = std::nullopt;
  // The run fails with kCancelled if a stop is requested before its commit. Checked in the same places.
  std::stop_token cancel = {};
  // Told about every node; must outlive the run.
  Observer* observer = nullptr;
  // For finding errors: each call of a device with streams is waited for before the next one begins, and nothing is recorded or
  // replayed, so that a device that fails names the node whose call it was. Slow.
  bool synchronous = false;
};

// An error in a run: node, op, device, replica and source line are in place(); the original exception is
// nested.
class LOCKSTEP_API RunError : public Error {
 public:
  RunError(ErrorCode code, std::string message, ErrorPlace place, std::uint64_t committed);
  ~RunError() override;
  // Steps of this call that were committed before the failure (run_n; 0 for a single run).
  std::uint64_t committed_steps() const { return committed_; }

 private:
  std::uint64_t committed_;
};

// Device calls that the host puts on streams together.
struct SegmentSummary {
  std::size_t calls = 0;
  bool records = false;      // is most of it recorded, and replayed?
  std::string why_not = {};  // why it is not
};

// What the plan for some feed shapes looks like.
struct PlanSummary {
  std::size_t nodes = 0;
  std::size_t calls = 0;           // kernel calls per run: nodes that run, times their shards
  std::size_t clusters = 0;        // units of scheduling; 1 if the program runs inline
  std::size_t lanes = 1;           // threads that can work on one run
  std::int64_t planned_bytes = 0;  // memory for intermediate values
  // The most that is alive at one time, in the plan's order: no plan can need less.
  std::int64_t live_set_bytes = 0;
  double estimated_seconds = 0;  // of one run on one thread
  std::vector<SegmentSummary> segments = {};
};

struct CompileOptions;

class LOCKSTEP_API Program {
 public:
  Program();  // empty: running it throws FailedPrecondition
  ~Program();
  Program(const Program&);
  Program& operator=(const Program&);
  Program(Program&&) noexcept;
  Program& operator=(Program&&) noexcept;

  // Feeds by position, in the order of graph().parameters(). A wrong feed (missing, extra, dtype, shape) is
  // refused before anything runs (InvalidArgument naming the placeholder and what it expects). Throws
  // RunError.
  std::vector<Tensor> run(std::span<const Tensor> feeds = {}, const RunOptions& options = {},
                          SourceSite site = SourceSite::current()) const;
  std::vector<Tensor> run(std::initializer_list<Feed> feeds, const RunOptions& options = {},
                          SourceSite site = SourceSite::current()) const;
  // Feeds by name, put in order for the calls that take them by position.
  std::vector<Tensor> order_feeds(std::initializer_list<Feed> feeds,
                                  SourceSite site = SourceSite::current()) const;
  std::vector<Tensor> order_feeds(std::span<const Feed> feeds, SourceSite site = SourceSite::current()) const;
  // Results into tensors of the right specs, in the order of graph().results(). They must not share memory
  // with feeds or with each other. After an error their contents are unspecified.
  void run_into(std::span<const Tensor> feeds, std::span<Tensor> results, const RunOptions& options = {},
                SourceSite site = SourceSite::current()) const;
  // Runs on the executor. The future throws what run would have thrown. If called inside a node of a run, it
  // goes ahead of other runs that wait for variables, since the node may wait for it. A node that does so keeps
  // its worker meanwhile: where all of them wait like this, nobody is left to run what they wait for.
  std::future<std::vector<Tensor>> run_async(std::vector<Tensor> feeds = {}, const RunOptions& options = {},
                                             SourceSite site = SourceSite::current()) const;
  // `steps` runs on the same feeds, each committing separately; returns the results of the last. RunError
  // says how many committed.
  std::vector<Tensor> run_n(std::uint64_t steps, std::span<const Tensor> feeds = {},
                            const RunOptions& options = {}, SourceSite site = SourceSite::current()) const;
  // The same; `prepare` is given the results before the first step, when they hold nothing yet. Callers that
  // build something from the results do so there: after the last commit nothing can fail any more, and a step
  // that threw can be run again.
  using PrepareResults = std::function<void(const std::vector<Tensor>& results)>;
  std::vector<Tensor> run_n(std::uint64_t steps, std::span<const Tensor> feeds, const RunOptions& options,
                            const PrepareResults& prepare, SourceSite site = SourceSite::current()) const;

  // A run on devices returns when everything of it is on their streams: results are handles that wait when they
  // are read (Tensor::wait), and up to CompileOptions::runs_ahead runs are under way. wait() sleeps until all of
  // them are over, and throws what went wrong in one of them. On CPUs a run is over when it returns.
  void wait(SourceSite site = SourceSite::current()) const;

  // This member of the groups that the graph's nodes name does not run the program this time, for a reason of the caller's: the
  // runs of the other members fail, as they do if a run of this one fails.
  void give_up(const std::exception& why) const;

  const Graph& graph() const;
  const Runtime& runtime() const;
  VariableStore& variables() const;
  // The plan for feeds of these specs (made now if necessary).
  PlanSummary plan(std::span<const TensorSpec> feeds) const;
  PlanSummary plan(std::span<const Tensor> feeds = {}) const;
  // Plans currently kept.
  std::size_t cached_plans() const;

  class Impl;  // for the library only

 private:
  friend LOCKSTEP_API Program compile(Graph graph, const Runtime& runtime, const CompileOptions& options,
                                      SourceSite site);
  // Takes a verified graph whose variables are in options.variables.
  Program(Graph graph, const Runtime& runtime, const CompileOptions& options);
  Impl& impl() const;
  std::shared_ptr<Impl> impl_;
};

}  // namespace lockstep
