// io/state/checkpoint_series.cpp - checkpoints during training: the last few in a folder, written by a thread
// of their own.
#include "lockstep/io/state/checkpoint_series.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>

#include <dirent.h>

#include "lockstep/core/error.h"
#include "lockstep/core/process_mark.h"
#include "lockstep/io/files/files.h"
#include "lockstep/io/state/internal/series_lock.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kExtension = ".lkc";
// A file with a larger number does not belong to a series, so that there is always a next number.
constexpr std::uint64_t kLargestNumber = 999'999'999'999'999'999;
// Files of one writer and of those before it; one that may have to do with an older writer that still lives begins new ones.
constexpr std::uint64_t kNumbersOfAnEra = 1'000'000'000'000;

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

  // By number; regular files only.
  std::vector<std::pair<std::uint64_t, fs::path>> list() const {
    std::vector<std::pair<std::uint64_t, fs::path>> found;
    visit([&](std::string_view filename) {
      const auto number = number_of(filename);
      if (!number) return;
      fs::path path = path_ / filename;
      std::error_code ignored;  // the file may have just gone
      if (fs::is_regular_file(path, ignored)) found.emplace_back(*number, std::move(path));
    });
    std::ranges::sort(found);
    return found;
  }

  // Higher than every number of the era that is in use, by a checkpoint or by anything else with such a name.
  std::uint64_t next_number(std::uint64_t era) const {
    const std::uint64_t end = (era + 1) * kNumbersOfAnEra - 1;
    std::uint64_t highest = era * kNumbersOfAnEra;
    visit([&](std::string_view filename) {
      const std::uint64_t number = number_of(filename).value_or(0);
      if (number > end)
        throw FailedPrecondition(str("checkpoint folder ", path_,
                                     ": a later start of the job writes there now (", filename,
                                     "): this process stood still, and has no part in it"));
      highest = std::max(highest, number);
    });
    if (highest == end) {
      throw FailedPrecondition(str("checkpoint folder ", path_, ": ", file(highest).filename(),
                                   " has the last number that there is; rename it"));
    }
    return highest + 1;
  }
  std::uint64_t last_era() const {
    std::uint64_t highest = 0;
    visit([&](std::string_view filename) { highest = std::max(highest, number_of(filename).value_or(0)); });
    return highest / kNumbersOfAnEra;
  }
  std::uint64_t new_era() const {
    const std::uint64_t era = last_era() + 1;
    if (era * kNumbersOfAnEra > kLargestNumber)
      throw FailedPrecondition(
          str("checkpoint folder ", path_, ": the numbers are used up; write to another folder"));
    return era;
  }

  void remove_leftovers() const {
    visit([&](std::string_view filename) {
      std::error_code ignored;  // what cannot be removed does no harm
      if (number_of(name_behind_temporary(filename))) fs::remove(path_ / filename, ignored);
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
    if (error != std::errc() || filename.empty() || end != filename.data() + filename.size() ||
        number > kLargestNumber)
      return std::nullopt;
    return number;
  }

  // Calls the visitor with the name of each entry. Not by fs::directory_iterator: libstdc++'s ends the process
  // when memory runs out.
  template <class Visit>
  void visit(const Visit& visitor) const {
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path_.c_str()), &::closedir);
    if (folder == nullptr) folder_fails(path_, std::error_code(errno, std::generic_category()));
    for (;;) {
      errno = 0;
      const dirent* const entry = ::readdir(folder.get());
      if (entry == nullptr) break;
      visitor(std::string_view(entry->d_name));
    }
    if (errno != 0) folder_fails(path_, std::error_code(errno, std::generic_category()));
  }

  fs::path path_;
  std::string name_;
};

}  // namespace

// The writing thread, and the state that it shares with the threads that save.
struct CheckpointSeries::Writer {
  Writer(fs::path given_path, CheckpointSeriesOptions given)
      : path(std::move(given_path)), folder(path, given.name), options(std::move(given)) {}

  ~Writer() {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      stop = true;
    }
    changed.notify_all();
    if (thread.joinable()) thread.join();
  }

  void check_process() const {
    if (process.is_of_this_process()) return;
    throw FailedPrecondition(
        "the thread that writes this series of checkpoints is in the process that called fork(), and this is "
        "its "
        "child: make a series here, for a folder or a name of its own");
  }

  bool busy() const { return waiting != nullptr || writing || taking; }

  void throw_error() {
    if (error) std::rethrow_exception(std::exchange(error, nullptr));
  }

  // Memory for the next snapshot: that of one that waits to be written, else that of one used before, else
  // new.
  struct Room {
    std::unique_ptr<Snapshot> snapshot;
    bool pending = false;  // it holds a snapshot that is still to be written
  };
  // Lends memory until submit() or give_back(), which cannot fail: all that they need is acquired here, the
  // thread included. A failure here leaves everything as it was.
  Room room() {
    const std::lock_guard<std::mutex> lock(mutex);
    throw_error();
    if (!thread.joinable()) thread = std::thread([this] { run(); });
    Room found;
    if (waiting) {
      found = {std::move(waiting), true};
    } else if (free.empty()) {
      free.reserve(made + 1);
      found = {std::make_unique<Snapshot>()};
      ++made;
    } else {
      found = {std::move(free.back())};
      free.pop_back();
    }
    taking = true;
    return found;
  }

  void submit(Room taken) noexcept {
    const std::lock_guard<std::mutex> lock(mutex);
    if (taken.pending) ++superseded;
    put_in_line(std::move(taken.snapshot));
  }

  // No snapshot was taken: the memory holds what it held before.
  void give_back(Room untouched) noexcept {
    const std::lock_guard<std::mutex> lock(mutex);
    if (untouched.pending) return put_in_line(std::move(untouched.snapshot));
    free.push_back(std::move(untouched.snapshot));
    taking = false;
    changed.notify_all();
  }

  void put_in_line(std::unique_ptr<Snapshot> snapshot) noexcept {
    waiting = std::move(snapshot);
    taking = false;
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
    const std::uint64_t number = folder.next_number(era);
    const SavedCheckpoint saved{folder.file(number), snapshot.step()};
    if (options.before_write) options.before_write(saved);
    write_checkpoint(snapshot, saved.path, options.limits);
    files.emplace_back(number, saved.path);
    std::string kept;  // older files that could not be removed
    for (std::size_t i = 0; options.keep > 0 && i + options.keep < files.size(); ++i) {
      std::error_code failed;
      fs::remove(files[i].second, failed);
      if (failed) kept += str("\n  ", files[i].second, ": ", failed.message());
    }
    if (options.after_write) options.after_write(saved);
    if (!kept.empty()) {
      throw Error(ErrorCode::kUnavailable,
                  str("checkpoint ", saved.path, " is written, but older ones cannot be removed:", kept));
    }
  }

  const fs::path path;
  const ProcessMark process;
  const Folder folder;
  const CheckpointSeriesOptions options;
  std::optional<internal::SeriesLock> folder_lock;  // from the first save on; guarded by `saving`
  std::uint64_t era = 0;                            // from the first save on
  bool cleaned = false;                             // used by the thread alone

  // Held from room() to submit(): threads that save take turns, so that a later snapshot is a newer one.
  std::mutex saving;
  std::mutex mutex;  // guards everything below
  std::condition_variable changed;
  std::unique_ptr<Snapshot> waiting;            // to be written next
  std::vector<std::unique_ptr<Snapshot>> free;  // with capacity for all that were made
  std::size_t made = 0;
  std::exception_ptr error;
  std::uint64_t superseded = 0;
  bool writing = false;
  bool taking = false;  // a snapshot is being taken, perhaps in the memory of one that waited
  bool stop = false;
  std::thread thread;  // from the first save on
};

CheckpointSeries::CheckpointSeries(fs::path folder, CheckpointSeriesOptions options) {
  if (!is_plain_name(options.name)) {
    throw InvalidArgument(str("checkpoints cannot be called '", options.name,
                              "': use letters, digits, '_', '-' and '.', and no '.' first"));
  }
  if (options.generation < 0)
    throw InvalidArgument(str("CheckpointSeriesOptions: there is no generation ", options.generation));
  make_folders(folder);
  writer_ = std::make_unique<Writer>(std::move(folder), std::move(options));
}

// In a forked child the writer is leaked: destroying its condition variable would wait for the thread, which
// is in the parent.
CheckpointSeries::~CheckpointSeries() {
  if (!writer_->process.is_of_this_process()) static_cast<void>(writer_.release());
}

void CheckpointSeries::save(VariableStore& store, std::vector<Snapshot::State> states) {
  writer_->check_process();
  Snapshot checked(0, {}, std::move(states));  // before anything is taken
  const std::lock_guard<std::mutex> turn(writer_->saving);
  if (!writer_->folder_lock) {
    const int generation = writer_->options.generation;
    writer_->folder_lock.emplace(writer_->path, writer_->options.name, generation);
    try {
      writer_->era = generation > 0 ? writer_->folder.new_era() : writer_->folder.last_era();
    } catch (...) {
      writer_->folder_lock.reset();
      throw;
    }
  }
  Writer::Room room = writer_->room();
  try {
    room.snapshot->take(store);
    room.snapshot->take_states_of(checked);
  } catch (...) {
    writer_->give_back(std::move(room));
    throw;
  }
  writer_->submit(std::move(room));
}

void CheckpointSeries::wait() {
  writer_->check_process();
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
                                                              const RestoreOptions& options,
                                                              SourceSite site) {
  wait();
  SeriesRestore restored;
  std::set<fs::path> tried;
  // Listed anew each time: the writing process may remove a listed file, but only once it has written a newer
  // one.
  for (;;) {
    std::vector<fs::path> paths = list();
    while (!paths.empty() && tried.contains(paths.back())) paths.pop_back();
    if (paths.empty()) break;
    tried.insert(paths.back());
    try {
      restored.path = paths.back();  // before anything is restored: it may be out of memory
      restored.report = restore_checkpoint(store, paths.back(), options, writer_->options.limits, site);
      return restored;
    } catch (const NotFound&) {
      if (fs::exists(paths.back())) throw;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kDataLoss) throw;
      restored.damaged.emplace_back(paths.back(), error.message());
    }
  }
  if (restored.damaged.empty()) return std::nullopt;
  std::string faults;
  for (const auto& [path, why] : restored.damaged) faults += str("\n  ", why);
  throw Error(ErrorCode::kDataLoss, str("every checkpoint is damaged, and nothing was restored:", faults),
              place_of_call("restore_latest()", site));
}

std::uint64_t CheckpointSeries::superseded() const {
  const std::lock_guard<std::mutex> lock(writer_->mutex);
  return writer_->superseded;
}

}  // namespace lockstep
