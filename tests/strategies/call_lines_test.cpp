// Tests: strategies/trace/building.cpp, strategies/trace/values.h, strategies/trace/function.h,
//        strategies/trace/variable.cpp, strategies/trace/variable_now.cpp, strategies/mirrored.cpp,
//        strategies/strategy.h, core/error.cpp
// Errors name the line of the call that is refused, and of variables the line where they were made.
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/io/state/checkpoint.h"
#include "lockstep/strategies/central_storage.h"
#include "lockstep/strategies/make_strategy.h"
#include "lockstep/strategies/mirrored.h"
#include "lockstep/strategies/one_device.h"
#include "lockstep/strategies/trace/building.h"
#include "support/strategy_test.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kScalar;
using ::testing::Not;
using testing::scalars;
using testing::test_devices;
using testing::vec;

struct Refused {
  std::string what;
  std::function<void()> call;
  std::string says;
};

// The line is one of this file, so it is the caller's.
void expect_lines(const std::vector<Refused>& calls) {
  for (const Refused& refused : calls) {
    SCOPED_TRACE(refused.what);
    try {
      refused.call();
      ADD_FAILURE() << "it was accepted";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(refused.says), HasSubstr("call_lines_test.cpp:")));
      EXPECT_EQ(error.place().file, SourceSite::current().file) << error.what();
      EXPECT_NE(error.place().line, 0U);
    }
  }
}

class CallLines : public ::testing::Test {
 protected:
  MirroredStrategy strategy_{{.devices = test_devices(2)}};
};

// --- variables

TEST_F(CallLines, ErrorsOfAVariableNameWhereItWasMadeAndWhereItWasCalled) {
  const std::string file = SourceSite::current().file;
  const auto scope = strategy_.scope();
  const std::string made = str("made at ", file, ":", __LINE__ + 1);
  const Variable w("w", vec({1, 2}));
  const Variable own("own", vec({1, 2}), {.synchronization = Synchronization::kOnRead});
  const auto at = [&](std::uint32_t line) {
    return AllOf(HasSubstr(made), HasSubstr(str("called at ", file, ":", line)));
  };
  std::uint32_t line = __LINE__ + 1;
  EXPECT_THAT(error_of([&] { w.read(); }), at(line));
  line = __LINE__ + 1;
  EXPECT_THAT(error_of([&] { w.assign(vec({1})); }), at(line));
  line = __LINE__ + 1;
  EXPECT_THAT(error_of([&] { w.assign_add(Tensor::scalar(1)); }), at(line));
  const auto traced = [&](const auto& body) {
    return error_of([&] { strategy_.function({kScalar}, [&](Value x) { body(x); }); });
  };
  line = __LINE__ + 1;
  EXPECT_THAT(traced([&](Value x) { w.assign(x); }), at(line));
  line = __LINE__ + 1;
  EXPECT_THAT(traced([&](Value) { w.value(); }), at(line));
  line = __LINE__ + 1;
  EXPECT_THAT(traced([&](Value) { w.assign(vec({1, 2})); }), at(line));
  line = __LINE__ + 1;
  EXPECT_THAT(traced([&](Value) { w.scatter_add(Value(), Value()); }), at(line));
  line = __LINE__ + 1;
  const std::string no_value = error_of([&] { own.value(); });
  EXPECT_THAT(no_value, HasSubstr(str("called at ", file, ":", line)));
  EXPECT_THAT(no_value, Not(HasSubstr(str("made at ", file, ":", line))));
}

TEST_F(CallLines, AVariableThatIsMadeWronglyIsMadeThere) {
  const auto scope = strategy_.scope();
  const std::uint32_t line = __LINE__ + 1;
  const std::string error = error_of([&] { Variable("w", Tensor()); });
  EXPECT_THAT(error, HasSubstr(str("made at ", SourceSite::current().file, ":", line)));
  EXPECT_THAT(error, Not(HasSubstr("called at")));
}

// --- values and results

TEST_F(CallLines, Values) {
  const PerReplica<Tensor> two = scalars({1, 2}), none;
  const auto result = strategy_.run([] { return replica_context().replica_id(); });
  expect_lines({
      {"constant()", [] { constant(1.F); }, "constant() called at"},
      {"name_scope()", [] { const auto guard = name_scope("layer"); }, "name_scope() called at"},
      {"a slot too far", [&] { two[5]; }, "no replica 5; the value has 2 (PerReplica::operator[] called at"},
      {"a slot below", [&] { two[-1]; }, "no replica -1; the value has 2"},
      {"of nothing", [&] { none[0]; }, "no replica 0: the value is empty"},
      {"no slots", [] { PerReplica<Tensor>(std::vector<Tensor>()); }, "PerReplica called at"},
      {"mirrored without slots", [] { mirrored(std::vector<Tensor>()); }, "at least one slot"},
      {"the other kind", [&] { result.traced(); }, "the result holds tensors"},
      {"by conversion", [&] { static_cast<void>(static_cast<const PerReplica<Value>&>(result)); },
       "the result holds tensors"},
      {"of a slot", [&] { result[0].traced(); }, "the result holds tensors"},
      {"a slot of a result", [&] { result[2]; }, "no replica 2"},
      {"a local result", [&] { Strategy::local_results(result)[2]; }, "no item 2; the list has 2"},
      {"a Value's slot",
       [&] { strategy_.cross_function({kScalar}, [](const PerReplica<Value>& x) { return x[5]; }); },
       "no replica 5"},
  });
}

// --- strategies

TEST_F(CallLines, Strategies) {
  expect_lines({
      {"a device twice",
       [] {
         MirroredStrategy({.devices = {"cpu:0", "cpu:0"}});
       },
       "listed twice"},
      {"in text", [] { make_strategy("mirrored(devices=[cpu:0,cpu:0])"); }, "make_strategy() called at"},
      {"unknown in text", [] { make_strategy("one-device(device=abacus:0)"); }, "make_strategy() called at"},
      {"a parameter device", [] { CentralStorageStrategy({}, "cpu:x"); }, "cpu:x"},
      {"a device that is none", [] { OneDeviceStrategy("nowhere"); }, "nowhere"},
      {"a pass that is none",
       [] { MirroredStrategy({.devices = test_devices(1), .step_passes = "no-such-pass"}); }, "no-such-pass"},
      {"a variable that drifts",
       [] {
         MirroredStrategy loose({.devices = test_devices(2), .may_drift = {"nothing"}});
         loose.function({kScalar}, [](Value x) { return x; });
       },
       "function() called at"},
  });
}

// --- many arguments

TEST_F(CallLines, ManyArguments) {
  const PerReplica<Tensor> x = scalars({1, 2});
  const auto spec = [](const char* name) { return InputSpec(DType::kF32, Shape{}, name); };
  const auto sum =
      strategy_.function({spec("a"), spec("b"), spec("c"), spec("d"), spec("e")},
                         [](Value a, Value b, Value c, Value d, Value e) { return a + b + c + d + e; });
  EXPECT_EQ(sum(x, x, x, x, Tensor::scalar(1.F))[1].item(), 9);
  EXPECT_EQ(sum(x, std::pair(x, x), x, x)[1].item(), 10);
  const auto add6 = [](Value a, Value b, Value c, Value d, Value e, Value f) {
    return a + b + c + d + e + f;
  };
  EXPECT_EQ(strategy_.run(add6, x, x, x, x, x, x)[1].item(), 12);
  expect_lines({
      {"too few", [&] { sum(x, x, x, x); }, "takes 5 values, got 4"},
      {"another shape",
       [&] {
         sum(x, x, x, x, vec({1, 2}));
       },
       "e"},
      {"too many of run", [&] { strategy_.run([](Value v) { return v; }, x, x, x, x, x); }, "got 5"},
  });
  const auto scope = strategy_.scope();
  const Variable w("w", Tensor::scalar(0.F));
  const auto f = strategy_.cross_function({kScalar}, [&](const PerReplica<Value>& v) {
    const Value all = strategy_.reduce(ReduceOp::kSum, v);
    strategy_.update(
        w, [](const Variable& copy, Value a, Value b, Value c, Value d) { copy.assign_add(a + b + c + d); },
        all, all, all, all);
  });
  f(x);
  EXPECT_EQ(w.value().item(), 12);
  const auto merged = strategy_.function({kScalar}, [](Value v) {
    return replica_context().merge_call(
        [](Strategy& s, const PerReplica<Value>& a, const PerReplica<Value>& b, const PerReplica<Value>& c,
           const PerReplica<Value>& d) { return s.reduce(ReduceOp::kSum, a + b + c + d); },
        v, v, v, v);
  });
  EXPECT_EQ(merged(x)[0].item(), 12);
}

// --- state

TEST_F(CallLines, State) {
  const TemporaryFolder folder;
  VariableStore& store = strategy_.variables();
  const Variable gone = [&] {
    const auto scope = strategy_.scope();
    const Variable w("w", vec({1, 2}));
    return Variable("gone", vec({1, 2}));
  }();
  store.erase("gone");
  save_checkpoint(store, folder / "a.lkc");
  VariableStore empty;
  const auto step = strategy_.function({kScalar}, [](Value x) { return x; });
  const Program& program = step.program();
  expect_lines({
      {"erase", [&] { store.erase("v"); }, "VariableStore::erase() called at"},
      {"reset", [&] { store.reset("v"); }, "VariableStore::reset() called at"},
      {"replace", [&] { store.replace("v", vec({1})); }, "VariableStore::replace() called at"},
      {"by nothing", [&] { store.replace("w", Tensor()); }, "the new value is empty"},
      {"value", [&] { store.value("v"); }, "VariableStore::value() called at"},
      {"set", [&] { store.set("w", vec({1})); }, "VariableStore::set() called at"},
      {"committed", [&] { store.committed("v"); }, "VariableStore::committed() called at"},
      {"value of a handle", [&] { gone.value(); }, "variable 'gone'"},
      {"role", [&] { store.role("v"); }, "VariableStore::role() called at"},
      {"restore", [&] { restore_checkpoint(empty, folder / "a.lkc"); }, "restore_checkpoint() called at"},
      {"no file", [&] { restore_checkpoint(store, folder / "b.lkc"); }, "restore_checkpoint() called at"},
      {"too few feeds", [&] { program.run(); }, "got 0 feeds"},
      {"by name",
       [&] {
         program.run({{"y", Tensor::scalar(1.F)}});
       },
       "y"},
      {"later", [&] { program.run_async(); }, "Program::run_async() called at"},
  });
}

}  // namespace
}  // namespace lockstep
