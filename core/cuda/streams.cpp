// core/cuda/streams.cpp - streams, events and recordings of a card.
#include "lockstep/core/cuda/internal/streams.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "lockstep/core/base/pause.h"
#include "lockstep/core/cuda/internal/commit.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::cuda {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kSpin = std::chrono::microseconds(50);  // before a thread that waits gives its core away
constexpr auto kLook = std::chrono::microseconds(20);  // then it looks this often
constexpr auto kAnchorAge = std::chrono::seconds(2);   // CUDA counts milliseconds in a float

// Has the work come to the event? Throws what went wrong before it.
bool has_come(Card& card, cudaEvent_t event) {
  const cudaError_t status = cudaEventQuery(event);
  if (status == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  card.check(status, "work on a stream");
  return true;
}

// Looks for events, for those who do not wait. Never ends: events may come while the process does.
class Lookout {
 public:
  static Lookout& of_process() {
    static auto* const lookout = new Lookout;  // NOLINT(cppcoreguidelines-owning-memory): see above
    return *lookout;
  }

  void add(Card& card, cudaEvent_t event, Completion& completion) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      awaited_.push_back({&card, event, &completion});
      if (!has_thread_) {
        try {
          std::thread([this] { serve(); }).detach();
        } catch (...) {
          awaited_.pop_back();
          throw;
        }
        has_thread_ = true;
      }
    }
    changed_.notify_one();
  }

 private:
  struct Awaited {
    Card* card;
    cudaEvent_t event;
    Completion* completion;
  };

  void serve() {
    std::vector<Awaited> mine;
    Clock::time_point quiet_since = Clock::now();
    for (;;) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        if (mine.empty()) {
          changed_.wait(lock, [this] { return !awaited_.empty(); });
          quiet_since = Clock::now();
        }
        mine.insert(mine.end(), awaited_.begin(), awaited_.end());
        awaited_.clear();
      }
      const std::size_t before = mine.size();
      std::erase_if(mine, [](const Awaited& one) { return tell(one); });
      if (mine.size() != before) {
        quiet_since = Clock::now();
      } else if (Clock::now() - quiet_since < kSpin) {
        pause_briefly();
      } else {
        std::this_thread::sleep_for(kLook);
      }
    }
  }

  static bool tell(const Awaited& one) {
    try {
      if (!one.card->is_lost()) one.card->use();
      if (!has_come(*one.card, one.event)) return false;
      one.completion->done();
    } catch (...) {
      one.completion->failed(std::current_exception());
    }
    return true;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Awaited> awaited_;
  bool has_thread_ = false;
};

// A moment that both clocks know.
class Anchor {
 public:
  static Anchor& of(Card& card) {
    static auto* const anchors =
        new std::vector<std::unique_ptr<Anchor>>;  // NOLINT(cppcoreguidelines-owning-memory)
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    while (anchors->size() <= static_cast<std::size_t>(card.number()))
      anchors->push_back(std::make_unique<Anchor>());
    return *(*anchors)[static_cast<std::size_t>(card.number())];
  }

  std::optional<SteadyTime> time_of(Card& card, cudaEvent_t event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (event_ == nullptr || Clock::now() - set_at_ > kAnchorAge) set(card);
    float milliseconds = 0;
    if (cudaEventElapsedTime(&milliseconds, event_, event) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return std::nullopt;
    }
    return set_at_ + std::chrono::duration_cast<Clock::duration>(
                         std::chrono::duration<double, std::milli>(static_cast<double>(milliseconds)));
  }

 private:
  void set(Card& card) {
    if (event_ == nullptr) card.check(cudaEventCreate(&event_), "cudaEventCreate");
    card.check(cudaEventRecord(event_, cudaStreamPerThread), "cudaEventRecord");
    card.check(cudaEventSynchronize(event_), "cudaEventSynchronize");
    set_at_ = Clock::now();
  }

  std::mutex mutex_;
  cudaEvent_t event_ = nullptr;
  SteadyTime set_at_;
};

class CardRecording final : public Recording {
 public:
  CardRecording(Card& card, cudaGraph_t graph) : card_(card) {
    card_.check(cudaGraphInstantiate(&executable_, graph, 0), "cudaGraphInstantiate");
  }
  ~CardRecording() override { static_cast<void>(cudaGraphExecDestroy(executable_)); }
  void replay(Stream& stream) override {
    card_.use();
    card_.check(cudaGraphLaunch(executable_, static_cast<cudaStream_t>(stream.native())), "cudaGraphLaunch");
  }

 private:
  Card& card_;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

// --- events

CardEvent::CardEvent(Card& card, bool timed) : card_(card), timed_(timed) {
  card_.use();
  const unsigned flags = cudaEventBlockingSync | (timed ? 0U : unsigned{cudaEventDisableTiming});
  card_.check(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreate");
}

CardEvent::~CardEvent() { static_cast<void>(cudaEventDestroy(event_)); }

bool CardEvent::is_done() const {
  card_.use();
  return has_come(card_, event_);
}

bool CardEvent::wait(std::optional<SteadyTime> deadline) const {
  card_.use();
  const SteadyTime spin_until = Clock::now() + kSpin;
  while (!has_come(card_, event_)) {
    const SteadyTime now = Clock::now();
    if (deadline && now >= *deadline) return false;
    if (now < spin_until) {
      pause_briefly();
    } else if (deadline) {
      std::this_thread::sleep_for(kLook);
    } else {
      card_.check(cudaEventSynchronize(event_), "work on a stream");
      return true;
    }
  }
  return true;
}

void CardEvent::when_done(Completion& completion) {
  card_.use();
  if (has_come(card_, event_)) {
    completion.done();
  } else {
    Lookout::of_process().add(card_, event_, completion);
  }
}

std::optional<SteadyTime> CardEvent::time() const {
  if (!timed_) return std::nullopt;
  card_.use();
  return Anchor::of(card_).time_of(card_, event_);
}

// --- streams

CardStream::CardStream(Card& card) : card_(card) {
  card_.use();
  card_.check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
}

CardStream::~CardStream() { static_cast<void>(cudaStreamDestroy(stream_)); }

void CardStream::record(Event& event) {
  card_.use();
  card_.check(cudaEventRecord(static_cast<CardEvent&>(event).native(), stream_), "cudaEventRecord");
}

void CardStream::wait(const Event& event) {
  card_.use();
  card_.check(cudaStreamWaitEvent(stream_, static_cast<const CardEvent&>(event).native(), 0),
              "cudaStreamWaitEvent");
}

void CardStream::copy(void* to, MemoryId /*to_memory*/, const void* from, MemoryId /*from_memory*/,
                      std::size_t bytes) {
  if (bytes == 0) return;
  card_.use();
  card_.check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
}

void CardStream::fill(void* to, std::byte value, std::size_t bytes) {
  if (bytes == 0) return;
  card_.use();
  card_.check(cudaMemsetAsync(to, static_cast<int>(value), bytes, stream_), "cudaMemsetAsync");
}

void CardStream::latch(void* decision, const void* words, std::size_t count) {
  card_.use();
  card_.check(launch_latch(stream_, decision, words, count), "the launch of latch");
}

void CardStream::copy_unless(const void* decision, void* to, const void* from, std::size_t bytes) {
  card_.use();
  card_.check(launch_copy_unless(stream_, decision, to, from, bytes), "the launch of copy_unless");
}

void CardStream::begin_recording() {
  card_.use();
  const cudaError_t status = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
  if (status == cudaErrorIllegalState || status == cudaErrorStreamCaptureUnsupported) {
    static_cast<void>(cudaGetLastError());
    throw FailedPrecondition("the stream records already");
  }
  card_.check(status, "cudaStreamBeginCapture");
}

std::unique_ptr<Recording> CardStream::end_recording() {
  card_.use();
  cudaGraph_t graph = nullptr;
  const cudaError_t status = cudaStreamEndCapture(stream_, &graph);
  const std::unique_ptr<CUgraph_st, decltype(&cudaGraphDestroy)> owner(graph, &cudaGraphDestroy);
  if (status == cudaErrorIllegalState || status == cudaErrorStreamCaptureUnjoined ||
      status == cudaErrorStreamCaptureWrongThread || status == cudaErrorStreamCaptureInvalidated) {
    static_cast<void>(cudaGetLastError());
    throw FailedPrecondition(str("the recording cannot end: ", cudaGetErrorString(status)));
  }
  card_.check(status, "cudaStreamEndCapture");
  return std::make_unique<CardRecording>(card_, graph);
}

void CardStream::wait_in_replays(const Event& event) {
  card_.use();
  card_.check(
      cudaStreamWaitEvent(stream_, static_cast<const CardEvent&>(event).native(), cudaEventWaitExternal),
      "cudaStreamWaitEvent");
}

}  // namespace lockstep::internal::cuda
