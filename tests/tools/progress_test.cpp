// Tests: tools/progress.cpp
#include "tools/progress.h"

#include <chrono>
#include <future>
#include <sstream>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace lockstep::tools {
namespace {

using std::chrono::milliseconds;

TEST(Progress, SaysHowFarWorkIsAndTakesTheLineAway) {
  std::ostringstream out;
  {
    Progress progress("pass", 3, {&out, true, milliseconds(0)});
    progress.at(2, "fuse-elementwise");
    EXPECT_EQ(out.str(), "\r\x1b[Kpass 2 of 3: fuse-elementwise");
    progress.clear();
    EXPECT_EQ(out.str(), "\r\x1b[Kpass 2 of 3: fuse-elementwise\r\x1b[K");
    progress.clear();  // there is nothing
  }
  EXPECT_EQ(out.str(), "\r\x1b[Kpass 2 of 3: fuse-elementwise\r\x1b[K");
}

TEST(Progress, IsSilentWhereNobodyWatchesAndForShortWork) {
  std::ostringstream out;
  Progress("pass", 3, {&out, false, milliseconds(0)}).at(1);
  Progress("pass", 3, {&out, true, std::chrono::hours(1)}).at(1);
  EXPECT_EQ(out.str(), "");
}

// A stream that tells when something was written.
class Telling : public std::stringbuf {
 public:
  std::promise<std::string> written;

 private:
  int sync() override {
    if (!std::exchange(told_, true)) written.set_value(str());
    return 0;
  }
  bool told_ = false;
};

TEST(Progress, ShowsOnePieceOfLongWorkOfItself) {
  Telling buffer;
  std::ostream out(&buffer);
  Progress progress("drawing", 0, {&out, true, milliseconds(1)});
  progress.at(0, "20000 nodes");
  // Nobody calls it any more.
  EXPECT_EQ(buffer.written.get_future().get(), "\r\x1b[Kdrawing: 20000 nodes");
}

}  // namespace
}  // namespace lockstep::tools
