// io/files/place.cpp - walks a path part by part, as the kernel does, with the check of links in between.
#include "lockstep/io/files/internal/place.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>

namespace lockstep::internal {
namespace {

constexpr int kMostLinks = 40;  // as many as Linux follows

int open_part(int folder, const char* name, int flags, mode_t mode = 0) {
  int descriptor = -1;
  do {
    descriptor = ::openat(folder, name, flags | O_CLOEXEC, mode);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

// The parts of a path, last first. "." and empty parts are left out, except at the end: "a/" and "a/." are
// the folder a.
std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    std::string part = path.substr(begin, end - begin);
    if (part.empty()) part = ".";
    if (part != "." || end == path.size()) parts.push_back(std::move(part));
    begin = end + 1;
  }
  std::ranges::reverse(parts);
  return parts;
}

bool is_of_kernel(int folder) {
  struct statfs facts = {};
  return ::fstatfs(folder, &facts) == 0 && facts.f_type == PROC_SUPER_MAGIC;
}

}  // namespace

void fail_at(std::string_view action, const std::filesystem::path& path, int error) {
  std::string message = str(action, " ", path, ": ", std::generic_category().message(error));
  switch (error) {
    case ENOENT: throw NotFound(std::move(message));
    case EACCES:
    case EPERM:
    case EROFS:
    case EISDIR:
    case ENOTDIR:
    case ENAMETOOLONG:
    case ELOOP: throw FailedPrecondition(std::move(message));
    default: throw Error(ErrorCode::kUnavailable, std::move(message));
  }
}

Decision is_trusted(const struct stat& entry, const struct stat& folder, uid_t user) {
  const bool open_to_all = (folder.st_mode & S_ISVTX) != 0 && (folder.st_mode & S_IWOTH) != 0;
  if (!open_to_all || entry.st_uid == user || entry.st_uid == folder.st_uid) return Decision::yes();
  return Decision::no(
      str("it belongs to another user (", entry.st_uid, ") and lies in a folder where anybody can put one"));
}

Place find_place(const std::filesystem::path& path, std::string_view action) {
  if (path.empty()) fail_at(action, path, ENOENT);
  Place place;
  const auto start_at = [&](const std::string& from) {
    const char* const begin = from.starts_with('/') ? "/" : ".";
    place.folder = Descriptor(open_part(AT_FDCWD, begin, O_PATH | O_DIRECTORY));
    if (place.folder.get() < 0) fail_at(action, path, errno);
    place.path = *begin == '/' ? "/" : "";
  };
  start_at(path.native());
  std::vector<std::string> parts = parts_of(path.native());
  for (int links = 0; !parts.empty();) {
    const std::string part = std::move(parts.back());
    parts.pop_back();
    Descriptor found(open_part(place.folder.get(), part.c_str(), O_PATH | O_NOFOLLOW));
    const int error = errno;
    struct stat facts = {};
    if (found.get() < 0) {
      if (error != ENOENT || !parts.empty()) fail_at(action, path, error);
    } else if (::fstat(found.get(), &facts) != 0) {
      fail_at(action, path, errno);
    }
    place.kernel_link = S_ISLNK(facts.st_mode) && is_of_kernel(place.folder.get());
    if (S_ISLNK(facts.st_mode) && !place.kernel_link) {
      if (++links > kMostLinks) fail_at(action, path, ELOOP);
      struct stat folder = {};
      if (::fstat(place.folder.get(), &folder) != 0) fail_at(action, path, errno);
      if (const Decision decision = is_trusted(facts, folder, ::geteuid()); !decision) {
        throw FailedPrecondition(str(action, " ", path, ": the symbolic link ", place.path / part,
                                     " is not followed: ", decision.reason(),
                                     "; name the file that is meant"));
      }
      std::array<char, PATH_MAX> target{};
      const ssize_t size = ::readlinkat(found.get(), "", target.data(), target.size());
      if (size < 0 || static_cast<std::size_t>(size) == target.size())
        fail_at(action, path, size < 0 ? errno : ENAMETOOLONG);
      const std::string behind(target.data(), static_cast<std::size_t>(size));
      if (behind.starts_with('/')) start_at(behind);
      for (std::string& next : parts_of(behind)) parts.push_back(std::move(next));
      continue;
    }
    if (parts.empty()) {
      place.name = part;
      place.path /= part;
      place.exists = found.get() >= 0;
      place.facts = facts;
      return place;
    }
    if (place.kernel_link) {
      found = Descriptor(open_part(place.folder.get(), part.c_str(), O_PATH | O_DIRECTORY));
      if (found.get() < 0) fail_at(action, path, errno);
    } else if (!S_ISDIR(facts.st_mode)) {
      fail_at(action, path, ENOTDIR);
    }
    place.folder = std::move(found);
    place.path /= part;
  }
  return place;
}

int open_at(const Place& place, int flags, mode_t mode) {
  return open_part(place.folder.get(), place.name.c_str(), flags | (place.kernel_link ? 0 : O_NOFOLLOW),
                   mode);
}

}  // namespace lockstep::internal
