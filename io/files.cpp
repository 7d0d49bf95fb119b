#include "lockstep/io/files.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/io/internal/input_file.h"

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

[[noreturn]] void too_large(const std::filesystem::path& path, std::uint64_t max_bytes) {
  throw InvalidArgument(str("read ", path, ": the file is larger than the limit of ", max_bytes,
                            " bytes; pass a larger limit if it is meant to be"));
}

}  // namespace

std::string read_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  const Descriptor file(open_again(path, O_RDONLY));
  if (file.get() < 0) fail("cannot open", path, errno);
  struct stat facts = {};
  if (::fstat(file.get(), &facts) != 0) fail("cannot read", path, errno);
  const auto known = static_cast<std::uint64_t>(std::max<off_t>(facts.st_size, 0));
  if (S_ISREG(facts.st_mode) && known > max_bytes) too_large(path, max_bytes);

  std::string bytes;
  std::size_t size = 0;
  // One byte more than is expected, so that the end shows without another round. Pipes and the files of /proc tell no size.
  bytes.resize(S_ISREG(facts.st_mode) && known > 0 ? static_cast<std::size_t>(known) + 1 : 64 * 1024);
  while (true) {
    if (size == bytes.size()) bytes.resize(2 * size);
    const ssize_t count = ::read(file.get(), bytes.data() + size, bytes.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("cannot read", path, errno);
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
    if (size > max_bytes) too_large(path, max_bytes);
  }
  bytes.resize(size);
  return bytes;
}

WholeFile::WholeFile(std::filesystem::path path)
    : path_(std::move(path)), temporary_(temporary_beside(path_)) {
  if (path_.filename().empty()) {
    throw InvalidArgument(str("cannot write ", path_, ": the path names no file; give it a file name"));
  }
  descriptor_ = open_again(temporary_, O_WRONLY | O_CREAT | O_EXCL, 0666);
  if (descriptor_ < 0) fail("cannot write", path_, errno);
}

WholeFile::~WholeFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
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
  sync(descriptor_, path_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot replace", path_, errno);
  const int closed = ::close(std::exchange(descriptor_, -1));
  if (closed != 0 && errno != EINTR) fail("cannot write", path_, errno);
  const std::filesystem::path folder = folder_of(path_);
  const Descriptor opened(open_again(folder, O_RDONLY | O_DIRECTORY));
  if (opened.get() < 0) fail("cannot sync", folder, errno);
  sync(opened.get(), folder);
}

void write_file_whole(const std::filesystem::path& path, std::string_view bytes) {
  WholeFile file(path);
  file.append(bytes);
  file.commit();
}

namespace internal {

InputFile::InputFile(std::filesystem::path path) : path_(std::move(path)) {
  // Without waiting for somebody to write into a pipe.
  descriptor_ = open_again(path_, O_RDONLY | O_NONBLOCK);
  if (descriptor_ < 0) fail("cannot open", path_, errno);
  struct stat facts = {};
  const int error = ::fstat(descriptor_, &facts) != 0 ? errno : 0;
  if (error == 0 && S_ISREG(facts.st_mode)) {
    size_ = static_cast<std::uint64_t>(facts.st_size);
    return;
  }
  ::close(std::exchange(descriptor_, -1));
  if (error != 0) fail("cannot read", path_, error);
  throw FailedPrecondition(str("cannot read ", path_, ": it is no plain file"));
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
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

}  // namespace internal

bool is_temporary_name(std::string_view filename) {
  const std::size_t mark = filename.rfind(kTemporary);
  if (filename.size() < 2 || filename.front() != '.' || mark == std::string_view::npos || mark < 2)
    return false;
  const std::string_view tail = filename.substr(mark + kTemporary.size());
  const std::size_t dash = tail.find('-');
  const auto digits = [](std::string_view text) {
    return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  };
  return dash != std::string_view::npos && digits(tail.substr(0, dash)) && digits(tail.substr(dash + 1));
}

}  // namespace lockstep
