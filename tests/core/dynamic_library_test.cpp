// Tests: core/dynamic_library.cpp
#include "lockstep/core/dynamic_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(DynamicLibrary, GivesFunctionsAndSaysWhatIsMissing) {
  DynamicLibrary library("libm.so.6");
  double (*cosine)(double) = nullptr;
  library.load(cosine, "cos");
  ASSERT_TRUE(library.found()) << library.found().reason();
  EXPECT_EQ(cosine(0), 1);
  double (*none)(double) = nullptr;
  library.load(none, "cosine_of_something");
  library.load(cosine, "sin");
  EXPECT_EQ(none, nullptr);
  EXPECT_NE(cosine, nullptr);
  EXPECT_EQ(library.found().reason(), "libm.so.6 has no cosine_of_something");
}

TEST(DynamicLibrary, ThatIsNotThereHasNothing) {
  DynamicLibrary library("libthereisnone.so.7");
  double (*function)(double) = nullptr;
  library.load(function, "cos");
  EXPECT_EQ(function, nullptr);
  EXPECT_THAT(library.found().reason(), HasSubstr("libthereisnone.so.7 was not found"));
}

}  // namespace
}  // namespace lockstep
