// io/datasets/ahead.cpp - a row of chunks between a cursor and its taker.
#include "lockstep/io/datasets/internal/ahead.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/io/datasets/internal/input_arena.h"

namespace lockstep::internal {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kSecondsOfAChunk = 50e-6;
constexpr std::uint64_t kMostOfAChunk = 1024;
// A position may lie this many elements behind the input's: restoring passes over them.
constexpr std::uint64_t kMostToPass = std::uint64_t{1} << 20U;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

struct Ahead::Chunk {
  enum class Stage : std::uint8_t { kToCompute, kComputing, kDone };
  Stage stage = Stage::kDone;
  std::string before;
  std::uint64_t first = 0;  // the number of its first element
  std::vector<Element> elements;
  std::exception_ptr error;  // after its elements
};

// What the taker and the threads of the input have in common; it lives as long as the last task.
struct Ahead::Shared : std::enable_shared_from_this<Ahead::Shared> {
  using Lock = std::unique_lock<std::mutex>;

  Shared(std::unique_ptr<Cursor> from, const CursorContext& context, Plan given)
      : plan(std::move(given)),
        most_of_a_chunk(std::clamp<std::uint64_t>(plan.room / (2 * std::uint64_t{std::max(1U, plan.threads)}),
                                                  1, kMostOfAChunk)),
        arena(context.arena),
        cancel(context.cancel),
        input(std::move(from)) {}

  // Does one thing, if there is one to do. The lock is held before and after.
  bool work(Lock& lock) {
    if (stop) return false;
    if (plan.compute) {
      const auto waiting = std::ranges::find_if(
          row, [](const auto& chunk) { return chunk->stage == Chunk::Stage::kToCompute; });
      if (waiting != row.end()) {
        compute(lock, **waiting);
        return true;
      }
    }
    if (!can_pull()) return false;
    pull(lock);
    return true;
  }

  // Less than a chunk is pulled if there is room for no more, but not for a few elements of many.
  bool has_room() const {
    return held < plan.room &&
           plan.room - held >= std::min(chunk_size, std::max<std::uint64_t>(plan.room / 4, 1));
  }
  bool can_pull() const { return !stop && !pulling && !ended && has_room(); }

  void pull(Lock& lock) {
    pulling = true;
    if (full_since) {
      full_seconds += seconds_since(*full_since);
      full_since.reset();
    }
    const std::uint64_t wanted = std::min(chunk_size, plan.room - held);
    held += wanted;
    lock.unlock();
    auto chunk = std::make_unique<Chunk>();
    const auto begin = Clock::now();
    bool at_end = false;
    try {
      chunk->before = input->save_now();
      Element element;
      while (chunk->elements.size() < wanted && !at_end) {
        at_end = !input->next(element);
        if (!at_end) chunk->elements.push_back(std::move(element));
      }
    } catch (...) {
      chunk->error = std::current_exception();
      at_end = true;
    }
    const double seconds = seconds_since(begin);
    lock.lock();
    const std::uint64_t got = chunk->elements.size();
    held -= wanted - got;
    if (got > 0) pull_seconds = seconds / static_cast<double>(got);
    adapt();
    ended = at_end;
    chunk->first = pulled;
    pulled += got;
    chunk->stage = plan.compute && got > 0 ? Chunk::Stage::kToCompute : Chunk::Stage::kDone;
    if (got > 0 || chunk->error) row.push_back(std::move(chunk));
    pulling = false;
    if (!has_room() && !ended) full_since = Clock::now();
    call_threads(lock);
    changed.notify_all();
  }

  void compute(Lock& lock, Chunk& chunk) {
    chunk.stage = Chunk::Stage::kComputing;
    lock.unlock();
    const auto begin = Clock::now();
    std::size_t done = 0;
    std::exception_ptr failed;
    try {
      for (; done < chunk.elements.size() && !cancel.stop_requested(); ++done)
        plan.compute(chunk.elements[done], chunk.first + done);
      check_cancelled(cancel);
    } catch (...) {
      failed = std::current_exception();
    }
    const double seconds = seconds_since(begin);
    lock.lock();
    if (failed) {
      held -= chunk.elements.size() - done;
      chunk.elements.resize(done);
      chunk.error = failed;
    }
    if (done > 0) compute_seconds = seconds / static_cast<double>(done);
    adapt();
    chunk.stage = Chunk::Stage::kDone;
    changed.notify_all();
  }

  void adapt() {
    const double each = std::max(pull_seconds + compute_seconds, 1e-9);
    chunk_size =
        std::clamp<std::uint64_t>(static_cast<std::uint64_t>(kSecondsOfAChunk / each), 1, most_of_a_chunk);
  }

  // Tasks for what there is to do, as far as there are threads.
  void call_threads(Lock& /*held*/) {
    if (arena == nullptr || stop) return;
    unsigned jobs = can_pull() ? 1 : 0;
    if (plan.compute) {
      for (const auto& chunk : row) jobs += chunk->stage == Chunk::Stage::kToCompute ? 1 : 0;
    }
    // A task goes on while there is work: those that run will take some of it.
    while (called < std::min(jobs, plan.threads)) {
      arena->enqueue([shared = shared_from_this()] { shared->help(); });
      ++called;
    }
  }

  void help() noexcept {
    Lock lock(mutex);
    ++inside;
    while (work(lock)) {
    }
    --inside;
    --called;
    changed.notify_all();
  }

  // Nobody works afterwards, until `stop` is taken back.
  void quiesce(Lock& lock) {
    stop = true;
    changed.notify_all();
    changed.wait(lock, [this] { return inside == 0; });
    row.clear();
    held = 0;
    ended = false;
    full_since.reset();
  }

  const Plan plan;
  const std::uint64_t most_of_a_chunk;
  InputArena* const arena;
  const std::stop_token cancel;

  mutable std::mutex mutex;  // guards everything below; the cursor belongs to whoever has set `pulling`
  std::condition_variable changed;
  std::unique_ptr<Cursor> input;
  std::deque<std::unique_ptr<Chunk>> row;
  std::uint64_t held = 0;                        // elements in the row, with the taker, or being pulled
  std::uint64_t pulled = 0;                      // since the start
  std::uint64_t chunk_size = 1;                  // of the next chunk
  double pull_seconds = 0, compute_seconds = 0;  // for one element
  unsigned inside = 0;                           // tasks that work
  unsigned called = 0;                           // tasks that work, or will
  bool pulling = false;
  bool ended = false;  // the input, or it failed
  bool stop = true;
  // For stats.
  std::uint64_t handed_on = 0;
  double waited_seconds = 0;
  double full_seconds = 0;
  std::optional<Clock::time_point> full_since;
};

Ahead::Ahead(std::unique_ptr<Cursor> input, const CursorContext& context, Plan plan)
    : shared_(std::make_shared<Shared>(std::move(input), context, std::move(plan))) {
  if (context.cancel.stop_possible()) {
    std::function<void()> wake = [shared = shared_.get()] {
      const Shared::Lock lock(shared->mutex);
      shared->changed.notify_all();
    };
    wake_ = std::make_shared<std::stop_callback<std::function<void()>>>(context.cancel, std::move(wake));
  }
}

// A task that has not begun yet finds a shell.
Ahead::~Ahead() {
  wake_.reset();
  std::unique_ptr<Cursor> input;
  Shared::Lock lock(shared_->mutex);
  shared_->quiesce(lock);
  input = std::move(shared_->input);
  lock.unlock();
}

void Ahead::begin() {
  chunk_.reset();
  at_ = 0;
  Shared::Lock lock(shared_->mutex);
  shared_->stop = false;
}

void Ahead::start(std::uint64_t epoch) {
  {
    Shared::Lock lock(shared_->mutex);
    shared_->quiesce(lock);
  }
  shared_->input->start(epoch);
  shared_->pulled = 0;
  before_ = shared_->input->save_now();
  taken_ = index_ = 0;
  begin();
}

void Ahead::release_chunk() {
  Shared::Lock lock(shared_->mutex);
  shared_->held -= chunk_->elements.size();
  shared_->handed_on += chunk_->elements.size();
  if (shared_->full_since) {
    shared_->full_seconds += seconds_since(*shared_->full_since);
    shared_->full_since.reset();
  }
  chunk_->elements.clear();
  at_ = 0;
  shared_->call_threads(lock);
}

bool Ahead::take_chunk() {
  Shared& shared = *shared_;
  Shared::Lock lock(shared.mutex);
  std::optional<Clock::time_point> began;
  for (;;) {
    check_cancelled(shared.cancel);
    if (!shared.row.empty() && shared.row.front()->stage == Chunk::Stage::kDone) break;
    if (shared.row.empty() && shared.ended && !shared.pulling) return false;
    if (!began) began = Clock::now();
    if (shared.work(lock)) continue;
    shared.changed.wait(lock);
  }
  if (began) shared.waited_seconds += seconds_since(*began);
  chunk_ = std::move(shared.row.front());
  shared.row.pop_front();
  if (!chunk_->before.empty()) {
    before_ = chunk_->before;
    taken_ = 0;
    index_ = chunk_->first;
  }
  shared.call_threads(lock);
  return true;
}

bool Ahead::next(Element& to) {
  for (;;) {
    if (chunk_ != nullptr && at_ < chunk_->elements.size()) {
      to = std::move(chunk_->elements[at_]);
      ++at_;
      ++taken_;
      if (at_ == chunk_->elements.size()) release_chunk();
      return true;
    }
    if (chunk_ != nullptr && chunk_->error) std::rethrow_exception(chunk_->error);
    if (!take_chunk()) return false;
  }
}

std::uint64_t Ahead::skip(std::uint64_t count) {
  // What is under way is let go: the input can pass over elements without making them.
  {
    Shared::Lock lock(shared_->mutex);
    shared_->quiesce(lock);
  }
  StateReader reader(before_);
  Cursor& input = *shared_->input;
  input.restore(reader);
  if (input.skip(taken_) < taken_) damaged_state("the input has fewer elements than before");
  const std::uint64_t done = input.skip(count);
  before_ = input.save_now();
  index_ += taken_ + done;
  taken_ = 0;
  shared_->pulled = index_;
  begin();
  return done;
}

void Ahead::save(StateWriter& to) const {
  to.number(index_);
  to.number(taken_);
  to.bytes(before_);
}

void Ahead::restore(StateReader& from) {
  {
    Shared::Lock lock(shared_->mutex);
    shared_->quiesce(lock);
  }
  index_ = from.number(std::numeric_limits<std::uint64_t>::max() / 2, "a count of elements");
  taken_ = from.number(kMostToPass, "the elements since a position");
  before_ = from.bytes("the position of an input");
  StateReader reader(before_);
  shared_->input->restore(reader);
  if (shared_->input->skip(taken_) < taken_) damaged_state("the input has fewer elements than before");
  shared_->pulled = index_ + taken_;
  begin();
}

void Ahead::add_stats(std::vector<DatasetStage>& to) const {
  DatasetStage stage;
  {
    const Shared::Lock lock(shared_->mutex);
    stage.name = shared_->plan.name;
    stage.elements = shared_->handed_on;
    stage.room = shared_->plan.room;
    for (const auto& chunk : shared_->row)
      stage.ready += chunk->stage == Chunk::Stage::kDone ? chunk->elements.size() : 0;
    stage.waited_seconds = shared_->waited_seconds;
    stage.full_seconds = shared_->full_seconds;
    if (shared_->full_since) stage.full_seconds += seconds_since(*shared_->full_since);
  }
  to.push_back(std::move(stage));
  shared_->input->add_stats(to);
}

}  // namespace lockstep::internal
