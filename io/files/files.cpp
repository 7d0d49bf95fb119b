// io/files/files.cpp - whole files in, whole files out.
#include "lockstep/io/files/files.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/io/files/internal/input_file.h"
#include "lockstep/io/files/internal/place.h"

namespace lockstep {
namespace {

constexpr std::string_view kTemporary = ".tmp-";

using internal::Descriptor;
using internal::fail_at;
using internal::Place;

void sync(int descriptor, const std::filesystem::path& path) {
  // Some file systems cannot sync folders and say so (EINVAL); nothing more can be done on them.
  if (::fsync(descriptor) != 0 && errno != EINVAL) fail_at("cannot sync", path, errno);
}

// `folder` may be open only for finding names in it (O_PATH), and such a descriptor cannot be synced itself.
void sync_folder(int folder, const std::filesystem::path& path) {
  const Descriptor opened(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.get() < 0) fail_at("cannot sync", path, errno);
  sync(opened.get(), path);
}

std::string temporary_name(const std::string& name) {
  static std::atomic<std::uint64_t> number{0};
  return str(".", name, kTemporary, ::getpid(), "-", number.fetch_add(1));
}

// Gives the new file the owner, group and mode of the file that it replaces. If the owner or group cannot be
// kept, nobody gains access: a different group gets no more than everybody had.
void keep_owner_and_mode(int descriptor, const struct stat& replaced, const std::filesystem::path& path) {
  struct stat own = {};
  if (::fstat(descriptor, &own) != 0) fail_at("cannot write", path, errno);
  mode_t mode = replaced.st_mode & 0777U;
  // Owner and group separately: a user who may not give a file away may still give it to one of their groups.
  if (own.st_uid != replaced.st_uid) (void)::fchown(descriptor, replaced.st_uid, static_cast<gid_t>(-1));
  if (own.st_gid != replaced.st_gid && ::fchown(descriptor, static_cast<uid_t>(-1), replaced.st_gid) != 0)
    mode = (mode & 0707U) | ((mode & 0007U) << 3U & mode);
  if (::fchmod(descriptor, mode) != 0) fail_at("cannot write", path, errno);
}

// Is there anything at this path?
bool is_there(const std::filesystem::path& path, std::string_view action) {
  try {
    return internal::find_place(path, action).exists;
  } catch (const NotFound&) {
    return false;
  }
}

}  // namespace

std::string read_file(const std::filesystem::path& path, const ReadLimits& limits) {
  return internal::InputFile(path, internal::InputFile::Accepts::kAnything).read_rest(limits);
}

std::string read_standard_input(const ReadLimits& limits) {
  return internal::InputFile::standard_input().read_rest(limits);
}

void make_folders(const std::filesystem::path& folder) {
  constexpr std::string_view kAction = "cannot make the folder";
  std::vector<std::filesystem::path> missing;
  for (std::filesystem::path at = folder; !at.empty() && !is_there(at, kAction); at = at.parent_path())
    missing.push_back(at);
  for (; !missing.empty(); missing.pop_back()) {
    const Place place = internal::find_place(missing.back(), kAction);
    // Another process may make the folder first.
    if (::mkdirat(place.folder.get(), place.name.c_str(), 0777) != 0 && errno != EEXIST)
      fail_at(kAction, missing.back(), errno);
    sync_folder(place.folder.get(), place.path.parent_path());
  }
  if (!S_ISDIR(internal::find_place(folder, kAction).facts.st_mode)) fail_at(kAction, folder, ENOTDIR);
}

WholeFile::WholeFile(const std::filesystem::path& path, NewFile kind) {
  if (path.filename().empty()) {
    throw InvalidArgument(str("cannot write ", path, ": the path names no file; give it a file name"));
  }
  Place place = internal::find_place(path, "cannot write");
  path_ = std::move(place.path);
  if (place.exists && S_ISDIR(place.facts.st_mode)) fail_at("cannot write", path, EISDIR);
  if (place.exists && !S_ISREG(place.facts.st_mode)) {
    descriptor_ = internal::open_at(place, O_WRONLY | O_APPEND);
    if (descriptor_ < 0) fail_at("cannot write", path_, errno);
    return;
  }
  // A file that replaces another is for its writer alone until it has the permissions of that file.
  const mode_t mode = place.exists || kind == NewFile::kPrivate ? 0600 : 0666;
  // Process numbers repeat: a file left by a killed process may have this name.
  do {
    temporary_ = temporary_name(place.name);
    descriptor_ =
        ::openat(place.folder.get(), temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  } while (descriptor_ < 0 && (errno == EEXIST || errno == EINTR));
  if (descriptor_ < 0) fail_at("cannot write", path_, errno);
  name_ = std::move(place.name);
  folder_ = place.folder.release();
}

WholeFile::~WholeFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
    if (!temporary_.empty()) ::unlinkat(folder_, temporary_.c_str(), 0);
  }
  if (folder_ >= 0) ::close(folder_);
}

void WholeFile::append(std::string_view bytes) {
  LOCKSTEP_CHECK(descriptor_ >= 0, "append after commit of ", path_);
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_at("cannot write", path_, errno);
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

void WholeFile::commit() {
  LOCKSTEP_CHECK(descriptor_ >= 0, "second commit of ", path_);
  const bool replaces = !temporary_.empty();
  const std::filesystem::path parent = path_.parent_path();  // once the file is replaced nothing allocates
  if (replaces) {
    struct stat old = {}, folder = {};
    if (::fstat(folder_, &folder) != 0) fail_at("cannot write", path_, errno);
    // A stranger may have put a file there first, in order to own the new one.
    if (::fstatat(folder_, name_.c_str(), &old, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(old.st_mode) &&
        internal::is_trusted(old, folder, ::geteuid()))
      keep_owner_and_mode(descriptor_, old, path_);
    sync(descriptor_, path_);
    if (::renameat(folder_, temporary_.c_str(), folder_, name_.c_str()) != 0)
      fail_at("cannot replace", path_, errno);
  }
  const int closed = ::close(std::exchange(descriptor_, -1));
  if (closed != 0 && errno != EINTR) fail_at("cannot write", path_, errno);
  if (replaces) sync_folder(folder_, parent);
}

void write_file_whole(const std::filesystem::path& path, std::string_view bytes, NewFile kind) {
  WholeFile file(path, kind);
  file.append(bytes);
  file.commit();
}

namespace internal {

InputFile::InputFile(std::filesystem::path path, Accepts accepts) : path_(std::move(path)) {
  // If only plain files are accepted, opening a pipe must not wait for somebody to write into it.
  const Place place = find_place(path_, "cannot open");
  if (!place.exists) fail_at("cannot open", path_, ENOENT);
  descriptor_ = open_at(place, O_RDONLY | (accepts == Accepts::kPlainFiles ? O_NONBLOCK : 0));
  if (descriptor_ < 0) fail_at("cannot open", path_, errno);
  look();
  if (plain_ || accepts == Accepts::kAnything) return;
  close();
  throw FailedPrecondition(str("cannot read ", path_, ": it is no plain file"));
}

InputFile::InputFile(int descriptor, std::filesystem::path name)
    : path_(std::move(name)), descriptor_(descriptor), owned_(false) {
  look();
}

InputFile InputFile::standard_input() { return InputFile(STDIN_FILENO, "standard input"); }

InputFile::~InputFile() { close(); }

void InputFile::look() {
  struct stat facts = {};
  if (::fstat(descriptor_, &facts) != 0) {
    const int error = errno;
    close();
    fail_at("cannot read", path_, error);
  }
  plain_ = S_ISREG(facts.st_mode);
  if (!plain_) return;
  size_ = static_cast<std::uint64_t>(facts.st_size);
  // Somebody may have read from the descriptor before.
  position_ = static_cast<std::uint64_t>(std::max<off_t>(::lseek(descriptor_, 0, SEEK_CUR), 0));
}

void InputFile::close() {
  if (owned_ && descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

std::string InputFile::peek(std::size_t bytes) const {
  std::string start(bytes, '\0');
  ssize_t count = 0;
  do {
    count = ::pread(descriptor_, start.data(), start.size(), static_cast<off_t>(position_));
  } while (count < 0 && errno == EINTR);
  if (count < 0) fail_at("cannot read", path_, errno);
  start.resize(static_cast<std::size_t>(count));
  return start;
}

void InputFile::check_size(const ReadLimits& limits) const {
  if (!plain_ || size_ <= limits.file_bytes) return;
  throw InvalidArgument(str("cannot read ", path_, ": it has ", size_, " bytes, more than the limit of ",
                            limits.file_bytes,
                            "; whoever trusts it raises ReadLimits::file_bytes in C++, --read-limit on the "
                            "command line"));
}

std::string InputFile::read_rest(const ReadLimits& limits) {
  check_size(limits);
  const std::uint64_t known = plain_ && size_ > position_ ? size_ - position_ : 0;
  // Pipes, devices and the files of /proc do not tell their size, and a file may grow while it is read.
  const std::uint64_t most = std::min(limits.file_bytes, std::max(known, limits.base_bytes));
  return read_up_to(known, most, limits.base_bytes < limits.file_bytes ? "base_bytes" : "file_bytes");
}

std::string InputFile::read_up_to(std::uint64_t known, std::uint64_t most, std::string_view limit) {
  // In pieces, so that the memory of a source that goes on for ever stays what was read of it.
  constexpr std::size_t kLargestPiece = std::size_t{8} << 20U;
  std::vector<std::string> full;
  std::string bytes;
  std::size_t before = 0;  // bytes of the full pieces
  std::size_t size = 0;    // of the last one
  // One byte more than expected, so that the end shows without another piece.
  bytes.resize(known > 0 ? static_cast<std::size_t>(known) + 1 : std::size_t{64} * 1024);
  while (true) {
    if (size == bytes.size()) {
      before += size;
      full.push_back(std::move(bytes));
      bytes = std::string(
          static_cast<std::size_t>(std::min<std::uint64_t>({before, kLargestPiece, most + 1 - before})),
          '\0');
      size = 0;
    }
    const ssize_t count = ::read(descriptor_, bytes.data() + size, bytes.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_at("cannot read", path_, errno);
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
    if (before + size > most) {
      throw InvalidArgument(str("cannot read ", path_, ": it gives more than ", most,
                                " bytes, the limit for what does not tell its size; whoever trusts it raises "
                                "ReadLimits::",
                                limit, " in C++, --read-limit on the command line"));
    }
  }
  position_ += before + size;
  bytes.resize(size);
  if (full.empty()) return bytes;
  std::string all;
  all.reserve(before + size);
  for (std::string& piece : full) {
    all += piece;
    piece = std::string();
  }
  all += bytes;
  return all;
}

void InputFile::read(char* to, std::uint64_t bytes) {
  position_ += bytes;
  while (bytes > 0) {
    const ssize_t count = ::read(descriptor_, to, static_cast<std::size_t>(bytes));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_at("cannot read", path_, errno);
    if (count == 0) throw Error(ErrorCode::kDataLoss, str("cannot read ", path_, ": it ends early"));
    to += count;
    bytes -= static_cast<std::uint64_t>(count);
  }
}

void InputFile::read_at(std::uint64_t at, char* to, std::uint64_t bytes) const {
  while (bytes > 0) {
    const ssize_t count = ::pread(descriptor_, to, static_cast<std::size_t>(bytes), static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_at("cannot read", path_, errno);
    if (count == 0) throw Error(ErrorCode::kDataLoss, str("cannot read ", path_, ": it ends early"));
    to += count;
    at += static_cast<std::uint64_t>(count);
    bytes -= static_cast<std::uint64_t>(count);
  }
}

}  // namespace internal

std::string_view name_behind_temporary(std::string_view filename) {
  const std::size_t mark = filename.rfind(kTemporary);
  if (!filename.starts_with('.') || mark == std::string_view::npos || mark < 2) return {};
  const std::string_view tail = filename.substr(mark + kTemporary.size());
  const std::size_t dash = tail.find('-');
  const auto digits = [](std::string_view text) {
    return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  };
  if (dash == std::string_view::npos || !digits(tail.substr(0, dash)) || !digits(tail.substr(dash + 1)))
    return {};
  return filename.substr(1, mark - 1);
}

}  // namespace lockstep
