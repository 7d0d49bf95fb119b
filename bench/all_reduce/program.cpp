// Lockstep: an all_reduce inside a compiled program, between what makes the arrays of the replicas and what
// reads the sums.
//
//   replica_0 -.             .-> reader        `copied`: all_reduce, a sum for every replica
//   replica_1 --> the sum ---'                 `shared`: reduce_replicas, one sum for all
//
// The nodes around it do nothing; a program without the node says what they cost.
#include <algorithm>
#include <map>
#include <stdexcept>
#include <thread>

#include "lockstep/core/kernels/reduce_replicas.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ir/kernel.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/run/compile.h"
#include "rivals.h"

namespace lockstep::bench {
namespace {

class ProgramRival final : public Rival {
 public:
  ProgramRival(int participants, ProgramKind kind)
      : participants_(participants),
        kind_(kind),
        runtime_({.threads = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1,
                                                     static_cast<std::size_t>(participants))}) {}

  std::string name() const override {
    switch (kind_) {
      case ProgramKind::kCopied: return "node, copied";
      case ProgramKind::kShared: return "node, shared";
      case ProgramKind::kWithout: return "no node";
    }
    return "";
  }
  bool in_place() const override { return false; }

  void run(std::int64_t floats, std::size_t times) override {
    const auto [found, fresh] = programs_.try_emplace(floats);
    if (fresh) found->second = make(floats);
    filling_ = checking_ = fresh;
    for (std::size_t i = 0; i < times; ++i) {
      found->second.run_into({}, {});
      filling_ = checking_ = false;
    }
  }

 private:
  Program make(std::int64_t floats) {
    GraphBuilder builder;
    const TensorSpec spec{DType::kF32, {floats}};
    std::vector<Value> values;
    for (int p = 0; p < participants_; ++p) {
      const auto fill = [this, p, floats](KernelContext& c) {
        if (filling_) std::fill_n(static_cast<float*>(c.output(0)), floats, static_cast<float>(p + 1));
      };
      values.push_back(builder.call("replica_" + std::to_string(p), {}, {&spec, 1}, fill)[0]);
    }
    const auto replicas = static_cast<std::int64_t>(participants_);
    const float wanted =
        kind_ == ProgramKind::kWithout ? 0 : static_cast<float>(replicas * (replicas + 1) / 2);
    if (kind_ == ProgramKind::kShared) values = {reduce_replicas(ReduceOp::kSum, values)};
    if (kind_ == ProgramKind::kCopied)
      values = builder.op("all_reduce", values, {{"reduce", std::string("sum")}, {"replicas", replicas}});
    builder.call("reader", values, {}, [this, floats, wanted, count = values.size()](KernelContext& c) {
      if (!checking_ || wanted == 0) return;
      for (std::size_t i = 0; i < count; ++i) {
        const auto* sum = static_cast<const float*>(c.input(i));
        if (!std::all_of(sum, sum + floats, [wanted](float x) { return x == wanted; }))
          throw std::runtime_error(name() + ": wrong sum");
      }
    });
    return compile(builder.finish(), runtime_);
  }

  int participants_;
  ProgramKind kind_;
  Runtime runtime_;
  bool filling_ = false, checking_ = false;
  std::map<std::int64_t, Program> programs_;
};

class SumAlone final : public Rival {
 public:
  SumAlone(const Arrays& arrays, ProgramKind kind) : kind_(kind) {
    for (int p = 0; p < arrays.participants(); ++p) {
      inputs_.push_back(arrays[p]);
      if (p == 0 || kind == ProgramKind::kCopied) outputs_.push_back(arrays[p]);
    }
  }
  std::string name() const override {
    return kind_ == ProgramKind::kCopied ? "sum alone, copied" : "sum alone, shared";
  }
  bool in_place() const override { return kind_ == ProgramKind::kCopied; }
  void run(std::int64_t floats, std::size_t times) override {
    for (std::size_t i = 0; i < times; ++i)
      kernels::reduce_replicas(ReplicaReduce::kSum, DType::kF32, inputs_, outputs_, 0, floats);
  }

 private:
  ProgramKind kind_;
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
};

}  // namespace

std::unique_ptr<Rival> make_sum_alone(const Arrays& arrays, ProgramKind kind) {
  return std::make_unique<SumAlone>(arrays, kind);
}

std::unique_ptr<Rival> make_program(int participants, ProgramKind kind) {
  return std::make_unique<ProgramRival>(participants, kind);
}

}  // namespace lockstep::bench
