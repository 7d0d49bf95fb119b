// core/communicators/communicator.cpp - participants that exchange arrays: all-reduce, broadcast, send and
// receive, ...
#include "lockstep/core/communicators/communicator.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <functional>
#include <limits>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using Kind = CommunicatorCall::Kind;

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kAllReduce: return "all_reduce";
    case Kind::kReduce: return "reduce";
    case Kind::kBroadcast: return "broadcast";
    case Kind::kAllGather: return "all_gather";
    case Kind::kReduceScatter: return "reduce_scatter";
    case Kind::kBarrier: return "barrier";
    case Kind::kDecline: return "decline";
    case Kind::kSend: return "send";
    case Kind::kReceive: return "receive";
  }
  return "unknown";
}

bool reduces(Kind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter;
}

bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto* a_begin = static_cast<const std::byte*>(a);
  const auto* b_begin = static_cast<const std::byte*>(b);
  const std::less<const std::byte*> before;
  return before(a_begin, b_begin + b_bytes) && before(b_begin, a_begin + a_bytes);
}

// The input may be the output, or lie at the caller's own part of it (reduce_scatter: the other way round).
// Any other overlap is an error.
void check_overlap(const CommunicatorCall& call, int rank, int size) {
  const std::size_t part = static_cast<std::size_t>(call.count) * size_of(call.dtype);
  std::size_t in_bytes = part * static_cast<std::size_t>(call.parts), out_bytes = part;
  const auto* in = static_cast<const std::byte*>(call.in);
  const auto* out = static_cast<const std::byte*>(call.out);
  if (call.kind == Kind::kReduceScatter) {
    in_bytes *= static_cast<std::size_t>(size);
    if (out == in + static_cast<std::size_t>(rank) * part) return;
  } else if (call.kind == Kind::kAllGather) {
    out_bytes *= static_cast<std::size_t>(size);
    if (in == out + static_cast<std::size_t>(rank) * part) return;
  } else if (in == out && call.parts == 1) {
    return;
  }
  if (overlap(in, in_bytes, out, out_bytes)) {
    throw InvalidArgument(str(to_string(call), ": input and output overlap; use the same memory for both",
                              call.kind == Kind::kReduceScatter ? " (out = in + rank * count elements)"
                              : call.kind == Kind::kAllGather   ? " (in = out + rank * count elements)"
                                                                : "",
                              ", or memory apart"));
  }
}

void check_call(const CommunicatorCall& call, int rank, int size) {
  if (call.count < 0) throw InvalidArgument(str(to_string(call), ": expected a count of at least 0"));
  if (call.kind == Kind::kDecline && call.count > Communicator::kMostReason)
    throw InvalidArgument(str(to_string(call), ": expected at most ", Communicator::kMostReason, " bytes"));
  const bool may_have_parts = call.kind == Kind::kAllReduce;
  if (call.parts < 1 || call.parts > (may_have_parts ? Communicator::kMostParts : 1))
    throw InvalidArgument(str(to_string(call), ": a participant contributes 1 array, or to all_reduce up to ",
                              Communicator::kMostParts));
  if (call.parts > 1 && call.count > std::numeric_limits<std::int64_t>::max() / 16 / call.parts)
    throw InvalidArgument(str(to_string(call), ": no memory has so many elements"));
  if (reduces(call.kind)) {
    if (const Decision can = can_reduce(call.op, call.dtype); !can)
      throw InvalidArgument(str(to_string(call), ": ", can.reason()));
  }
  const bool has_peer = call.kind == Kind::kReduce || call.kind == Kind::kBroadcast || !call.is_collective();
  if (has_peer && (call.peer < 0 || call.peer >= size)) {
    throw InvalidArgument(
        str(to_string(call), ": there is no participant ", call.peer, "; the group has ", size));
  }
  if (!call.is_collective() && call.peer == rank)
    throw InvalidArgument(str(to_string(call), ": the other end is this participant itself; copy instead"));
  if (call.is_agreement && (!call.is_collective() || call.kind == Kind::kDecline))
    throw InvalidArgument(str(to_string(call), ": participants agree on collectives"));
  if (call.count == 0 || call.kind == Kind::kBarrier) return;
  const bool reads = call.kind != Kind::kReceive;
  const bool writes = call.kind != Kind::kSend && call.kind != Kind::kDecline &&
                      (call.kind != Kind::kReduce || call.peer == rank);
  if ((reads && call.in == nullptr) || (writes && call.out == nullptr)) {
    throw InvalidArgument(str(to_string(call), ": expected ", call.count, " elements of ", call.dtype,
                              ", got a null pointer as ", reads && call.in == nullptr ? "input" : "output"));
  }
  if (reads && writes) check_overlap(call, rank, size);
}

}  // namespace

std::string to_string(const CommunicatorCall& call) {
  std::string text = str(name_of(call.kind), "(");
  if (call.kind == Kind::kBarrier) return text + ")";
  if (reduces(call.kind)) text += str(to_string(call.op), ", ");
  text += str(call.dtype, ", ", call.count);
  if (call.parts != 1) text += str(", ", call.parts, " arrays each");
  if (call.kind == Kind::kReduce || call.kind == Kind::kBroadcast) text += str(", root ", call.peer);
  if (call.kind == Kind::kSend) text += str(", to ", call.peer);
  if (call.kind == Kind::kReceive) text += str(", from ", call.peer);
  if (call.memory == DeviceKind::kGpu) text += ", on cards";
  return text + ")";
}

Declined::Declined(ErrorCode code, int participant, std::string_view reason)
    : Error(code, str("participant ", participant, " gave it up: ", reason)),
      participant_(participant),
      reason_(reason) {}
Declined::~Declined() = default;

std::optional<Declined> find_declined(const std::exception_ptr& error) {
  if (error == nullptr) return std::nullopt;
  try {
    std::rethrow_exception(error);
  } catch (const Declined& declined) {
    return declined;
  } catch (const std::nested_exception& outer) {
    return find_declined(outer.nested_ptr());
  } catch (...) {
    return std::nullopt;
  }
}

PendingState::~PendingState() = default;

Pending& Pending::operator=(Pending&& other) noexcept {
  if (this != &other) {
    drop();
    state_ = std::exchange(other.state_, nullptr);
    rank_ = other.rank_;
  }
  return *this;
}

bool Pending::done() { return state_ == nullptr || state_->done(rank_); }

void Pending::wait() {
  if (state_ == nullptr)
    throw FailedPrecondition(
        "Pending::wait(): there is nothing to wait for; each operation is waited for once");
  // Released even if wait() throws.
  const Pending owner(std::move(*this));
  owner.state_->wait(owner.rank_);
}

void Pending::drop() noexcept {
  if (state_ != nullptr) std::exchange(state_, nullptr)->release(rank_);
}

Communicator::~Communicator() = default;

Pending Communicator::checked(const CommunicatorCall& call) {
  check_call(call, rank(), size());
  if (call.kind == Kind::kDecline && !can_decline())
    throw Error(ErrorCode::kUnimplemented, "decline: participants of this group can only leave it");
  return start(call);
}

Pending Communicator::all_reduce(ReplicaReduce op, DType dtype, const void* in, void* out, std::int64_t count,
                                 Deadline deadline) {
  return checked({Kind::kAllReduce, op, dtype, count, -1, in, out, deadline});
}
Pending Communicator::reduce(ReplicaReduce op, DType dtype, const void* in, void* out, std::int64_t count,
                             int root, Deadline deadline) {
  return checked({Kind::kReduce, op, dtype, count, root, in, out, deadline});
}
Pending Communicator::reduce_scatter(ReplicaReduce op, DType dtype, const void* in, void* out,
                                     std::int64_t count, Deadline deadline) {
  return checked({Kind::kReduceScatter, op, dtype, count, -1, in, out, deadline});
}
Pending Communicator::all_gather(DType dtype, const void* in, void* out, std::int64_t count,
                                 Deadline deadline) {
  return checked({Kind::kAllGather, {}, dtype, count, -1, in, out, deadline});
}
Pending Communicator::broadcast(DType dtype, void* data, std::int64_t count, int root, Deadline deadline) {
  return checked({Kind::kBroadcast, {}, dtype, count, root, data, data, deadline});
}
Pending Communicator::barrier(Deadline deadline) {
  return checked({Kind::kBarrier, {}, {}, 0, -1, nullptr, nullptr, deadline});
}
Pending Communicator::decline(ErrorCode code, std::string_view text) {
  CommunicatorCall call;
  call.kind = Kind::kDecline;
  call.dtype = DType::kU8;
  call.count = std::min<std::int64_t>(kMostReason, static_cast<std::int64_t>(text.size()));
  call.in = text.data();
  call.reason = code;
  return checked(call);
}
Pending Communicator::send(DType dtype, const void* data, std::int64_t count, int to, Deadline deadline) {
  return checked({Kind::kSend, {}, dtype, count, to, data, nullptr, deadline});
}
Pending Communicator::receive(DType dtype, void* data, std::int64_t count, int from, Deadline deadline) {
  return checked({Kind::kReceive, {}, dtype, count, from, nullptr, data, deadline});
}

}  // namespace lockstep
