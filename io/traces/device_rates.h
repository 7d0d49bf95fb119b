// io/traces/device_rates.h - what devices reach: the rates that the calls of a trace are compared with.
//
//   const Trace trace = recorder.trace();
//   std::cout << to_text(summarize(trace, measure_rates(runtime, trace)));      // io/traces/trace_summary.h
//
// Measured by programs with one copy or one product in them, on the device itself, by its own kernels and with the threads of the
// runtime: a copy of more than caches hold; products of square matrices that double until one takes some milliseconds, of which the
// best counts. A rate takes about a tenth of a second. What else the machine does meanwhile takes its share.
//
// Nothing is thrown if a device cannot be measured (it has no memory left, lacks a kernel, or does not say when calls began and
// ended): the rate is then 0. Thread safety: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/runtime.h"
#include "lockstep/io/traces/trace.h"

namespace lockstep {

struct DeviceRates {
  struct Product {
    DType dtype = DType::kF32;
    bool tf32 = false;            // f32 that may be rounded to TF32
    double flops_per_second = 0;  // two for each multiply-add; 0: not known
  };
  std::string device;           // as nodes name it: "gpu:0"
  double bytes_per_second = 0;  // of a copy within its memory, read and written; 0: not known
  std::vector<Product> products = {};
};

struct RateOptions {
  // As of the program that is compared (CompileOptions::allow_tf32).
  bool allow_tf32 = false;
  // Known already, for all devices: not measured. 0: not known.
  double bytes_per_second = 0;
  double flops_per_second = 0;
  // false: what is not known stays so.
  bool measure = true;
  // Rows and columns of the f32 matrix that is copied, fewer if there is no memory for it. 0: 4096 on CPUs, 8192 elsewhere.
  std::int64_t copied_rows = 0;
  std::int64_t most_rows = 8192;  // of the matrices that are multiplied; at least 256
};

// Of one device, and of products of these dtypes.
LOCKSTEP_API DeviceRates measure_rates(const Runtime& runtime, std::string_view device,
                                       const std::vector<DType>& products, const RateOptions& options = {});
// Of each device that calls of the trace ran on, and of the dtypes of the products there. Devices that share a memory, such as the
// logical CPUs of a machine, are measured once. A device that the runtime does not have is left out.
LOCKSTEP_API std::vector<DeviceRates> measure_rates(const Runtime& runtime, const Trace& trace,
                                                    const RateOptions& options = {});

}  // namespace lockstep
