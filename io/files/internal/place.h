// io/files/internal/place.h - where a path leads, link by link.
//
// Anybody can put a symbolic link into a folder like /tmp, under a name that somebody else is about to read
// or write. In such a folder (sticky, and writable by all) a link is followed only if it belongs to the user
// who follows it or to the owner of the folder. Linux has the same rule (fs.protected_symlinks), but not
// every machine has it switched on. The rule holds for every link on the way, not only for the last one.
//
// The result is an open folder and a name in it, so that nobody can change the way there between the check
// and the use: open it with openat() and O_NOFOLLOW.
//
// failure   as io/files/files.h; a link that is not followed is FailedPrecondition and is named.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/core/base/export.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {

// Owns a file descriptor and closes it.
class Descriptor {
 public:
  explicit Descriptor(int value = -1) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

struct Place {
  Descriptor folder;           // for finding names in it (O_PATH)
  std::string name;            // "." if the path names the folder itself
  std::filesystem::path path;  // the same as text, after links
  bool exists = false;
  struct stat facts = {};  // if it exists
  bool kernel_link =
      false;  // a link below /proc: it stands for something open, and only the kernel can follow it
};

// `action` begins the message of errors: "cannot read". It is not an error if the last part does not exist.
Place find_place(const std::filesystem::path& path, std::string_view action);

// Opens the place: openat() with O_CLOEXEC, and O_NOFOLLOW unless the kernel has to follow. -1 and errno on
// failure.
int open_at(const Place& place, int flags, mode_t mode = 0);

// May a process of this user trust an entry of a folder: follow it if it is a link, take over its owner and
// mode if it is a file?
LOCKSTEP_API Decision is_trusted(const struct stat& entry, const struct stat& folder, uid_t user);

// Throws the kind of error that fits `error` (an errno): "<action> <path>: <why>".
[[noreturn]] void fail_at(std::string_view action, const std::filesystem::path& path, int error);

}  // namespace lockstep::internal
