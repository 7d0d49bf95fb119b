// testing/fake_gpu.cpp - GPUs that threads play: memory, streams, the order of calls, recordings, faults.
#include "lockstep/testing/fake_gpu.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include "lockstep/core/communicators/device_group.h"
#include "lockstep/core/communicators/in_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/testing/internal/fake_participant.h"
#if defined(__SANITIZE_THREAD__)
#define LOCKSTEP_THREAD_SANITIZER
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LOCKSTEP_THREAD_SANITIZER
#endif
#endif
#ifdef LOCKSTEP_THREAD_SANITIZER
extern "C" {
void __tsan_read_range(void* address, unsigned long bytes);
void __tsan_write_range(void* address, unsigned long bytes);
}
#endif

namespace lockstep::testing {
namespace {

using Clock = std::vector<std::uint64_t>;  // by lane: how many of its calls are known to be over

void merge(Clock& into, const Clock& other) {
  if (into.size() < other.size()) into.resize(other.size());
  for (std::size_t i = 0; i < other.size(); ++i) into[i] = std::max(into[i], other[i]);
}

// Of the calling thread: how many recordings it is making.
thread_local int recording = 0;

// How often the calling thread has entered a FakeGpu.
thread_local int at_work = 0;
class AtWork {
 public:
  AtWork() { ++at_work; }
  ~AtWork() { --at_work; }
  AtWork(const AtWork&) = delete;
  AtWork& operator=(const AtWork&) = delete;
};

void refuse_while_recording(const char* what) {
  if (recording > 0) throw FailedPrecondition(str("a thread that records a stream cannot ", what));
}

// A sleep lasts at least some 50 us, however short: less than that is waited for awake.
void pause(std::chrono::microseconds length) {
  if (length >= std::chrono::microseconds(100)) {
    std::this_thread::sleep_for(length);
    return;
  }
  const auto end = std::chrono::steady_clock::now() + length;
  while (std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

}  // namespace

// Which calls are known to come after which, and who used which bytes last.
class FakeGpu::Order {
 public:
  ~Order() {
    for (const auto& [address, block] : blocks_) unmap(address, block);
    if (late_report_.empty()) return;
    std::fprintf(stderr, "FakeGpu: %s\n", late_report_.c_str());
    std::abort();
  }

  // --- memory
  char* map(std::size_t bytes, MemoryId memory) {
    const std::size_t rounded = (bytes / 65536 + 1) * 65536;
    const int file = memfd_create("fake_gpu", 0);
    if (file < 0) return nullptr;
    if (ftruncate(file, static_cast<off_t>(rounded)) != 0) {
      close(file);
      return nullptr;
    }
    void* address = mmap(nullptr, rounded, PROT_NONE, MAP_SHARED, file, 0);
    void* near = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (address == MAP_FAILED || near == MAP_FAILED) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_[static_cast<char*>(address)] = {static_cast<char*>(near), rounded, memory, {}};
    return static_cast<char*>(address);
  }
  void give_back(void* block) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(static_cast<char*>(block));
    for (const Access& access : found->second.accesses) {
      if (is_over(access, host_) || !late_report_.empty()) continue;
      late_report_ = str("memory was given back that ", access.what, " may still use");
    }
    unmap(found->first, found->second);
    blocks_.erase(found);
  }
  // Is the address in a block of this memory, or in none if that is the host's?
  void check_memory(const void* address, MemoryId memory, const std::string& who) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = find_block(static_cast<char*>(const_cast<void*>(address)));
    const MemoryId actual = found == blocks_.end() ? kHostMemory : found->second.memory;
    if (actual == memory) return;
    throw Error(ErrorCode::kInternal,
                str(who, " in memory ", memory.value, " what lies in memory ", actual.value));
  }
  // Null: not in any block.
  char* find_near(const void* address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto* at = static_cast<char*>(const_cast<void*>(address));
    const auto found = find_block(at);
    return found == blocks_.end() ? nullptr : found->second.near + (at - found->first);
  }

  // --- order. A lane is a stream, or a branch of a recording while it is replayed.
  struct Line {
    std::size_t number = 0;
    Clock known;  // before whatever comes next
  };
  Line add_line() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return {lines_++, {}};
  }
  // A call is put on the line. Returns its pause. Throws if it is to be refused.
  struct Orders {
    std::chrono::microseconds pause{0};
    bool fails = false;
  };
  Orders add_call(Line& line, const FakeCall& call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    check_late();
    const std::uint64_t number = calls_++;
    if (number == refused_)
      throw Error(ErrorCode::kUnavailable, str(call.what, " could not be put on its stream"));
    merge(line.known, host_);
    if (line.known.size() <= line.number) line.known.resize(line.number + 1);
    const std::uint64_t turn = ++line.known[line.number];
    for (const FakeRange& range : call.reads) use(range, false, call.what, &line, turn);
    for (const FakeRange& range : call.writes) use(range, true, call.what, &line, turn);
    Orders orders{.pause = each_, .fails = number == failing_};
    if (longest_.count() > 0) {
      orders.pause = std::chrono::microseconds(
          std::uniform_int_distribution<std::int64_t>(0, longest_.count())(random_));
    }
    return orders;
  }
  // So many calls of a recording are put on streams: all of them, or none. Throws if one is to be refused.
  void check_replay(std::uint64_t calls) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (refused_ < calls_ || refused_ - calls_ >= calls) return;
    calls_ = refused_ + 1;
    throw Error(ErrorCode::kUnavailable, "a recording could not be put on its stream");
  }
  Clock mark(Line& line) {
    const std::lock_guard<std::mutex> lock(mutex_);
    merge(line.known, host_);
    return line.known;
  }
  void follow(Line& line, const Clock& event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    merge(line.known, event);
  }
  void host_waited(const Clock& event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    merge(host_, event);
    check_late();
  }
  void host_uses(const FakeRange& range, bool writes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    check_late();
    use(range, writes, "the host", nullptr, 0);
  }

  // Nothing of the line runs any more, or ever will.
  void end_line(std::size_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (host_.size() <= number) host_.resize(number + 1);
    host_[number] = ~std::uint64_t{0};
  }

  // --- faults and figures
  void fail_call(std::uint64_t k) {
    const std::lock_guard<std::mutex> lock(mutex_);
    failing_ = calls_ + k;
  }
  void refuse_call(std::uint64_t k) {
    const std::lock_guard<std::mutex> lock(mutex_);
    refused_ = calls_ + k;
  }
  void set_delays(std::chrono::microseconds longest, std::uint64_t seed) {
    const std::lock_guard<std::mutex> lock(mutex_);
    longest_ = longest;
    random_.seed(seed);
    each_ = {};
  }
  void set_delay(std::chrono::microseconds each) {
    const std::lock_guard<std::mutex> lock(mutex_);
    longest_ = {};
    each_ = each;
  }
  std::uint64_t calls() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return calls_;
  }
  std::atomic<std::uint64_t> replays{0};
  std::atomic<bool> refuses_recordings{false};

 private:
  struct Access {
    char *begin, *end;
    std::size_t line;
    std::uint64_t turn;
    bool writes;
    std::string what;
  };
  struct Block {
    char* near;
    std::size_t bytes;
    MemoryId memory;
    std::vector<Access> accesses;
  };

  static void unmap(char* address, const Block& block) {
    munmap(address, block.bytes);
    munmap(block.near, block.bytes);
  }
  static bool is_over(const Access& access, const Clock& known) {
    return access.line < known.size() && access.turn <= known[access.line];
  }
  std::map<char*, Block>::iterator find_block(char* address) {
    auto found = blocks_.upper_bound(address);
    if (found == blocks_.begin()) return blocks_.end();
    --found;
    return address < found->first + found->second.bytes ? found : blocks_.end();
  }
  // Memory is given back where nothing can be thrown.
  void check_late() {
    if (!late_report_.empty()) throw Error(ErrorCode::kInternal, std::exchange(late_report_, {}));
  }
  // `line`: null for the host, whose use is over at once.
  void use(const FakeRange& range, bool writes, const std::string& what, const Line* line,
           std::uint64_t turn) {
    auto* const begin = static_cast<char*>(const_cast<void*>(range.begin));
    char* const end = begin + range.bytes;
    const auto found = find_block(begin);
    if (found == blocks_.end() || range.bytes == 0) return;
    std::vector<Access>& accesses = found->second.accesses;
    const Clock& known = line == nullptr ? host_ : line->known;
    for (const Access& other : accesses) {
      const bool conflicts = (writes || other.writes) && other.begin < end && begin < other.end;
      const bool is_own = line != nullptr && other.line == line->number && other.turn == turn;
      if (!conflicts || is_own || is_over(other, known)) continue;
      throw Error(ErrorCode::kInternal,
                  str(what, " ", writes ? "writes" : "reads", " memory that ", other.what, " ",
                      other.writes ? "writes" : "reads", ", and nothing says which of them comes first"));
    }
    if (line == nullptr) return;
    // What this use comes after says nothing any more where this one says as much.
    std::erase_if(accesses, [&](const Access& other) {
      return begin <= other.begin && other.end <= end && is_over(other, known) &&
             (writes || (!other.writes && other.line == line->number)) &&
             !(other.line == line->number && other.turn == turn);
    });
    accesses.push_back({begin, end, line->number, turn, writes, what});
  }

  std::mutex mutex_;
  std::map<char*, Block> blocks_;
  std::size_t lines_ = 0;
  Clock host_;
  std::uint64_t calls_ = 0, failing_ = ~std::uint64_t{0}, refused_ = ~std::uint64_t{0};
  std::chrono::microseconds longest_{0}, each_{0};
  std::minstd_rand random_;
  std::string late_report_;
};

// What went wrong on a device, once. From then on nothing runs there, and whoever is told can rely on that.
class FakeGpu::Health {
 public:
  explicit Health(std::shared_ptr<Order> order) : order_(std::move(order)) {}

  void add_line(std::size_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    lines_.push_back(number);
  }
  // Around a call; false: it must not run.
  bool begin_call() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_ == nullptr) ++running_;
    return error_ == nullptr;
  }
  void end_call(std::exception_ptr why) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_ == nullptr) error_ = std::move(why);
    --running_;
    changed_.notify_all();
  }
  void lose(std::exception_ptr why) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_ == nullptr) error_ = std::move(why);
  }
  // Null: all is well.
  std::exception_ptr find() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (error_ == nullptr) return nullptr;
    changed_.wait(lock, [this] { return running_ == 0; });
    for (const std::size_t line : lines_) order_->end_line(line);
    return error_;
  }
  void check() {
    if (const std::exception_ptr why = find()) std::rethrow_exception(why);
  }

 private:
  std::shared_ptr<Order> order_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr error_;
  std::size_t running_ = 0;  // calls, on all lanes
  std::vector<std::size_t> lines_;
};

class FakeGpu::Pool final : public MemoryPool {
 public:
  Pool(std::shared_ptr<Order> order, MemoryId memory, std::int64_t limit)
      : MemoryPool(DeviceKind::kGpu, memory), order_(std::move(order)), limit_(limit) {}

  void read(void* host, const void* block, std::size_t bytes) override {
    const AtWork inside;
    refuse_while_recording("read the device's memory");
    order_->host_uses({block, bytes}, false);
    std::memcpy(host, order_->find_near(block), bytes);
  }
  void write(void* block, const void* host, std::size_t bytes) override {
    const AtWork inside;
    refuse_while_recording("write the device's memory");
    order_->host_uses({block, bytes}, true);
    std::memcpy(order_->find_near(block), host, bytes);
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    const AtWork inside;
    refuse_while_recording("copy within the device's memory");
    order_->host_uses({from, bytes}, false);
    order_->host_uses({to, bytes}, true);
    std::memcpy(order_->find_near(to), order_->find_near(from), bytes);
  }

 private:
  void* take(std::size_t bytes) override {
    const AtWork inside;
    if (limit_ > 0 && stats().live_bytes + static_cast<std::int64_t>(bytes) > limit_) return nullptr;
    return order_->map(bytes, memory());
  }
  void give(void* block, std::size_t) noexcept override {
    const AtWork inside;
    order_->give_back(block);
  }

  std::shared_ptr<Order> order_;
  std::int64_t limit_;
};

// A point on a lane, counted: the lane that it was set on raises `done` to the number that `set` had then.
class FakeGpu::Event final : public lockstep::Event {
 public:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t set = 0, done = 0;
    std::exception_ptr error;
    Completion* waiting = nullptr;
    SteadyTime time;  // when it was reached last
    Clock clock;
    std::shared_ptr<Tape> tape;  // it was set while this was recorded, last
    std::size_t tape_number = 0;
  };
  explicit Event(std::shared_ptr<Order> order) : order_(std::move(order)) {}
  const std::shared_ptr<State>& state() const { return state_; }

  bool is_done() const override {
    const AtWork inside;
    check_waitable();
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (state_->done < state_->set) return false;
    learn();
    return true;
  }
  bool wait(std::optional<SteadyTime> deadline) const override {
    const AtWork inside;
    check_waitable();
    std::unique_lock<std::mutex> lock(state_->mutex);
    const auto is_over = [this] { return state_->done >= state_->set; };
    if (!deadline) {
      state_->changed.wait(lock, is_over);
    } else if (!state_->changed.wait_until(lock, *deadline, is_over)) {
      return false;
    }
    learn();
    return true;
  }
  void when_done(Completion& completion) override {
    check_waitable();
    std::exception_ptr error;
    {
      const AtWork inside;
      const std::lock_guard<std::mutex> lock(state_->mutex);
      if (state_->done < state_->set) {
        LOCKSTEP_CHECK(state_->waiting == nullptr, "somebody waits for the event already");
        state_->waiting = &completion;
        return;
      }
      error = state_->error;
      order_->host_waited(state_->clock);
    }
    error == nullptr ? completion.done() : completion.failed(error);
  }
  std::optional<SteadyTime> time() const override {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->done == 0 ? std::nullopt : std::optional(state_->time);
  }
  // On the lane's thread.
  static void reach(State& state, Order& order, std::uint64_t number, const std::exception_ptr& error) {
    std::unique_lock<std::mutex> lock(state.mutex);
    state.done = std::max(state.done, number);
    state.time = std::chrono::steady_clock::now();
    if (error != nullptr) state.error = error;
    Completion* const waiting = state.done >= state.set ? std::exchange(state.waiting, nullptr) : nullptr;
    state.changed.notify_all();
    if (waiting == nullptr) return;
    std::exception_ptr late = state.error;
    try {
      order.host_waited(state.clock);
    } catch (...) {
      late = std::current_exception();
    }
    lock.unlock();
    late == nullptr ? waiting->done() : waiting->failed(late);
  }

 private:
  void check_waitable() const {
    refuse_while_recording("wait for an event");
    if (state_->tape != nullptr)
      throw FailedPrecondition("an event that was set in a recording says nothing outside of it");
  }
  void learn() const {
    if (state_->error != nullptr) std::rethrow_exception(state_->error);
    order_->host_waited(state_->clock);
  }
  std::shared_ptr<Order> order_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// What a recording keeps: calls and the events between its branches. Branch 0 is the stream that was recorded.
class FakeGpu::Tape {
 public:
  struct Entry {
    enum class Kind : std::uint8_t { kCall, kSet, kWait, kWaitOutside } kind;
    std::size_t branch;
    std::shared_ptr<const FakeCall> call;
    std::size_t event = 0;
    std::shared_ptr<Event::State> outside = nullptr;
  };

  bool open = true;  // it is being recorded

  // The branch of a lane that takes part, which it does from now on.
  std::size_t branch_of(Lane* lane) {
    const auto found = std::ranges::find(lanes_, lane);
    if (found != lanes_.end()) return static_cast<std::size_t>(found - lanes_.begin());
    lanes_.push_back(lane);
    known_.emplace_back();
    return lanes_.size() - 1;
  }
  const std::vector<Lane*>& lanes() const { return lanes_; }
  const std::vector<Entry>& entries() const { return entries_; }
  std::size_t events() const { return marks_.size(); }

  void add_call(std::size_t branch, std::shared_ptr<const FakeCall> call) {
    Clock& known = known_[branch];
    if (known.size() <= branch) known.resize(branch + 1);
    ++known[branch];
    entries_.push_back({Entry::Kind::kCall, branch, std::move(call)});
  }
  std::size_t add_set(std::size_t branch) {
    marks_.push_back(known_[branch]);
    entries_.push_back({Entry::Kind::kSet, branch, nullptr, marks_.size() - 1});
    return marks_.size() - 1;
  }
  void add_wait(std::size_t branch, std::size_t event) {
    merge(known_[branch], marks_[event]);
    entries_.push_back({Entry::Kind::kWait, branch, nullptr, event});
  }
  void add_wait_outside(std::size_t branch, std::shared_ptr<Event::State> event) {
    entries_.push_back({Entry::Kind::kWaitOutside, branch, nullptr, 0, std::move(event)});
  }
  // Does branch 0 know the last call of every other?
  bool is_joined() const {
    for (std::size_t i = 1; i < known_.size(); ++i) {
      const std::uint64_t last = i < known_[i].size() ? known_[i][i] : 0;
      if (last > (i < known_[0].size() ? known_[0][i] : 0)) return false;
    }
    return true;
  }

 private:
  std::vector<Lane*> lanes_;
  std::vector<Clock> known_;  // by branch
  std::vector<Clock> marks_;  // by event
  std::vector<Entry> entries_;
};

// A stream: a thread with a queue.
class FakeGpu::Lane final : public Stream {
 public:
  Lane(std::shared_ptr<Order> order, std::shared_ptr<Health> health, MemoryId memory)
      : order_(std::move(order)), health_(std::move(health)), memory_(memory), line_(order_->add_line()) {
    health_->add_line(line_.number);
  }
  ~Lane() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ends_ = true;
      held_ = false;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }

  void call(std::shared_ptr<const FakeCall> call) {
    const AtWork inside;
    const std::lock_guard<std::mutex> putting(putting_);
    if (tape_ != nullptr) {
      tape_->add_call(tape_->branch_of(this), std::move(call));
      return;
    }
    health_->check();
    const Order::Orders orders = order_->add_call(line_, *call);
    push([this, call = std::move(call), orders] { run(*call, orders); });
  }

  void record(lockstep::Event& given) override {
    const AtWork inside;
    const std::shared_ptr<Event::State>& event = static_cast<Event&>(given).state();
    const std::lock_guard<std::mutex> putting(putting_);
    if (tape_ != nullptr) {
      const std::lock_guard<std::mutex> lock(event->mutex);
      event->tape = tape_;
      event->tape_number = tape_->add_set(tape_->branch_of(this));
      return;
    }
    health_->check();
    const Clock clock = order_->mark(line_);
    std::uint64_t number = 0;
    {
      const std::lock_guard<std::mutex> lock(event->mutex);
      event->tape = nullptr;
      event->clock = clock;
      number = ++event->set;
    }
    push([this, event, number] { Event::reach(*event, *order_, number, health_->find()); });
  }

  void wait(const lockstep::Event& given) override {
    const AtWork inside;
    const std::shared_ptr<Event::State>& event = static_cast<const Event&>(given).state();
    const std::lock_guard<std::mutex> putting(putting_);
    std::unique_lock<std::mutex> lock(event->mutex);
    if (tape_ == nullptr && event->tape != nullptr && event->tape->open) tape_ = event->tape;
    if (tape_ != event->tape) {
      throw FailedPrecondition(event->tape == nullptr
                                   ? "a stream that is recorded cannot wait for an event of outside"
                                   : "an event that was set in a recording says nothing outside of it");
    }
    if (tape_ != nullptr) {
      tape_->add_wait(tape_->branch_of(this), event->tape_number);
      return;
    }
    put_wait(event);
  }
  void wait_in_replays(const lockstep::Event& given) override {
    const AtWork inside;
    const std::lock_guard<std::mutex> putting(putting_);
    if (tape_ == nullptr) throw FailedPrecondition("no recording was begun on this stream");
    tape_->add_wait_outside(tape_->branch_of(this), static_cast<const Event&>(given).state());
  }
  // Of a recording that is replayed.
  void wait_outside(const std::shared_ptr<Event::State>& event) {
    const std::lock_guard<std::mutex> putting(putting_);
    const std::lock_guard<std::mutex> lock(event->mutex);
    if (event->tape != nullptr)
      throw FailedPrecondition("an event that was set in a recording says nothing outside of it");
    put_wait(event);
  }

  void copy(void* to, MemoryId to_memory, const void* from, MemoryId from_memory,
            std::size_t bytes) override {
    const AtWork inside;
    if (bytes == 0) return;
    order_->check_memory(to, to_memory, "a copy writes");
    order_->check_memory(from, from_memory, "a copy reads");
    if (to_memory != memory_ && from_memory != memory_)
      throw Error(ErrorCode::kInternal,
                  "a copy is put on a stream of a device that neither reads nor writes there");
    call(std::make_shared<FakeCall>(
        FakeCall{"a copy", {{from, bytes}}, {{to, bytes}}, [order = order_.get(), to, from, bytes] {
                   std::memmove(near_of(*order, to), near_of(*order, from), bytes);
                 }}));
  }
  void fill(void* to, std::byte value, std::size_t bytes) override {
    const AtWork inside;
    if (bytes == 0) return;
    call(std::make_shared<FakeCall>(
        FakeCall{"a fill", {}, {{to, bytes}}, [order = order_.get(), to, value, bytes] {
                   std::memset(near_of(*order, to), std::to_integer<int>(value), bytes);
                 }}));
  }

  void latch(void* decision, const void* words, std::size_t count) override {
    const AtWork inside;
    constexpr std::size_t kWord = sizeof(std::uint64_t);
    call(std::make_shared<FakeCall>(FakeCall{"a latch",
                                             {{words, count * kWord}, {decision, kWord}},
                                             {{decision, kWord}},
                                             [order = order_.get(), decision, words, count] {
                                               auto& decided =
                                                   *static_cast<std::uint64_t*>(near_of(*order, decision));
                                               const auto* word =
                                                   static_cast<const std::uint64_t*>(near_of(*order, words));
                                               for (std::size_t i = 0; i < count; ++i)
                                                 decided = std::min(decided, word[i]);
                                             }}));
  }
  void copy_unless(const void* decision, void* to, const void* from, std::size_t bytes) override {
    const AtWork inside;
    if (bytes == 0) return;
    call(std::make_shared<FakeCall>(FakeCall{"a copy",
                                             {{from, bytes}, {decision, sizeof(std::uint64_t)}},
                                             {{to, bytes}},
                                             [order = order_.get(), decision, to, from, bytes] {
                                               if (is_refused(*order, decision)) return;
                                               std::memmove(near_of(*order, to), near_of(*order, from),
                                                            bytes);
                                             }}));
  }
  static bool is_refused(Order& order, const void* decision) {
    return ~*static_cast<const std::uint64_t*>(near_of(order, decision)) != 0;
  }

  void begin_recording() override {
    const AtWork inside;
    const std::lock_guard<std::mutex> putting(putting_);
    if (tape_ != nullptr) throw FailedPrecondition("the stream is recorded already");
    tape_ = std::make_shared<Tape>();
    tape_->branch_of(this);
    ++recording;
  }
  std::unique_ptr<Recording> end_recording() override;

  void* native() override { return this; }

  void hold(bool held) {
    const std::lock_guard<std::mutex> lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }
  const std::shared_ptr<Order>& order() const { return order_; }
  const std::shared_ptr<Health>& health() const { return health_; }
  MemoryId memory() const { return memory_; }
  bool is_recorded() const { return tape_ != nullptr; }

  static void* near_of(Order& order, const void* address) {
    char* const near = order.find_near(address);
    return near != nullptr ? near : const_cast<void*>(address);
  }

 private:
  // With the mutex of the event.
  void put_wait(const std::shared_ptr<Event::State>& event) {
    health_->check();
    order_->follow(line_, event->clock);
    push([event, number = event->set] {
      std::unique_lock<std::mutex> waiting(event->mutex);
      event->changed.wait(waiting, [&] { return event->done >= number; });
    });
  }
  void push(std::function<void()> work) {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(work));
    if (!thread_.joinable()) thread_ = std::thread([this] { run_all(); });
    changed_.notify_all();
  }
  void run_all() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ends_ || (!held_ && !queue_.empty()); });
      if (queue_.empty()) return;
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }
  void run(const FakeCall& call, const Order::Orders& orders) {
    pause(orders.pause);
    if (!health_->begin_call()) return;
    std::exception_ptr failure;
    try {
      if (orders.fails) throw std::runtime_error("a fault of the device");
      tell_sanitizer(call);
      if (call.run) call.run();
    } catch (const std::exception& error) {
      failure = std::make_exception_ptr(
          Error(ErrorCode::kUnavailable, str("the device failed in ", call.what, ": ", error.what())));
    }
    health_->end_call(failure);
  }
  // Of bytes that are used in code without its instruments, such as that of a BLAS.
  void tell_sanitizer([[maybe_unused]] const FakeCall& call) const {
#ifdef LOCKSTEP_THREAD_SANITIZER
    for (const FakeRange& range : call.reads) __tsan_read_range(near_of(*order_, range.begin), range.bytes);
    for (const FakeRange& range : call.writes) __tsan_write_range(near_of(*order_, range.begin), range.bytes);
#endif
  }

  std::shared_ptr<Order> order_;
  std::shared_ptr<Health> health_;
  MemoryId memory_;     // of its device
  std::mutex putting_;  // held while work gets its place in the order and in the queue
  Order::Line line_;
  std::shared_ptr<Tape> tape_;  // null: it is not recorded
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool held_ = false, ends_ = false;
  std::thread thread_;
};

// Replays a tape. Branch 0 runs on the stream that it is replayed on, the others on lanes of its own: they have
// no order with other work but that of the recording as a whole.
class FakeGpu::Replayer final : public Recording {
 public:
  Replayer(std::shared_ptr<const Tape> tape, std::vector<std::shared_ptr<Health>> healths)
      : tape_(std::move(tape)), healths_(std::move(healths)) {}

  void replay(Stream& given) override {
    const AtWork inside;
    auto& stream = static_cast<Lane&>(given);
    if (stream.is_recorded()) throw FailedPrecondition("a recording cannot be replayed into another one");
    stream.order()->check_replay(static_cast<std::uint64_t>(
        std::ranges::count(tape_->entries(), Tape::Entry::Kind::kCall, &Tape::Entry::kind)));
    for (std::size_t i = branches_.size() + 1; i < healths_.size(); ++i)
      branches_.push_back(std::make_unique<Lane>(stream.order(), healths_[i], stream.memory()));
    while (events_.size() < tape_->events() + branches_.size() + 1)
      events_.push_back(std::make_unique<Event>(stream.order()));
    Event& fork = *events_.back();
    stream.record(fork);
    for (const auto& branch : branches_) branch->wait(fork);
    const auto lane = [&](std::size_t branch) -> Lane& {
      return branch == 0 ? stream : *branches_[branch - 1];
    };
    for (const Tape::Entry& entry : tape_->entries()) {
      switch (entry.kind) {
        case Tape::Entry::Kind::kCall: lane(entry.branch).call(entry.call); break;
        case Tape::Entry::Kind::kSet: lane(entry.branch).record(*events_[entry.event]); break;
        case Tape::Entry::Kind::kWait: lane(entry.branch).wait(*events_[entry.event]); break;
        case Tape::Entry::Kind::kWaitOutside: lane(entry.branch).wait_outside(entry.outside); break;
      }
    }
    for (std::size_t i = 0; i < branches_.size(); ++i) {
      Event& end = *events_[tape_->events() + i];
      branches_[i]->record(end);
      stream.wait(end);
    }
    ++stream.order()->replays;
  }

 private:
  std::shared_ptr<const Tape> tape_;
  std::vector<std::shared_ptr<Health>> healths_;  // by branch
  std::vector<std::unique_ptr<Event>> events_;    // of the tape, the ends of the branches, the start of all
  std::vector<std::unique_ptr<Lane>> branches_;  // from branch 1 on; the last member: their threads end first
};

std::unique_ptr<Recording> FakeGpu::Lane::end_recording() {
  const AtWork inside;
  const std::lock_guard<std::mutex> putting(putting_);
  if (tape_ == nullptr || tape_->lanes()[0] != this)
    throw FailedPrecondition("no recording was begun on this stream");
  const std::shared_ptr<Tape> tape = tape_;
  --recording;
  tape->open = false;
  std::vector<std::shared_ptr<Health>> healths;
  for (Lane* lane : tape->lanes()) {
    lane->tape_ = nullptr;
    healths.push_back(lane->health());
  }
  if (!tape->is_joined()) {
    throw FailedPrecondition(
        "the recording ends before work of another stream: let the first stream wait for an event after it");
  }
  if (order_->refuses_recordings) throw Error(ErrorCode::kOutOfMemory, "no memory for a recording");
  return std::make_unique<Replayer>(tape, std::move(healths));
}

class FakeGpu::Device final : public ComputeDevice {
 public:
  Device(DeviceFacts facts, std::shared_ptr<MemoryPool> pool, const std::shared_ptr<Order>& order,
         const FakeGpuOptions& options)
      : ComputeDevice(std::move(facts), std::move(pool)),
        order_(order),
        options_(options),
        health_(std::make_shared<Health>(order)) {
    for (std::unique_ptr<Lane>& lane : lanes_)
      lane = std::make_unique<Lane>(order, health_, this->facts().memory);
  }
  Lane* stream(StreamRole role) override { return lanes_[static_cast<std::size_t>(role)].get(); }
  std::unique_ptr<lockstep::Event> make_event() override {
    const AtWork inside;
    return std::make_unique<Event>(order_);
  }
  std::unique_ptr<Stream> make_stream() override {
    const AtWork inside;
    return std::make_unique<Lane>(order_, health_, facts().memory);
  }
  Decision can_record() const override {
    return options_.records ? Decision::yes() : Decision::no("this fake does not record");
  }
  bool recordings_wait() const override { return options_.recordings_wait; }
  Health& health() { return *health_; }

 private:
  std::shared_ptr<Order> order_;
  const FakeGpuOptions options_;
  std::shared_ptr<Health> health_;
  std::array<std::unique_ptr<Lane>, kStreamRoles> lanes_;
};

FakeGpu::FakeGpu(FakeGpuOptions options) : order_(std::make_shared<Order>()), options_(std::move(options)) {
  add_kernels();
  static std::atomic<std::uint32_t> last_memory{1'000'000};
  std::map<int, std::shared_ptr<Pool>> pools;
  for (int i = 0; i < options_.devices; ++i) {
    const int number = options_.memories.empty() ? i : options_.memories[static_cast<std::size_t>(i)];
    std::shared_ptr<Pool>& pool = pools[number];
    if (pool == nullptr)
      pool = std::make_shared<Pool>(order_, MemoryId{++last_memory}, options_.memory_bytes);
    const DeviceFacts facts{.device = lockstep::Device::parse(str("gpu:", i)),
                            .memory = pool->memory(),
                            .card = number,
                            .memory_bytes = options_.memory_bytes,
                            .kernels = "fake",
                            .collectives = options_.connected ? "nccl" : ""};
    devices_.push_back(std::make_shared<Device>(facts, pool, order_, options_));
  }
}

FakeGpu::~FakeGpu() {
  for (int i = 0; i < static_cast<int>(devices_.size()); ++i) {
    for (std::size_t role = 0; role < kStreamRoles; ++role) release(i, static_cast<StreamRole>(role));
  }
}

std::vector<std::shared_ptr<ComputeDevice>> FakeGpu::open() { return devices_; }

std::vector<std::shared_ptr<ComputeDevice>> FakeGpu::open_logical(std::span<const LogicalDevice> wanted) {
  std::vector<std::shared_ptr<ComputeDevice>> parts;
  for (const LogicalDevice& part : wanted) {
    if (part.card < 0 || part.card >= static_cast<int>(devices_.size()))
      throw InvalidArgument(str("there is no card ", part.card, ": the fake has ", devices_.size()));
    const ComputeDevice& card = *devices_[static_cast<std::size_t>(part.card)];
    DeviceFacts facts = card.facts();
    facts.device.index = static_cast<int>(parts.size());
    std::shared_ptr<MemoryPool> pool = card.pool();
    if (part.memory_bytes > 0) {
      facts.memory_bytes = part.memory_bytes;
      pool = std::make_shared<LimitedPool>(std::move(pool), part.memory_bytes);
    }
    parts.push_back(std::make_shared<Device>(std::move(facts), std::move(pool), order_, options_));
  }
  devices_ = parts;
  return parts;
}

std::shared_ptr<DeviceGroup> FakeGpu::connect(std::span<const DeviceFacts> devices) {
  std::vector<std::shared_ptr<ComputeDevice>> members;
  for (const DeviceFacts& facts : devices) {
    const auto found =
        std::ranges::find_if(devices_, [&](const auto& device) { return device->facts() == facts; });
    if (found == devices_.end()) throw InvalidArgument(str("the fake has no ", facts.device));
    members.push_back(*found);
  }
  return std::make_shared<DeviceGroup>([members = std::move(members), order = order_](Deadline) {
    InProcessGroup group(static_cast<int>(members.size()));
    std::vector<std::unique_ptr<Communicator>> participants;
    for (std::size_t i = 0; i < members.size(); ++i) {
      participants.push_back(internal::make_fake_participant(
          group.join(static_cast<int>(i)), members[i],
          [order](const void* address) { return Lane::near_of(*order, address); }));
    }
    return participants;
  });
}

const std::shared_ptr<ComputeDevice>& FakeGpu::device(int index) const {
  return devices_.at(static_cast<std::size_t>(index));
}

void FakeGpu::call(Stream& stream, FakeCall call) {
  static_cast<Lane&>(stream).call(std::make_shared<FakeCall>(std::move(call)));
}

// Keeps what the call was given: the caller's context may be used again before it runs.
KernelDef FakeGpu::fake_kernel(const OpDef& op, const KernelDef& cpu) {
  KernelDef def = cpu;
  def.make = [make = cpu.make, split = cpu.split, shapes = op.shape_operands](
                 const NodeView& view, std::span<const TensorSpec> outputs) -> KernelFn {
    const std::size_t scratch_bytes = split ? split(view, outputs).scratch_bytes : 0;
    return [kernel = make(view, outputs), name = std::string(view.name()), scratch_bytes,
            shapes](KernelContext& c) {
      const AtWork inside;
      auto& lane = static_cast<Lane&>(*c.stream());
      FakeCall call{str("'", name, "'"), {}, {}, {}};
      std::vector<TensorArg> inputs, results;
      for (std::size_t i = 0; i < c.num_inputs(); ++i) {
        inputs.push_back({const_cast<void*>(c.input(i)), &c.input_spec(i)});
        const bool is_shape = std::ranges::find(shapes, i) != shapes.end();  // read when the plan was made
        if (!is_shape)
          call.reads.push_back({c.input(i), static_cast<std::size_t>(num_bytes(c.input_spec(i)))});
      }
      for (std::size_t i = 0; i < c.num_outputs(); ++i) {
        results.push_back({c.output(i), &c.output_spec(i)});
        call.writes.push_back({c.output(i), static_cast<std::size_t>(num_bytes(c.output_spec(i)))});
      }
      if (c.scratch() != nullptr) call.writes.push_back({c.scratch(), scratch_bytes});
      const DeviceBlocks& blocks = c.blocks();
      if (blocks.run != nullptr) call.reads.push_back({blocks.run, 2 * sizeof(std::uint64_t)});
      if (blocks.decision != nullptr) call.reads.push_back({blocks.decision, sizeof(std::uint64_t)});
      if (blocks.refusal != nullptr) call.writes.push_back({blocks.refusal, sizeof(std::uint64_t)});
      for (const std::vector<FakeRange>* const ranges : {&call.reads, &call.writes}) {
        for (const FakeRange& range : *ranges)
          if (range.bytes > 0) lane.order()->check_memory(range.begin, lane.memory(), call.what + " uses");
      }
      call.run = [kernel, blocks, inputs, results, order = lane.order().get(), shard = c.shard(),
                  shards = c.num_shards(), scratch = c.scratch(), replica = c.replica()] {
        if (blocks.decision != nullptr && Lane::is_refused(*order, blocks.decision)) return;
        const auto near_args = [&](std::vector<TensorArg> args) {
          for (TensorArg& arg : args) arg.data = Lane::near_of(*order, arg.data);
          return args;
        };
        const std::vector<TensorArg> from = near_args(inputs), to = near_args(results);
        RunInfo info;
        if (blocks.run != nullptr) {
          const auto* values = static_cast<const std::uint64_t*>(Lane::near_of(*order, blocks.run));
          info.seed = values[0];
          info.step = values[1];
        }
        KernelContext near(from, to, &info);
        near.set_shard(shard, shards, scratch == nullptr ? nullptr : Lane::near_of(*order, scratch));
        near.set_replica(replica);
        try {
          kernel(near);
        } catch (const Error& error) {
          if (blocks.refusal == nullptr || error.code() != ErrorCode::kInvalidArgument) throw;
          const auto* const refused = dynamic_cast<const RefusedData*>(&error);
          const std::int64_t position = refused == nullptr ? 0 : refused->position();
          auto* const word = static_cast<std::uint64_t*>(Lane::near_of(*order, blocks.refusal));
          *word = std::min(*word, blocks.refused(static_cast<std::uint32_t>(position)));
        }
      };
      lane.call(std::make_shared<FakeCall>(std::move(call)));
    };
  };
  return def;
}

void FakeGpu::add_kernels() {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  OpRegistry& registry = OpRegistry::global();
  for (const std::string& name : registry.names()) {
    const OpDef& op = registry.get(name);
    const KernelDef* cpu = registry.kernel(op, "cpu");
    if (name == "call" || cpu == nullptr || cpu->deferred || !cpu->make) continue;
    if (registry.kernel(op, "fake") == nullptr) registry.add_kernel(name, "fake", fake_kernel(op, *cpu));
  }
}

void* FakeGpu::near(const void* address) const { return Lane::near_of(*order_, address); }

void FakeGpu::hold(int device, StreamRole role) {
  static_cast<Lane*>(this->device(device)->stream(role))->hold(true);
}
void FakeGpu::release(int device, StreamRole role) {
  static_cast<Lane*>(this->device(device)->stream(role))->hold(false);
}
bool FakeGpu::is_at_work() { return at_work > 0; }
void FakeGpu::fail_call(std::uint64_t k) { order_->fail_call(k); }
void FakeGpu::refuse_call(std::uint64_t k) { order_->refuse_call(k); }
void FakeGpu::lose(int device) {
  static_cast<Device&>(*this->device(device))
      .health()
      .lose(std::make_exception_ptr(Error(ErrorCode::kUnavailable, str("device gpu:", device, " is lost"))));
}
void FakeGpu::set_delays(std::chrono::microseconds longest, std::uint64_t seed) {
  order_->set_delays(longest, seed);
}
void FakeGpu::set_delay(std::chrono::microseconds each) { order_->set_delay(each); }
void FakeGpu::refuse_recordings(bool refuse) { order_->refuses_recordings = refuse; }
std::uint64_t FakeGpu::calls() const { return order_->calls(); }
std::uint64_t FakeGpu::replays() const { return order_->replays; }

}  // namespace lockstep::testing
