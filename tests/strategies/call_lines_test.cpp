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
using testing::cpus;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kScalar;
using ::testing::Not;
using testing::scalars;
using testing::vec;

class CallLines : public ::testing::Test {
 protected:
  MirroredStrategy strategy_{{.devices = cpus(2)}};
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

}  // namespace
}  // namespace lockstep
