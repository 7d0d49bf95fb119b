#include "lockstep/io/checkpoint_series.h"

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>

#include "lockstep/core/error.h"
#include "lockstep/io/files.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kExtension = ".lkc";

bool is_plain_name(std::string_view name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  };
  return !name.empty() && name.size() <= 128 && name.front() != '.' && std::ranges::all_of(name, plain);
}

[[noreturn]] void folder_fails(const fs::path& folder, const std::error_code& error) {
  throw Error(ErrorCode::kUnavailable, str("checkpoint folder ", folder, ": ", error.message()));
}

// The files of one folder and name.
class Folder {
 public:
  Folder(fs::path path, std::string name) : path_(std::move(path)), name_(std::move(name)) {}

  fs::path file(std::uint64_t number) const {
    std::string digits = std::to_string(number);
    if (digits.size() < 8) digits.insert(0, 8 - digits.size(), '0');
    return path_ / str(name_, "-", digits, kExtension);
  }

  // By number.
  std::vector<std::pair<std::uint64_t, fs::path>> list() const {
    std::vector<std::pair<std::uint64_t, fs::path>> found;
    visit([&](const fs::path& path) {
      if (const auto number = number_of(path.filename().string())) found.emplace_back(*number, path);
    });
    std::ranges::sort(found);
    return found;
  }

  void remove_leftovers() const {
    const std::string prefix = str(".", name_, "-");
    visit([&](const fs::path& path) {
      const std::string filename = path.filename().string();
      std::error_code ignored;  // what cannot be removed does no harm
      if (filename.starts_with(prefix) && is_temporary_name(filename)) fs::remove(path, ignored);
    });
  }

 private:
  std::optional<std::uint64_t> number_of(std::string_view filename) const {
    if (!filename.starts_with(name_)) return std::nullopt;
    filename.remove_prefix(name_.size());
    if (!filename.starts_with('-') || !filename.ends_with(kExtension)) return std::nullopt;
    filename.remove_prefix(1);
    filename.remove_suffix(kExtension.size());
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(filename.data(), filename.data() + filename.size(), number);
    if (error != std::errc() || filename.empty() || end != filename.data() + filename.size())
      return std::nullopt;
    return number;
  }

  template <class Visit>
  void visit(const Visit& visitor) const {
    std::error_code error;
    fs::directory_iterator entries(path_, error);
    for (; !error && entries != fs::directory_iterator(); entries.increment(error)) visitor(entries->path());
    if (error) folder_fails(path_, error);
  }

  fs::path path_;
  std::string name_;
};

}  // namespace

// The thread, and what passes between it and those who save.
struct CheckpointSeries::Writer {
  Writer(fs::path path, CheckpointSeriesOptions given)
      : folder(std::move(path), given.name), options(std::move(given)) {}

  ~Writer() {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      stop = true;
    }
    changed.notify_all();
    if (thread.joinable()) thread.join();
  }

  bool busy() const { return waiting != nullptr || writing; }

  void throw_error() {
    if (error) std::rethrow_exception(std::exchange(error, nullptr));
  }

  // Memory for the next snapshot: that of one which is not written yet, else one that was used before.
  struct Room {
    std::unique_ptr<Snapshot> snapshot;
    bool pending = false;  // it holds one that is still to be written
  };
  Room room() {
    const std::lock_guard<std::mutex> lock(mutex);
    throw_error();
    if (waiting) return {std::move(waiting), true};
    if (free.empty()) return {std::make_unique<Snapshot>()};
    std::unique_ptr<Snapshot> snapshot = std::move(free.back());
    free.pop_back();
    return {std::move(snapshot)};
  }

  void submit(std::unique_ptr<Snapshot> snapshot, bool supersedes) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (supersedes) ++superseded;
    if (waiting) {  // another thread saved in the meantime
      ++superseded;
      free.push_back(std::move(waiting));
    }
    waiting = std::move(snapshot);
    if (!thread.joinable()) thread = std::thread([this] { run(); });
    changed.notify_all();
  }

  void run() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return waiting != nullptr || stop; });
      if (!waiting) return;
      std::unique_ptr<Snapshot> snapshot = std::move(waiting);
      writing = true;
      lock.unlock();
      std::exception_ptr failed;
      try {
        write(*snapshot);
      } catch (...) {
        failed = std::current_exception();
      }
      lock.lock();
      writing = false;
      if (failed) error = failed;
      free.push_back(std::move(snapshot));
      changed.notify_all();
    }
  }

  void write(const Snapshot& snapshot) {
    if (!std::exchange(cleaned, true)) folder.remove_leftovers();
    auto files = folder.list();
    const std::uint64_t number = files.empty() ? 1 : files.back().first + 1;
    const SavedCheckpoint saved{folder.file(number), snapshot.step()};
    if (options.before_write) options.before_write(saved);
    write_checkpoint(snapshot, saved.path);
    files.emplace_back(number, saved.path);
    for (std::size_t i = 0; options.keep > 0 && i + options.keep < files.size(); ++i) {
      std::error_code failed;
      fs::remove(files[i].second, failed);
      if (failed) folder_fails(files[i].second, failed);
    }
    if (options.after_write) options.after_write(saved);
  }

  const Folder folder;
  const CheckpointSeriesOptions options;
  bool cleaned = false;  // of the thread alone

  std::mutex mutex;
  std::condition_variable changed;
  std::unique_ptr<Snapshot> waiting;  // to be written next
  std::vector<std::unique_ptr<Snapshot>> free;
  std::exception_ptr error;
  std::uint64_t superseded = 0;
  bool writing = false;
  bool stop = false;
  std::thread thread;  // from the first save on
};

CheckpointSeries::CheckpointSeries(fs::path folder, CheckpointSeriesOptions options) {
  if (!is_plain_name(options.name)) {
    throw InvalidArgument(str("checkpoints cannot be called '", options.name,
                              "': use letters, digits, '_', '-' and '.', and no '.' first"));
  }
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) folder_fails(folder, error);
  writer_ = std::make_unique<Writer>(std::move(folder), std::move(options));
}

CheckpointSeries::~CheckpointSeries() = default;

void CheckpointSeries::save(VariableStore& store) {
  auto [snapshot, pending] = writer_->room();
  try {
    snapshot->take(store);
  } catch (...) {
    if (pending) writer_->submit(std::move(snapshot), false);  // what it held is as it was
    throw;
  }
  writer_->submit(std::move(snapshot), pending);
}

void CheckpointSeries::wait() {
  std::unique_lock<std::mutex> lock(writer_->mutex);
  writer_->changed.wait(lock, [this] { return !writer_->busy(); });
  writer_->throw_error();
}

std::vector<fs::path> CheckpointSeries::list() const {
  std::vector<fs::path> paths;
  for (auto& [number, path] : writer_->folder.list()) paths.push_back(std::move(path));
  return paths;
}

std::optional<fs::path> CheckpointSeries::latest() const {
  std::vector<fs::path> paths = list();
  if (paths.empty()) return std::nullopt;
  return std::move(paths.back());
}

std::optional<SeriesRestore> CheckpointSeries::restore_latest(VariableStore& store,
                                                              const RestoreOptions& options) {
  wait();
  std::vector<fs::path> paths = list();
  SeriesRestore restored;
  for (; !paths.empty(); paths.pop_back()) {
    try {
      restored.report = restore_checkpoint(store, paths.back(), options);
      restored.path = paths.back();
      return restored;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kDataLoss) throw;
      restored.damaged.emplace_back(paths.back(), error.message());
    }
  }
  if (restored.damaged.empty()) return std::nullopt;
  std::string faults;
  for (const auto& [path, why] : restored.damaged) faults += str("\n  ", why);
  throw Error(ErrorCode::kDataLoss, str("every checkpoint is damaged, and nothing was restored:", faults));
}

std::uint64_t CheckpointSeries::superseded() const {
  const std::lock_guard<std::mutex> lock(writer_->mutex);
  return writer_->superseded;
}

}  // namespace lockstep
