// io/traces/worker_traces.h - what ran when on all workers, in one file and by one clock.
//
//   TraceRecorder recorder;
//   ...                                                                   // on each worker, the same steps
//   const std::string file = gather_chrome_traces(recorder.trace(), strategy);   // on all workers
//   if (strategy.worker().is_chief()) write_file_whole("step.trace.json", file);
//
// In the file each worker is a process with its name, "worker:1". Times are by the clock of the first worker: workers exchange a
// few messages and see by how much their clocks differ, to within the time that the quickest message takes, there and back; the
// file says how much that is (otherData: clocks_differ_by_ns_at_most). Clocks drift apart: call it soon after the steps.
//
// All workers call it at the same point of the program, like a function; a call that fails on one worker fails on all.
#pragma once

#include <string>

#include "lockstep/core/base/export.h"
#include "lockstep/io/traces/trace.h"

namespace lockstep {

class Strategy;

// Of the first worker the whole file (to_chrome_trace), of others an empty text.
LOCKSTEP_API std::string gather_chrome_traces(const Trace& trace, const Strategy& strategy,
                                              const ChromeTraceOptions& options = {});

}  // namespace lockstep
