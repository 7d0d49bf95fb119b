// io/datasets/dataset_iterator.cpp - an iterator is a cursor, and a place from which its position can be found again.
#include "lockstep/io/datasets/dataset_iterator.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <stop_token>
#include <thread>
#include <utility>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/base/sha256.h"
#include "lockstep/core/error.h"
#include "lockstep/core/process_mark.h"
#include "lockstep/io/datasets/internal/input_arena.h"
#include "lockstep/io/datasets/internal/node.h"
#include "lockstep/io/files/crc32c.h"
#include "lockstep/io/files/internal/raw_blocks.h"

namespace lockstep {

namespace {

using internal::Cursor;
using internal::DatasetNode;
using internal::StateReader;
using internal::StateWriter;
using Clock = std::chrono::steady_clock;

constexpr std::string_view kStateMagic = "LKDS";
constexpr std::uint64_t kStateVersion = 1;
constexpr std::size_t kDigestBytes = 16;
constexpr std::size_t kMostSignature = 8192;  // a longer one is kept as its digest alone
constexpr std::uint64_t kElementsBetweenPlaces = 16;
constexpr unsigned kMostInputThreads = 256;

std::string digest_of(std::string_view text) {
  const internal::Sha256Hash hash = internal::Sha256().add(text).hash();
  return {reinterpret_cast<const char*>(hash.data()), kDigestBytes};
}

// The number of threads that the tree asks for, the outermost node first.
unsigned threads_of_tree(const AnyDataset& dataset) {
  if (const auto threads = DatasetNode::node_of(dataset).threads()) return *threads;
  for (const AnyDataset& input : dataset.inputs()) {
    if (const unsigned threads = threads_of_tree(input); threads != 0) return threads;
  }
  return 0;
}

unsigned threads_for(const AnyDataset& dataset, const IteratorOptions& options) {
  unsigned threads = options.threads != 0 ? options.threads : threads_of_tree(dataset);
  if (threads == 0) threads = std::thread::hardware_concurrency() / 2;
  return std::clamp(threads, 1U, kMostInputThreads);
}

// What is different between the trees, by their first lines that are.
std::string difference(std::string_view saved, std::string_view here) {
  if (saved.empty()) return "its tree is too large to be kept with it";
  for (std::size_t line = 1;; ++line) {
    const auto take_line = [](std::string_view& text) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      const std::string_view first = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      return first.substr(std::min(first.find_first_not_of(' '), first.size()));
    };
    if (saved.empty() && here.empty()) return "they differ in depth";
    const std::string_view was = take_line(saved);
    const std::string_view is = take_line(here);
    if (was != is) {
      return str("operation ", line, " was '", was.empty() ? "nothing" : printable(was), "', and is '",
                 is.empty() ? "nothing" : printable(is), "'");
    }
  }
}

struct SavedPosition {
  std::uint64_t passed = 0;  // elements since the place
  std::string_view place;
};

SavedPosition read_envelope(std::string_view state, std::string_view signature) {
  if (state.size() > internal::kMostStateBytes)
    internal::damaged_state(str("it has ", state.size(), " bytes"));
  if (!state.starts_with(kStateMagic)) internal::damaged_state("it does not begin as one");
  const std::size_t crc_at = state.size() - sizeof(std::uint32_t);
  if (state.size() < kStateMagic.size() + sizeof(std::uint32_t)) internal::damaged_state("it is too short");
  StateReader reader(state.substr(kStateMagic.size(), crc_at - kStateMagic.size()));
  const std::uint64_t version = reader.number(~std::uint64_t{0}, "its version");
  if (version != kStateVersion)
    throw Error(ErrorCode::kUnimplemented, str("the state of a dataset's iterator has version ", version,
                                               "; ", kStateVersion, " is known: it is of a newer Lockstep"));
  if (internal::number_at<std::uint32_t>(state, crc_at) != crc32c(state.substr(0, crc_at)))
    internal::damaged_state("its checksum does not fit");
  const std::string_view digest = reader.bytes("the digest of its tree");
  const std::string_view saved_signature = reader.bytes("its tree");
  SavedPosition position;
  position.passed = reader.number(kElementsBetweenPlaces + 1, "the elements since a place");
  position.place = reader.bytes("a place");
  if (!reader.is_done()) internal::damaged_state("there is something after its end");
  if (digest != digest_of(signature)) {
    throw FailedPrecondition(
        str("the state belongs to another dataset: ", difference(saved_signature, signature),
            "; restore it into an iterator of the dataset that it was saved from"));
  }
  return position;
}

}  // namespace

struct DatasetIterator::State {
  State(AnyDataset given, IteratorOptions given_options)
      : dataset(std::move(given)),
        options(std::move(given_options)),
        signature(dataset.signature()),
        arena(threads_for(dataset, options)),
        follow(options.cancel, [this] { cancelled.request_stop(); }),
        began(Clock::now()) {
    cursor = new_cursor();
    cursor->start(options.epoch);
  }
  ~State() { cancelled.request_stop(); }

  std::unique_ptr<Cursor> new_cursor() {
    return DatasetNode::node_of(dataset).cursor(
        {.arena = &arena, .threads = arena.threads(), .cancel = cancelled.get_token()});
  }

  void check_process() const {
    if (process.is_of_this_process()) return;
    throw FailedPrecondition(
        "the threads of this iterator are in the process that called fork(), and this is its child: make an "
        "iterator here, and "
        "restore the state that the parent saved");
  }

  const ProcessMark process;
  const AnyDataset dataset;
  const IteratorOptions options;
  const std::string signature;
  std::stop_source cancelled;
  internal::InputArena arena;
  std::stop_callback<std::function<void()>> follow;
  std::unique_ptr<Cursor> cursor;

  // Where the last element can be found again.
  std::string place;
  std::uint64_t passed = 0;         // elements since the place
  bool handed = false;              // the last call gave an element
  std::optional<Element> returned;  // the one that was given back
  std::exception_ptr error;

  const Clock::time_point began;
  std::atomic<std::uint64_t> elements{0}, bytes{0};
  std::atomic<std::uint64_t> waited_nanoseconds{0};
};

DatasetIterator::DatasetIterator(AnyDataset dataset, IteratorOptions options)
    : state_(std::make_unique<State>(std::move(dataset), std::move(options))) {}

// In a forked child the state is leaked: ending it would wait for threads that are in the parent.
DatasetIterator::~DatasetIterator() {
  if (state_ != nullptr && !state_->process.is_of_this_process()) static_cast<void>(state_.release());
}
DatasetIterator::DatasetIterator(DatasetIterator&&) noexcept = default;
DatasetIterator& DatasetIterator::operator=(DatasetIterator&&) noexcept = default;

std::optional<Element> DatasetIterator::next() {
  State& state = *state_;
  state.check_process();
  internal::check_cancelled(state.cancelled.get_token());
  if (state.returned) {
    std::optional<Element> again = std::exchange(state.returned, std::nullopt);
    ++state.passed;
    state.handed = true;
    return again;
  }
  if (state.error) std::rethrow_exception(state.error);
  const auto began = Clock::now();
  std::optional<Element> element(std::in_place);
  try {
    if (state.place.empty() || state.passed >= kElementsBetweenPlaces) {
      state.place = state.cursor->save_now();
      state.passed = 0;
    }
    if (!state.cursor->next(*element)) element.reset();
  } catch (...) {
    state.error = std::current_exception();
    state.handed = false;
    throw;
  }
  state.handed = element.has_value();
  const std::chrono::nanoseconds waited = Clock::now() - began;
  state.waited_nanoseconds.fetch_add(static_cast<std::uint64_t>(waited.count()), std::memory_order_relaxed);
  if (element) {
    ++state.passed;
    state.elements.fetch_add(1, std::memory_order_relaxed);
    state.bytes.fetch_add(num_bytes(*element), std::memory_order_relaxed);
  }
  return element;
}

void DatasetIterator::give_back(Element element) {
  State& state = *state_;
  if (!state.handed) {
    throw FailedPrecondition(
        "give_back(): the last call of next() gave no element, or it was given back before; one element can "
        "be given back");
  }
  state.returned = std::move(element);
  state.handed = false;
  --state.passed;
}

std::string DatasetIterator::save() const {
  const State& state = *state_;
  state.check_process();
  const bool at_cursor = !state.returned && !state.error;
  StateWriter writer;
  writer.number(kStateVersion);
  writer.bytes(digest_of(state.signature));
  writer.bytes(state.signature.size() <= kMostSignature ? std::string_view(state.signature)
                                                        : std::string_view());
  writer.number(at_cursor ? 0 : state.passed);
  writer.bytes(at_cursor ? state.cursor->save_now() : state.place);
  std::string text = std::string(kStateMagic) + writer.take();
  internal::put_number(text, crc32c(text));
  if (text.size() > internal::kMostStateBytes)
    throw Error(ErrorCode::kUnimplemented, str("the state of the iterator has ", text.size(),
                                               " bytes; at most ", internal::kMostStateBytes, " are kept"));
  return text;
}

void DatasetIterator::restore(std::string_view state) {
  internal::IteratorAccess::commit(*this, internal::IteratorAccess::prepare(*this, state));
}

std::unique_ptr<Cursor> internal::IteratorAccess::prepare(const DatasetIterator& iterator,
                                                          std::string_view text) {
  DatasetIterator::State& state = *iterator.state_;
  state.check_process();
  const SavedPosition position = read_envelope(text, state.signature);
  std::unique_ptr<Cursor> cursor = state.new_cursor();
  StateReader reader(position.place);
  cursor->restore(reader);
  if (!reader.is_done()) damaged_state("a place has more bytes than the tree takes");
  if (cursor->skip(position.passed) < position.passed)
    damaged_state("the dataset has fewer elements than before");
  return cursor;
}

void internal::IteratorAccess::commit(DatasetIterator& iterator, std::unique_ptr<Cursor> cursor) noexcept {
  DatasetIterator::State& state = *iterator.state_;
  state.cursor = std::move(cursor);
  state.place.clear();
  state.passed = 0;
  state.handed = false;
  state.returned.reset();
  state.error = nullptr;
}

const std::string& DatasetIterator::name() const { return state_->options.name; }
const AnyDataset& DatasetIterator::dataset() const { return state_->dataset; }
void DatasetIterator::cancel() { state_->cancelled.request_stop(); }

std::vector<DatasetStage> DatasetIterator::stats() const {
  const State& state = *state_;
  DatasetStage own;
  own.name = state.options.name;
  own.elements = state.elements.load(std::memory_order_relaxed);
  own.bytes = state.bytes.load(std::memory_order_relaxed);
  own.seconds = std::chrono::duration<double>(Clock::now() - state.began).count();
  own.waited_seconds = static_cast<double>(state.waited_nanoseconds.load(std::memory_order_relaxed)) * 1e-9;
  std::vector<DatasetStage> stages = {std::move(own)};
  state.cursor->add_stats(stages);
  return stages;
}

DatasetIterator AnyDataset::iterator(IteratorOptions options) const {
  return DatasetIterator(*this, std::move(options));
}

}  // namespace lockstep
