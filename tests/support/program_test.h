// tests/support/program_test.h - small things that tests of programs share.
#pragma once

#include <exception>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/run/program.h"

namespace lockstep::testing {

inline Tensor vec(std::initializer_list<float> values) {
  return Tensor::from<float>({static_cast<std::int64_t>(values.size())}, values);
}

inline std::vector<float> floats(const Tensor& tensor) {
  const std::span<const float> values = tensor.data<float>();
  return {values.begin(), values.end()};
}

inline std::vector<Tensor> list(std::initializer_list<Tensor> tensors) { return tensors; }

// The error that a call throws, with its kind; none is a failure.
struct Caught {
  std::optional<ErrorCode> code;
  std::string what;
  ErrorPlace place;
  bool run_error = false;
  std::uint64_t committed = 0;
  std::string nested;  // what() of the exception directly inside
};

template <class F>
Caught caught(F&& f) {
  Caught result;
  try {
    f();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    result.code = error.code();
    result.what = error.what();
    result.place = error.place();
    if (const auto* run = dynamic_cast<const RunError*>(&error)) {
      result.run_error = true;
      result.committed = run->committed_steps();
    }
    try {
      std::rethrow_if_nested(error);
    } catch (const std::exception& inner) {
      result.nested = inner.what();
    } catch (...) {
      result.nested = "not a std::exception";
    }
  }
  return result;
}

// Programs that use tasks however small they are.
inline CompileOptions with_lanes(Clustering clustering = Clustering::kByCost) {
  CompileOptions options;
  options.clustering = clustering;
  options.inline_seconds = 0;
  return options;
}

using Values = std::map<std::string, Tensor>;

inline Values variables_of(VariableStore& store) {
  Values values;
  for (const std::string& name : store.names()) values[name] = store.value(name);
  return values;
}

inline void expect_same_tensors(std::span<const Tensor> actual, std::span<const Tensor> expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(actual[i].bit_equal(expected[i]))
        << "result " << i << " is " << actual[i] << ", not " << expected[i];
  }
}

inline void expect_same_values(const Values& actual, const Values& expected) {
  for (const auto& [name, value] : expected) {
    const auto found = actual.find(name);
    ASSERT_NE(found, actual.end()) << name;
    EXPECT_TRUE(found->second.bit_equal(value)) << name << " is " << found->second << ", not " << value;
  }
}

}  // namespace lockstep::testing
