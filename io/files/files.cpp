#include "lockstep/io/files/files.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/io/files/internal/input_file.h"

namespace lockstep {
namespace {

constexpr std::string_view kTemporary = ".tmp-";

[[noreturn]] void fail(std::string_view what, const std::filesystem::path& path, int error) {
  std::string message = str(what, " ", path, ": ", std::generic_category().message(error));
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

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }

 private:
  int value_;
};

int open_again(const std::filesystem::path& path, int flags, mode_t mode = 0) {
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

void sync(int descriptor, const std::filesystem::path& path) {
  // Some file systems do not sync folders and say so; there is nothing more to do on them.
  if (::fsync(descriptor) != 0 && errno != EINVAL) fail("cannot sync", path, errno);
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  std::filesystem::path folder = path.parent_path();
  return folder.empty() ? std::filesystem::path(".") : folder;
}

std::filesystem::path temporary_beside(const std::filesystem::path& path) {
  static std::atomic<std::uint64_t> number{0};
  return folder_of(path) /
         str(".", path.filename().string(), kTemporary, ::getpid(), "-", number.fetch_add(1));
}

void sync_folder(const std::filesystem::path& folder) {
  const Descriptor opened(open_again(folder, O_RDONLY | O_DIRECTORY));
  if (opened.get() < 0) fail("cannot sync", folder, errno);
  sync(opened.get(), folder);
}

struct Target {
  std::filesystem::path path;
  bool in_place = false;  // it is written to as it is
};

// What is to be written where somebody names `path`.
Target target_of(std::filesystem::path path) {
  constexpr int kMostLinks = 40;  // as many as Linux follows
  for (int links = 0;; ++links) {
    struct stat facts = {};
    // A new file, or an error when it is made.
    if (::lstat(path.c_str(), &facts) != 0) return {std::move(path)};
    if (!S_ISLNK(facts.st_mode)) {
      const bool in_place = !S_ISREG(facts.st_mode) && !S_ISDIR(facts.st_mode);
      return {std::move(path), in_place};
    }
    if (links == kMostLinks) fail("cannot write", path, ELOOP);
    std::error_code error;
    const std::filesystem::path folder = std::filesystem::canonical(folder_of(path), error);
    if (error) fail("cannot write", path, error.value());
    // A link that the kernel makes up: it stands for something that is open, and the name it shows need not
    // lead there.
    if (folder.string().starts_with("/proc/")) return {std::move(path), true};
    std::filesystem::path behind = std::filesystem::read_symlink(path, error);
    if (error) fail("cannot write", path, error.value());
    path = folder / behind;
  }
}

}  // namespace

std::string read_file(const std::filesystem::path& path, const ReadLimits& limits) {
  return internal::InputFile(path, internal::InputFile::Accepts::kAnything).read_rest(limits);
}

std::string read_standard_input(const ReadLimits& limits) {
  return internal::InputFile::standard_input().read_rest(limits);
}
std::string read_standard_input(std::uint64_t max_bytes) {
  return internal::InputFile::standard_input().read_rest(max_bytes);
}

void make_folders(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> missing;
  std::error_code error;
  for (std::filesystem::path at = folder; !at.empty() && !std::filesystem::exists(at, error);
       at = at.parent_path()) {
    missing.push_back(at);
  }
  for (; !missing.empty(); missing.pop_back()) {
    std::filesystem::create_directory(missing.back(), error);  // another process may be quicker
    if (error) fail("cannot make the folder", missing.back(), error.value());
    sync_folder(folder_of(missing.back()));
  }
  if (!std::filesystem::is_directory(folder, error))
    fail("cannot make the folder", folder, error ? error.value() : ENOTDIR);
}

WholeFile::WholeFile(std::filesystem::path path) {
  if (path.filename().empty()) {
    throw InvalidArgument(str("cannot write ", path, ": the path names no file; give it a file name"));
  }
  auto [target, in_place] = target_of(std::move(path));
  path_ = std::move(target);
  if (in_place) {
    descriptor_ = open_again(path_, O_WRONLY | O_APPEND);
  } else {
    // Process numbers come again: what a process that was killed left may have this name.
    do {
      temporary_ = temporary_beside(path_);
      descriptor_ = open_again(temporary_, O_WRONLY | O_CREAT | O_EXCL, 0666);
    } while (descriptor_ < 0 && errno == EEXIST);
  }
  if (descriptor_ < 0) fail("cannot write", path_, errno);
}

WholeFile::~WholeFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void WholeFile::append(std::string_view bytes) {
  LOCKSTEP_CHECK(descriptor_ >= 0, "append after commit of ", path_);
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("cannot write", path_, errno);
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

void WholeFile::commit() {
  LOCKSTEP_CHECK(descriptor_ >= 0, "second commit of ", path_);
  const bool replaces = !temporary_.empty();
  if (replaces) {
    sync(descriptor_, path_);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot replace", path_, errno);
  }
  const int closed = ::close(std::exchange(descriptor_, -1));
  if (closed != 0 && errno != EINTR) fail("cannot write", path_, errno);
  if (replaces) sync_folder(folder_of(path_));
}

void write_file_whole(const std::filesystem::path& path, std::string_view bytes) {
  WholeFile file(path);
  file.append(bytes);
  file.commit();
}

namespace internal {

InputFile::InputFile(std::filesystem::path path, Accepts accepts) : path_(std::move(path)) {
  // Where pipes are refused, without waiting for somebody to write into one.
  descriptor_ = open_again(path_, O_RDONLY | (accepts == Accepts::kPlainFiles ? O_NONBLOCK : 0));
  if (descriptor_ < 0) fail("cannot open", path_, errno);
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
    fail("cannot read", path_, error);
  }
  plain_ = S_ISREG(facts.st_mode);
  if (!plain_) return;
  size_ = static_cast<std::uint64_t>(facts.st_size);
  // Somebody may have read from it before it came here.
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
  if (count < 0) fail("cannot read", path_, errno);
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
  // Pipes, devices and the files of /proc tell no size, and a file may grow while it is read.
  const std::uint64_t most = std::min(limits.file_bytes, std::max(known, limits.base_bytes));
  return read_up_to(known, most, limits.base_bytes < limits.file_bytes ? "base_bytes" : "file_bytes");
}

std::string InputFile::read_rest(std::uint64_t max_bytes) {
  return read_rest(ReadLimits{.file_bytes = max_bytes, .base_bytes = max_bytes});
}

std::string InputFile::read_up_to(std::uint64_t known, std::uint64_t most, std::string_view limit) {
  std::string bytes;
  std::size_t size = 0;
  // One byte more than is expected, so that the end shows without another round.
  bytes.resize(known > 0 ? static_cast<std::size_t>(known) + 1 : std::size_t{64} * 1024);
  while (true) {
    if (size == bytes.size())
      bytes.resize(static_cast<std::size_t>(std::min<std::uint64_t>(2 * size, most + 1)));
    const ssize_t count = ::read(descriptor_, bytes.data() + size, bytes.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("cannot read", path_, errno);
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
    if (size > most) {
      throw InvalidArgument(str("cannot read ", path_, ": it gives more than ", most,
                                " bytes, the limit for what does not tell its size; whoever trusts it raises "
                                "ReadLimits::",
                                limit, " in C++, --read-limit on the command line"));
    }
  }
  position_ += size;
  bytes.resize(size);
  return bytes;
}

void InputFile::read(char* to, std::uint64_t bytes) {
  position_ += bytes;
  while (bytes > 0) {
    const ssize_t count = ::read(descriptor_, to, static_cast<std::size_t>(bytes));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("cannot read", path_, errno);
    if (count == 0) throw Error(ErrorCode::kDataLoss, str("cannot read ", path_, ": it ends early"));
    to += count;
    bytes -= static_cast<std::uint64_t>(count);
  }
}

void InputFile::read_at(std::uint64_t at, char* to, std::uint64_t bytes) const {
  while (bytes > 0) {
    const ssize_t count = ::pread(descriptor_, to, static_cast<std::size_t>(bytes), static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("cannot read", path_, errno);
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
