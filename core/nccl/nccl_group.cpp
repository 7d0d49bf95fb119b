// core/nccl/nccl_group.cpp - a Communicator between processes, each with a card, over NCCL.
#include "lockstep/core/nccl/nccl_group.h"

#include <chrono>
#include <cstring>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <nccl.h>

#include "lockstep/core/cuda/internal/card.h"
#include "lockstep/core/dynamic_library.h"

namespace lockstep {
namespace {

using internal::cuda::Card;
using Clock = std::chrono::steady_clock;
using Kind = CommunicatorCall::Kind;

constexpr std::chrono::microseconds kLook{20};  // between two looks at what goes on by itself
constexpr std::chrono::milliseconds kKnock{2};  // between two looks for a member that has not come
constexpr std::chrono::seconds kLeaving{2};     // for the others to take leave, too

// The functions of the library, by the names of their declarations.
#define LOCKSTEP_NCCL_FUNCTIONS(each)                                                                 \
  each(GetUniqueId) each(CommInitRankConfig) each(CommFinalize) each(CommDestroy) each(CommAbort)     \
      each(CommGetAsyncError) each(GetErrorString) each(GetLastError) each(GroupStart) each(GroupEnd) \
          each(AllReduce) each(Reduce) each(Broadcast) each(AllGather) each(ReduceScatter) each(Send) \
              each(Recv)
struct Library {
// NOLINTNEXTLINE(bugprone-macro-parentheses): it is declared
#define LOCKSTEP_NCCL_DECLARED(name) decltype(&::nccl##name) name = nullptr;
  LOCKSTEP_NCCL_FUNCTIONS(LOCKSTEP_NCCL_DECLARED)
#undef LOCKSTEP_NCCL_DECLARED
  Decision found = Decision::yes();

  Library() {
    DynamicLibrary library("libnccl.so.2");
#define LOCKSTEP_NCCL_LOADED(name) library.load(name, "nccl" #name);
    LOCKSTEP_NCCL_FUNCTIONS(LOCKSTEP_NCCL_LOADED)
#undef LOCKSTEP_NCCL_LOADED
    found = library.found();
  }
  static const Library& get() {
    static const Library library;
    return library;
  }
};

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF16: return ncclFloat16;
    case DType::kBF16: return ncclBfloat16;
    case DType::kF32: return ncclFloat32;
    case DType::kF64: return ncclFloat64;
    case DType::kI32: return ncclInt32;
    case DType::kI64: return ncclInt64;
    case DType::kU8:
    case DType::kBool: return ncclUint8;
  }
  return ncclUint8;
}

ncclRedOp_t op_of(ReplicaReduce op) {
  switch (op) {
    case ReplicaReduce::kSum: return ncclSum;
    case ReplicaReduce::kMean: return ncclAvg;
    case ReplicaReduce::kMin: return ncclMin;
    case ReplicaReduce::kMax: return ncclMax;
    case ReplicaReduce::kProd: return ncclProd;
  }
  return ncclSum;
}

bool has_passed(Deadline deadline) { return deadline && Clock::now() >= *deadline; }

// One participant. Operations under way keep it alive.
class Member {
 public:
  Member(const NcclGroupSpec& spec, Rendezvous& rendezvous, Deadline deadline, const std::stop_token& stop);
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  int rank() const { return spec_.rank; }
  int size() const { return spec_.size; }
  const std::string& name() const { return spec_.name; }
  Card& card() const { return card_; }
  cudaStream_t stream() const { return stream_; }

  // Puts the calls on the stream, several as one, and marks their end with the event.
  // Until the earliest of the deadlines it may wait for others to connect.
  void put(std::span<const CommunicatorCall> calls, cudaEvent_t end, Deadline deadline = {});
  // Has all work before the event been done? Throws why the group failed.
  bool is_done(cudaEvent_t event);
  // The group is over for this participant, and the others go on with what they have of it; an abort in time if they do not.
  void leave() noexcept;
  // The group ends for this participant; the first reason is kept.
  void abort(ErrorCode code, const std::string& why) noexcept;
  void throw_if_aborted();

 private:
  void connect(Rendezvous& rendezvous, Deadline deadline, const std::stop_token& stop);
  std::string missing(Rendezvous& rendezvous) const;
  std::string key(std::string_view what) const { return str(spec_.name, ".", spec_.generation, "/", what); }
  // Waits for a call that goes on by itself.
  void settle(ncclResult_t result, const char* what, Deadline deadline, const std::stop_token& stop = {});
  void check_goes_on(const std::stop_token& stop) const;
  ncclResult_t state();
  void put_together(std::span<const CommunicatorCall> calls, cudaEvent_t end, Deadline deadline);
  void put_one(const CommunicatorCall& call);

  const Library& nccl_ = Library::get();
  const NcclGroupSpec spec_;
  Card& card_;
  cudaStream_t stream_ = nullptr;
  void* word_ = nullptr;  // for barriers
  std::mutex mutex_;      // of what follows
  ncclComm_t comm_ = nullptr;
  bool aborted_ = false;
  ErrorCode code_ = ErrorCode::kUnavailable;
  std::string why_;
};

Member::Member(const NcclGroupSpec& spec, Rendezvous& rendezvous, Deadline deadline,
               const std::stop_token& stop)
    : spec_(spec), card_(Card::at(spec.card)) {
  card_.use();
  card_.check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream for NCCL");
  try {
    card_.check(cudaMalloc(&word_, sizeof(std::int64_t)), "memory for barriers");
    connect(rendezvous, deadline, stop);
  } catch (...) {
    abort(ErrorCode::kUnavailable, "it could not be built");
    static_cast<void>(cudaFree(word_));
    static_cast<void>(cudaStreamDestroy(stream_));
    throw;
  }
}

Member::~Member() {
  try {
    card_.use();
  } catch (const std::exception&) {
    return;  // the card is lost, and all that was on it
  }
  leave();
  static_cast<void>(cudaStreamSynchronize(stream_));
  static_cast<void>(cudaFree(word_));
  static_cast<void>(cudaStreamDestroy(stream_));
}

void Member::connect(Rendezvous& rendezvous, Deadline deadline, const std::stop_token& stop) {
  ncclUniqueId id;
  rendezvous.set(key(str("member-", spec_.rank)), "here");
  if (spec_.rank == 0) {
    settle(nccl_.GetUniqueId(&id), "an id", deadline);
    rendezvous.set(key("id"), std::string_view(id.internal, sizeof id.internal));
  } else {
    try {
      while (stop.stop_possible() && !rendezvous.has(key("id")) && !has_passed(deadline)) {
        check_goes_on(stop);
        std::this_thread::sleep_for(kKnock);
      }
      const std::string bytes = rendezvous.get(key("id"), deadline);
      if (bytes.size() != sizeof id.internal)
        throw Error(ErrorCode::kUnavailable, str("the id of group '", spec_.name, "' is no id of NCCL"));
      std::memcpy(id.internal, bytes.data(), sizeof id.internal);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kDeadlineExceeded) throw;
      throw Error(ErrorCode::kDeadlineExceeded,
                  str("group '", spec_.name, "' did not come together in time: ", missing(rendezvous)));
    }
  }
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  try {
    settle(nccl_.CommInitRankConfig(&comm_, spec_.size, id, spec_.rank, &config), "joining the group",
           deadline, stop);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDeadlineExceeded) throw;
    throw Error(ErrorCode::kDeadlineExceeded,
                str("group '", spec_.name, "' did not come together in time: ", missing(rendezvous)));
  }
}

std::string Member::missing(Rendezvous& rendezvous) const {
  std::string ranks;
  for (int rank = 0; rank < spec_.size; ++rank) {
    if (!rendezvous.has(key(str("member-", rank)))) ranks += str(ranks.empty() ? "" : ", ", rank);
  }
  return ranks.empty() ? "all of them came, and NCCL did not get ready" : str("missing are members ", ranks);
}

ncclResult_t Member::state() {
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = nccl_.CommGetAsyncError(comm_, &result);
  return asked == ncclSuccess ? result : asked;
}

void Member::check_goes_on(const std::stop_token& stop) const {
  if (stop.stop_requested())
    throw Error(ErrorCode::kCancelled, str("group '", spec_.name, "': joining it was given up"));
}

void Member::settle(ncclResult_t result, const char* what, Deadline deadline, const std::stop_token& stop) {
  while (result == ncclInProgress) {
    check_goes_on(stop);
    if (has_passed(deadline))
      throw Error(ErrorCode::kDeadlineExceeded, str("group '", spec_.name, "': ", what, " took too long"));
    std::this_thread::sleep_for(kLook);
    result = state();
  }
  if (result != ncclSuccess)
    throw Error(ErrorCode::kUnavailable,
                str("group '", spec_.name, "': ", what, ": NCCL says: ", nccl_.GetErrorString(result), " (",
                    nccl_.GetLastError(comm_), ")"));
}

void Member::throw_if_aborted() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (aborted_) throw Error(code_, str("group '", spec_.name, "' is over: ", why_));
}

void Member::abort(ErrorCode code, const std::string& why) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!aborted_) {
    code_ = code;
    why_ = why;
  }
  aborted_ = true;
  if (comm_ != nullptr) static_cast<void>(nccl_.CommAbort(std::exchange(comm_, nullptr)));
}

void Member::leave() noexcept {
  std::unique_lock<std::mutex> lock(mutex_);
  if (comm_ == nullptr) return;
  aborted_ = true;
  why_ = "this participant has left it";
  ncclResult_t result = nccl_.CommFinalize(comm_);
  for (const auto end = Clock::now() + kLeaving; result == ncclInProgress && Clock::now() < end;) {
    lock.unlock();  // an abort does not wait for the others
    std::this_thread::sleep_for(kLook);
    lock.lock();
    if (comm_ == nullptr) return;  // aborted meanwhile
    result = state();
  }
  if (result == ncclSuccess) {
    static_cast<void>(nccl_.CommDestroy(std::exchange(comm_, nullptr)));
    return;
  }
  lock.unlock();
  abort(ErrorCode::kUnavailable, "this participant has left it");
}

void Member::put_one(const CommunicatorCall& call) {
  const auto count = static_cast<std::size_t>(call.count);
  const ncclDataType_t type = type_of(call.dtype);
  const ncclRedOp_t op = op_of(call.op);
  ncclResult_t result = ncclSuccess;
  switch (call.kind) {
    case Kind::kAllReduce:
      result = nccl_.AllReduce(call.in, call.out, count, type, op, comm_, stream_);
      break;
    case Kind::kReduce:
      result = nccl_.Reduce(call.in, call.out, count, type, op, call.peer, comm_, stream_);
      break;
    case Kind::kBroadcast:
      result = nccl_.Broadcast(call.in, call.out, count, type, call.peer, comm_, stream_);
      break;
    case Kind::kAllGather: result = nccl_.AllGather(call.in, call.out, count, type, comm_, stream_); break;
    case Kind::kReduceScatter:
      result = nccl_.ReduceScatter(call.in, call.out, count, type, op, comm_, stream_);
      break;
    case Kind::kBarrier: result = nccl_.AllReduce(word_, word_, 1, ncclInt64, ncclSum, comm_, stream_); break;
    case Kind::kDecline: break;  // refused before
    case Kind::kSend: result = nccl_.Send(call.in, count, type, call.peer, comm_, stream_); break;
    case Kind::kReceive: result = nccl_.Recv(call.out, count, type, call.peer, comm_, stream_); break;
  }
  if (result != ncclSuccess && result != ncclInProgress) settle(result, to_string(call).c_str(), {});
}

void Member::put(std::span<const CommunicatorCall> calls, cudaEvent_t end, Deadline deadline) {
  throw_if_aborted();
  card_.use();
  for (const CommunicatorCall& call : calls) {
    if (call.deadline && (!deadline || *call.deadline < *deadline)) deadline = call.deadline;
  }
  try {
    put_together(calls, end, deadline);
  } catch (const std::exception& error) {  // what was put and what was not is not known: the group is over
    abort(ErrorCode::kUnavailable, error.what());
    throw;
  }
}

void Member::put_together(std::span<const CommunicatorCall> calls, cudaEvent_t end, Deadline deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (comm_ == nullptr) return;  // aborted meanwhile: is_done() says so
  settle(nccl_.GroupStart(), "the beginning of calls", {});
  std::exception_ptr refused;
  try {
    for (const CommunicatorCall& call : calls) put_one(call);
  } catch (...) {
    refused = std::current_exception();
  }
  ncclResult_t result =
      nccl_.GroupEnd();  // in any case: what follows on this thread would be part of the group otherwise
  if (refused != nullptr) std::rethrow_exception(refused);
  while (result == ncclInProgress) {  // it connects to the others first
    lock.unlock();
    if (has_passed(deadline))
      throw Error(ErrorCode::kDeadlineExceeded, str(to_string(calls[0]), " had not begun by its deadline"));
    std::this_thread::sleep_for(kLook);
    lock.lock();
    if (comm_ == nullptr) return;
    result = state();
  }
  settle(result, to_string(calls[0]).c_str(), {});
  card_.check(cudaEventRecord(end, stream_), "the end of a collective");
}

bool Member::is_done(cudaEvent_t event) {
  throw_if_aborted();
  card_.use();
  const cudaError_t status = cudaEventQuery(event);
  if (status == cudaSuccess) {
    throw_if_aborted();  // an aborted operation ends, too
    return true;
  }
  if (status != cudaErrorNotReady) card_.check(status, "a collective");
  std::string why;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (comm_ == nullptr) return false;
    const ncclResult_t result = state();
    if (result == ncclSuccess || result == ncclInProgress) return false;
    why = str("NCCL says: ", nccl_.GetErrorString(result), " (", nccl_.GetLastError(comm_), ")");
  }
  abort(ErrorCode::kUnavailable, why);
  throw_if_aborted();
  return false;
}

// Messages are put on the stream when the first of them is waited for, all that were started as one: two participants that
// send to each other would wait for each other otherwise.
class NcclPending;
struct Messages {
  std::vector<CommunicatorCall> calls;
  std::vector<NcclPending*> pending;
};

class NcclPending final : public PendingState {
 public:
  NcclPending(std::shared_ptr<Member> member, const CommunicatorCall& call,
              std::shared_ptr<Messages> messages)
      : member_(std::move(member)), call_(call), messages_(std::move(messages)) {
    member_->card().use();
    member_->card().check(cudaEventCreateWithFlags(&end_, cudaEventDisableTiming), "an event");
  }
  ~NcclPending() override { static_cast<void>(cudaEventDestroy(end_)); }
  NcclPending(const NcclPending&) = delete;
  NcclPending& operator=(const NcclPending&) = delete;

  cudaEvent_t end() const { return end_; }
  void was_put() { is_put_ = true; }

  // All messages that wait, as one.
  static void put(Member& member, Messages& messages, Deadline deadline) {
    if (messages.calls.empty()) return;
    const std::vector<NcclPending*> pending = std::exchange(messages.pending, {});
    const std::vector<CommunicatorCall> calls = std::exchange(messages.calls, {});
    member.put(calls, pending[0]->end(), deadline);
    for (NcclPending* const one : pending) {
      if (one != pending[0])
        member.card().check(cudaEventRecord(one->end(), member.stream()), "the end of a message");
      one->was_put();
    }
  }

  bool done(int /*rank*/) override {
    if (!is_put_) put(*member_, *messages_, call_.deadline);
    return member_->is_done(end_);
  }

  void wait(int /*rank*/) override {
    try {
      if (!is_put_) put(*member_, *messages_, call_.deadline);
      while (!member_->is_done(end_)) {
        if (has_passed(call_.deadline)) {
          member_->abort(
              ErrorCode::kDeadlineExceeded,
              str(to_string(call_),
                  " was not over by its deadline: a participant did not come, or calls do not agree"));
          member_->throw_if_aborted();
        }
        std::this_thread::sleep_for(kLook);
      }
      is_over_ = true;
    } catch (...) {
      member_->abort(ErrorCode::kUnavailable, "an operation failed");
      finish();
      throw;
    }
  }

  void release(int /*rank*/) noexcept override {
    if (!is_over_ && !is_done_quietly()) {
      member_->abort(ErrorCode::kUnavailable, str(to_string(call_), " was dropped before it was over"));
      finish();
    }
    std::erase(messages_->pending, this);
    delete this;  // NOLINT(cppcoreguidelines-owning-memory): as PendingState says
  }

 private:
  bool is_done_quietly() noexcept {
    try {
      return is_put_ && member_->is_done(end_);
    } catch (const std::exception&) {
      return false;
    }
  }
  // Of an aborted group: what had begun has ended when this returns.
  void finish() noexcept {
    static_cast<void>(cudaStreamSynchronize(member_->stream()));
    is_over_ = true;
  }

  std::shared_ptr<Member> member_;
  CommunicatorCall call_;
  std::shared_ptr<Messages> messages_;
  cudaEvent_t end_ = nullptr;
  bool is_put_ = false, is_over_ = false;
};

class NcclCommunicator final : public Communicator {
 public:
  explicit NcclCommunicator(std::shared_ptr<Member> member) : member_(std::move(member)) {}
  ~NcclCommunicator() override { NcclCommunicator::close(); }

  int rank() const override { return member_->rank(); }
  int size() const override { return member_->size(); }
  bool takes(DeviceKind memory) const override { return memory == DeviceKind::kGpu; }
  void close() override {
    is_closed_ = true;
    member_->leave();
  }
  void abort(const Error& why) override { member_->abort(why.code(), why.what()); }

 protected:
  Pending start(const CommunicatorCall& call) override {
    if (call.parts != 1)
      throw Error(ErrorCode::kUnimplemented,
                  str(to_string(call), ": NCCL combines one array of each member"));
    if (is_closed_) throw FailedPrecondition(str(to_string(call), ": this communicator is closed"));
    member_->throw_if_aborted();
    check_memory(call);
    auto pending = std::make_unique<NcclPending>(member_, call, messages_);
    if (call.is_collective()) {
      NcclPending::put(*member_, *messages_, call.deadline);
      member_->put({&call, 1}, pending->end());
      pending->was_put();
    } else {
      messages_->pending.push_back(pending.get());
      messages_->calls.push_back(call);
    }
    return {pending.release(), rank()};
  }

 private:
  void check_memory(const CommunicatorCall& call) const {
    const bool gives = call.kind != Kind::kReduce || call.peer == rank();  // else `out` is ignored
    for (const void* address : {call.in, gives ? static_cast<const void*>(call.out) : nullptr}) {
      if (address == nullptr || call.count == 0) continue;
      cudaPointerAttributes found{};
      member_->card().use();
      member_->card().check(cudaPointerGetAttributes(&found, address), "where an array lies");
      if (found.type != cudaMemoryTypeDevice || found.device != member_->card().number())
        throw InvalidArgument(str(to_string(call), ": NCCL exchanges memory of card ",
                                  member_->card().number(), ", and an array of this call lies elsewhere"));
    }
  }

  std::shared_ptr<Member> member_;
  std::shared_ptr<Messages> messages_ = std::make_shared<Messages>();
  bool is_closed_ = false;
};

}  // namespace

Decision has_nccl() { return Library::get().found; }

std::unique_ptr<Communicator> connect_nccl(const NcclGroupSpec& spec, Rendezvous& rendezvous,
                                           Deadline deadline, const std::stop_token& stop) {
  if (const Decision found = has_nccl(); !found) throw Error(ErrorCode::kUnavailable, found.reason());
  if (spec.size < 1 || spec.rank < 0 || spec.rank >= spec.size)
    throw InvalidArgument(str("connect_nccl: there is no member ", spec.rank, " of ", spec.size));
  if (spec.card < 0 || spec.card >= Card::count())
    throw InvalidArgument(str("connect_nccl: there is no card ", spec.card, ": this machine has ",
                              counted(static_cast<std::size_t>(Card::count()), "card")));
  return std::make_unique<NcclCommunicator>(std::make_shared<Member>(spec, rendezvous, deadline, stop));
}

}  // namespace lockstep
