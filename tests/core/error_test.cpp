// Tests: core/error.cpp
#include "lockstep/core/error.h"

#include <exception>
#include <locale>
#include <stdexcept>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(Error, WhatIsCodeMessageAndPlace) {
  const Error error(ErrorCode::kInvalidArgument, "matmul: inner dimensions differ: f32[2,3] x f32[4,5]",
                    {.node = "layer_1/matmul", .op = "", .device = "", .file = "model.cpp", .line = 42});
  EXPECT_STREQ(error.what(),
               "InvalidArgument: matmul: inner dimensions differ: f32[2,3] x f32[4,5] "
               "(node 'layer_1/matmul' made at model.cpp:42)");
  EXPECT_EQ(error.message(), "matmul: inner dimensions differ: f32[2,3] x f32[4,5]");
  EXPECT_EQ(error.place().line, 42U);
}

TEST(Error, WithoutAPlaceWhatEndsWithTheMessage) {
  EXPECT_STREQ(Error(ErrorCode::kUnavailable, "gone").what(), "Unavailable: gone");
}

TEST(Error, NamesEveryPartOfThePlace) {
  const Error error(
      ErrorCode::kCancelled, "stopped",
      {.node = "n", .op = "square", .device = "gpu:1", .file = "a.cpp", .line = 0, .replica = 3});
  EXPECT_STREQ(error.what(), "Cancelled: stopped (node 'n' op square on gpu:1 in replica 3 made at a.cpp)");
}

TEST(Error, NamesACallAndWhatItWasCalledFor) {
  EXPECT_STREQ(InvalidArgument("no", place_of_call("reduce()", {"a.cpp", "main", 4})).what(),
               "InvalidArgument: no (reduce() called at a.cpp:4)");
  ErrorPlace place{"w", "Variable", {}, "a.cpp", 4};
  place.called = true;
  place.made_at = "b.cpp:9";
  EXPECT_STREQ(InvalidArgument("no", place).what(),
               "InvalidArgument: no (node 'w' op Variable made at b.cpp:9 called at a.cpp:4)");
}

TEST(Error, GetsTheLineOfTheCallThatItLeavesByIfItKnowsNone) {
  const auto thrown = [](const ErrorPlace& place, const SourceSite& site) -> std::string {
    try {
      named_call("run()", site, [&] { throw NotFound("no", place); });
    } catch (const NotFound& error) {  // the kind stays
      return error.what();
    }
    return "nothing";
  };
  EXPECT_EQ(thrown({}, {"a.cpp", "main", 4}), "NotFound: no (run() called at a.cpp:4)");
  EXPECT_EQ(thrown({"n", "add", {}, {}}, {"a.cpp", "main", 4}),
            "NotFound: no (node 'n' op add called at a.cpp:4)");
  EXPECT_EQ(thrown({"n", {}, {}, "b.cpp", 7}, {"a.cpp", "main", 4}),
            "NotFound: no (node 'n' made at b.cpp:7)");
  EXPECT_EQ(thrown({}, {}), "NotFound: no");
  EXPECT_EQ(named_call("run()", {"a.cpp", "main", 4}, [] { return 3; }), 3);
}

TEST(Error, EveryCodeHasAName) {
  EXPECT_EQ(to_string(ErrorCode::kInvalidArgument), "InvalidArgument");
  EXPECT_EQ(to_string(ErrorCode::kFailedPrecondition), "FailedPrecondition");
  EXPECT_EQ(to_string(ErrorCode::kNotFound), "NotFound");
  EXPECT_EQ(to_string(ErrorCode::kUnavailable), "Unavailable");
  EXPECT_EQ(to_string(ErrorCode::kDeadlineExceeded), "DeadlineExceeded");
  EXPECT_EQ(to_string(ErrorCode::kDataLoss), "DataLoss");
  EXPECT_EQ(to_string(ErrorCode::kCancelled), "Cancelled");
  EXPECT_EQ(to_string(ErrorCode::kUnimplemented), "Unimplemented");
  EXPECT_EQ(to_string(ErrorCode::kInternal), "Internal");
}

TEST(Error, KindsCarryTheirCode) {
  EXPECT_EQ(InvalidArgument("x").code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(FailedPrecondition("x").code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(NotFound("x").code(), ErrorCode::kNotFound);
}

TEST(Error, ACopyKeepsEverything) {
  const NotFound error("no such thing", {.node = "n", .op = "", .device = "", .file = ""});
  const Error copy = error;
  EXPECT_STREQ(copy.what(), error.what());
  EXPECT_EQ(copy.place().node, "n");
  EXPECT_EQ(copy.code(), ErrorCode::kNotFound);
}

TEST(Describe, OfAPlainErrorIsItsText) { EXPECT_EQ(describe(std::runtime_error("alone")), "alone"); }

TEST(Describe, JoinsWhatIsNestedInnermostLast) {
  try {
    try {
      try {
        throw std::runtime_error("disk is full");
      } catch (...) {
        std::throw_with_nested(Error(ErrorCode::kDataLoss, "cannot write"));
      }
    } catch (...) {
      std::throw_with_nested(InvalidArgument("save failed"));
    }
  } catch (const std::exception& error) {
    EXPECT_EQ(describe(error),
              "InvalidArgument: save failed: caused by: DataLoss: cannot write: caused by: disk is full");
    return;
  }
  FAIL() << "nothing was thrown";
}

TEST(Describe, SurvivesANestedObjectThatIsNoException) {
  try {
    try {
      throw 7;
    } catch (...) {
      std::throw_with_nested(InvalidArgument("outer"));
    }
  } catch (const std::exception& error) {
    EXPECT_EQ(describe(error), "InvalidArgument: outer: caused by: something that is not a std::exception");
    return;
  }
  FAIL() << "nothing was thrown";
}

TEST(Str, JoinsItsArguments) { EXPECT_EQ(str("expected ", 3, " inputs"), "expected 3 inputs"); }

TEST(Decision, IsAYesOrANoWithItsReason) {
  EXPECT_TRUE(static_cast<bool>(Decision::yes()));
  const Decision no = Decision::no("too small");
  EXPECT_FALSE(static_cast<bool>(no));
  EXPECT_EQ(no.reason(), "too small");
}

TEST(Check, PassesInSilence) { EXPECT_NO_THROW(LOCKSTEP_CHECK(1 + 1 == 2, "arithmetic")); }

TEST(Check, ThrowsAnInternalErrorThatSaysWhatAndWhere) {
  const int have = 3;
  try {
    LOCKSTEP_CHECK(have == 4, "have ", have);
    FAIL() << "the check passed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_THAT(error.message(), HasSubstr("check failed: have == 4: have 3"));
    EXPECT_THAT(error.message(), HasSubstr("error_test.cpp:"));
    EXPECT_THAT(error.message(), HasSubstr("bug in Lockstep"));
  }
}

TEST(Check, NeedsNoMessage) {
  try {
    LOCKSTEP_CHECK(false);
    FAIL() << "the check passed";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("check failed: false ("));
  }
}

TEST(SourceSite, IsTheCallersLine) {
  const SourceSite site = SourceSite::current();
  EXPECT_EQ(site.line, static_cast<std::uint32_t>(__LINE__ - 1));
  EXPECT_THAT(site.file, HasSubstr("error_test.cpp"));
  EXPECT_TRUE(site.known());
  EXPECT_FALSE(SourceSite{}.known());
}

TEST(Error, IsThrownAsTheKindOfItsCode) {
  EXPECT_THROW(throw_error(ErrorCode::kInvalidArgument, "x"), InvalidArgument);
  EXPECT_THROW(throw_error(ErrorCode::kFailedPrecondition, "x"), FailedPrecondition);
  EXPECT_THROW(throw_error(ErrorCode::kNotFound, "x"), NotFound);
  ErrorPlace place;
  place.node = "n";
  try {
    throw_error(ErrorCode::kDataLoss, "half a file", place);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
    EXPECT_EQ(error.message(), "half a file");
    EXPECT_EQ(error.place().node, "n");
  }
}

TEST(Str, WritesNumbersAlikeWhateverTheLocale) {
  struct Grouped : std::numpunct<char> {
    char do_thousands_sep() const override { return '.'; }
    char do_decimal_point() const override { return ','; }
    std::string do_grouping() const override { return "\3"; }
  };
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Grouped));
  const std::string text = str(1234567, " ", 0.5);
  std::locale::global(before);
  EXPECT_EQ(text, "1234567 0.5");
}

}  // namespace
}  // namespace lockstep
