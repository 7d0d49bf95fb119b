// io/state/series_lock.cpp - one writer at a time for a name in a folder.
#include "lockstep/io/state/internal/series_lock.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <string_view>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {
namespace {

constexpr std::string_view kLockAction = "cannot lock";

constexpr std::string_view kGeneration = ", generation ";

// The contents of the file: "1234 (train)", "1234 (train), generation 2".
std::string this_process(int generation) {
  std::string command;
  std::getline(std::ifstream("/proc/self/comm"), command);
  std::string text = command.empty() ? str(::getpid()) : str(::getpid(), " (", command, ")");
  if (generation > 0) text += str(kGeneration, generation);
  return text;
}

int generation_in(std::string_view holder) {
  const std::size_t at = holder.rfind(kGeneration);
  int generation = 0;
  if (at == std::string_view::npos) return 0;
  holder.remove_prefix(at + kGeneration.size());
  std::from_chars(holder.data(), holder.data() + holder.size(), generation);
  return generation;
}

std::string holder_in(int file) {
  std::array<char, 64> text{};
  const ssize_t size = ::pread(file, text.data(), text.size(), 0);
  return printable(std::string_view(text.data(), size > 0 ? static_cast<std::size_t>(size) : 0));
}

bool is_same_file(int file, const Place& place) {
  struct stat opened = {}, named = {};
  return ::fstat(file, &opened) == 0 &&
         ::fstatat(place.folder.get(), place.name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

}  // namespace

SeriesLock::SeriesLock(const std::filesystem::path& folder, const std::string& name, int generation)
    : place_(find_place(folder / str(".", name, ".lock"), kLockAction)) {
  do {
    file_ = Descriptor(open_at(place_, O_RDWR | O_CREAT, 0600));
    if (file_.get() < 0) fail_at(kLockAction, place_.path, errno);
    int locked = 0;
    do {
      locked = ::flock(file_.get(), LOCK_EX | LOCK_NB);
    } while (locked != 0 && errno == EINTR);
    if (locked != 0 && errno == EWOULDBLOCK) {
      const std::string mine = this_process(generation), holder = holder_in(file_.get());
      if (generation > generation_in(holder)) {
        if (is_same_file(file_.get(), place_)) ::unlinkat(place_.folder.get(), place_.name.c_str(), 0);
        continue;
      }
      throw FailedPrecondition(
          str("checkpoint folder ", folder, ": ",
              holder.empty()   ? "another process"
              : holder == mine ? str("this process, ", mine, ", already")
                               : str("process ", holder),
              " writes the checkpoints '", name,
              "' there; end it first, or write to another folder or under another name"));
    }
    // The previous holder may have removed the file in between: then another file has the name.
  } while (!is_same_file(file_.get(), place_));
  const std::string text = this_process(generation);
  if (::ftruncate(file_.get(), 0) == 0) (void)!::pwrite(file_.get(), text.data(), text.size(), 0);
}

SeriesLock::~SeriesLock() {
  if (is_same_file(file_.get(), place_)) ::unlinkat(place_.folder.get(), place_.name.c_str(), 0);
}

}  // namespace lockstep::internal
