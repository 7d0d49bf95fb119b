// tests/support/mistakes.h - what a strategy refuses, and what it says: one row a mistake.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/strategies/mirrored.h"
#include "support/strategy_test.h"

namespace lockstep {

// A mistake, the kind of error and what its message says, the remedy among it.
struct Mistake {
  std::string what;
  std::function<void()> make;
  ErrorCode code;
  std::vector<std::string> says;
};

inline void expect_refused(const std::vector<Mistake>& mistakes) {
  for (const Mistake& mistake : mistakes) {
    SCOPED_TRACE(mistake.what);
    try {
      mistake.make();
      ADD_FAILURE() << "it was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), mistake.code) << error.what();
      for (const std::string& part : mistake.says) EXPECT_THAT(error.what(), ::testing::HasSubstr(part));
    }
  }
}

class StrategyErrors : public ::testing::Test {
 protected:
  // Calls `body` where one replica is traced; where all are, across them; and in an update.
  template <class F>
  std::function<void()> in_replica(F body) {
    return [this, body] { strategy.function({testing::kVector}, [&](Value x) { body(x); }); };
  }
  template <class F>
  std::function<void()> across(F body) {
    return [this, body] {
      strategy.cross_function({testing::kVector}, [&](const PerReplica<Value>& x) { body(x); });
    };
  }

  MirroredStrategy strategy{{.devices = testing::test_devices(3), .optimize = false}};
  MirroredStrategy other{{.devices = testing::test_devices(2), .optimize = false}};
  const Variable w = [this] {
    auto scope = strategy.scope();
    return Variable("w", testing::vec({1, 2}), {.aggregation = Aggregation::kSum});
  }();
  const Variable foreign = [this] {
    auto scope = other.scope();
    return Variable("foreign", testing::vec({1, 2}));
  }();
  const PerReplica<Tensor> per_replica{
      std::vector<Tensor>{testing::vec({1}), testing::vec({2}), testing::vec({3})}};
  const PerReplica<Tensor> mirrored_value =
      mirrored(std::vector<Tensor>{testing::vec({1}), testing::vec({1}), testing::vec({1})});
};

inline constexpr auto kContext = ErrorCode::kFailedPrecondition;
inline constexpr auto kArgument = ErrorCode::kInvalidArgument;

}  // namespace lockstep
