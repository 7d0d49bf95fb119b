// core/gloo/exchange.cpp - what a participant sends and receives for each call.
#include "lockstep/core/gloo/internal/exchange.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/kernels/reduce_replicas.h"

namespace lockstep::internal {
namespace {

using Kind = CommunicatorCall::Kind;
using Use = GlooMesh::Use;

constexpr std::int64_t kLine = 64;             // bytes; borders of parts and of pieces are multiples
constexpr std::int64_t kSmall = 64 << 10;      // bytes of an input that goes with the call
constexpr int kPiecesAhead = 3;                // of another participant, that there is memory for
constexpr std::int64_t kMostAhead = 24 << 20;  // bytes of that memory, for all others
constexpr std::int64_t kMostAtOnce = 4 << 20;  // bytes of a message
constexpr std::int64_t kSharedPiece = 128 << 10;
constexpr std::uint64_t kMark = 0x33'70'65'74'73'6B'63'6CU;  // "lckstep3"

std::int64_t size_in(const CommunicatorCall& call) { return static_cast<std::int64_t>(size_of(call.dtype)); }

// Elements that a participant contributes.
std::int64_t elements_in(const CommunicatorCall& call, int rank, int size) {
  if (call.is_agreement) return 0;
  switch (call.kind) {
    case Kind::kBarrier: return 0;
    case Kind::kDecline: return call.count;
    case Kind::kBroadcast: return call.peer == rank ? call.count : 0;
    case Kind::kReduceScatter: return call.count * size;
    default: return call.count * call.parts;
  }
}

// Does every participant's input go with its call? The answer is the same on all of them.
bool is_small(const CommunicatorCall& call, int size) {
  const std::int64_t most = kSmall / size_in(call) / (call.kind == Kind::kReduceScatter ? size : call.parts);
  return call.kind == Kind::kBarrier || call.kind == Kind::kDecline || call.is_agreement ||
         call.count <= most;
}

std::string described(const CommunicatorCall& call, int rank) {
  return str("participant ", rank, " called ", to_string(call));
}

[[noreturn]] void throw_disagreement(const std::string& one, const std::string& other,
                                     const std::string& where) {
  throw InvalidArgument(str("the calls do not agree: ", one, ", ", other, where,
                            "; all participants have to make the same calls in the same order"));
}

}  // namespace

// A call as it travels; followed by the input, if it is small.
struct alignas(kLine) GlooExchange::Call {
  std::uint64_t mark = kMark;
  std::uint64_t number = 0;
  std::int64_t count = 0;
  std::int32_t peer = -1, parts = 1;
  std::uint8_t kind = 0, op = 0, dtype = 0, reason = 0, memory = 0, is_agreement = 0, is_ring = 0;

  Call() = default;
  Call(const CommunicatorCall& call, std::uint64_t its_number, bool in_ring = false)
      : number(its_number),
        count(call.count),
        peer(call.peer),
        parts(static_cast<std::int32_t>(call.parts)),
        kind(static_cast<std::uint8_t>(call.kind)),
        op(static_cast<std::uint8_t>(call.op)),
        dtype(static_cast<std::uint8_t>(call.dtype)),
        reason(static_cast<std::uint8_t>(call.reason)),
        memory(static_cast<std::uint8_t>(call.memory)),
        is_agreement(call.is_agreement ? 1 : 0),
        is_ring(in_ring ? 1 : 0) {}

  // Throws Error if what came is no call.
  CommunicatorCall read(int from) const {
    if (mark != kMark || parts < 1 || parts > Communicator::kMostParts ||
        kind > static_cast<std::uint8_t>(Kind::kReceive) ||
        op > static_cast<std::uint8_t>(ReplicaReduce::kProd) ||
        dtype >= static_cast<std::uint8_t>(std::size(kAllDTypes)) ||
        reason > static_cast<std::uint8_t>(ErrorCode::kOutOfMemory) ||
        memory > static_cast<std::uint8_t>(DeviceKind::kGpu) || is_agreement > 1 || is_ring > 1 ||
        (kind == static_cast<std::uint8_t>(Kind::kDecline) &&
         (count < 0 || count > Communicator::kMostReason)))
      throw Error(ErrorCode::kUnavailable,
                  str("what participant ", from, " sent is no call: is it another version?"));
    return {.kind = static_cast<Kind>(kind),
            .op = static_cast<ReplicaReduce>(op),
            .dtype = static_cast<DType>(dtype),
            .count = count,
            .peer = peer,
            .deadline = {},
            .parts = parts,
            .reason = static_cast<ErrorCode>(reason),
            .memory = static_cast<DeviceKind>(memory),
            .is_agreement = is_agreement != 0};
  }
};

// A call that is sent or received, with room for a small input.
struct GlooExchange::Mailbox {
  struct Memory {
    Call call;
    alignas(kLine) std::byte data[kSmall];
  };
  std::unique_ptr<Memory> memory;
  std::unique_ptr<GlooBuffer> buffer;

  void make(GlooMesh& mesh) {
    memory.reset(new Memory);  // its data is not set to 0
    buffer = std::make_unique<GlooBuffer>(mesh, Use::kCollectives, memory.get(), sizeof(Memory));
  }
};

// Memory for pieces of one other participant.
struct GlooExchange::Stage {
  struct alignas(kLine) Line {
    std::byte bytes[kLine];
  };
  std::array<std::unique_ptr<Line[]>, kPiecesAhead> pieces;
  std::array<std::unique_ptr<GlooBuffer>, kPiecesAhead> buffers;

  void make(GlooMesh& mesh, std::int64_t bytes) {
    const auto size = static_cast<std::size_t>(bytes);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      pieces[i].reset(new Line[size / sizeof(Line)]);  // not set to 0
      buffers[i] = std::make_unique<GlooBuffer>(mesh, Use::kCollectives, pieces[i].get(), size);
    }
  }
};

// Bytes that are combined at a time: the more the faster, but memory for them grows with the group. Through shared memory what fits into
// a second-level cache is faster.
std::int64_t GlooExchange::piece_bytes() const {
  if (mesh_.shares_memory()) return kSharedPiece;
  const std::int64_t most = kMostAhead / kPiecesAhead / std::max(1, size_ - 1);
  return std::clamp(most / kSmall * kSmall, kSmall, std::int64_t{1} << 20);
}

GlooExchange::GlooExchange(GlooMesh& mesh, int rank, int size, bool is_ring)
    : mesh_(mesh), rank_(rank), size_(size), is_ring_(is_ring && size > 1) {
  for (std::size_t turn = 0; turn < in_.size(); ++turn) {
    out_[turn] = std::make_unique<Mailbox>();
    out_[turn]->make(mesh_);
    in_[turn].resize(static_cast<std::size_t>(size_));
    for (int other = 0; other < size_; ++other) {
      if (other == rank_) continue;
      Mailbox& from = in_[turn][static_cast<std::size_t>(other)];
      from.make(mesh_);
      from.buffer->receive(other, kCallSlot, 0, sizeof(Mailbox::Memory));
    }
  }
}

GlooExchange::~GlooExchange() = default;

// --- collectives

const GlooExchange::Call& GlooExchange::call_of(int rank, std::uint64_t number) const {
  const auto turn = static_cast<std::size_t>(number % 2);
  return rank == rank_ ? out_[turn]->memory->call : in_[turn][static_cast<std::size_t>(rank)].memory->call;
}

void GlooExchange::collective(const CommunicatorCall& call, std::uint64_t number, GlooProgress& progress) {
  const auto turn = static_cast<std::size_t>(number % 2);
  meet(call, number, progress);
  progress.begins();
  if (const int rank = find_decline(number); rank >= 0) {
    const CommunicatorCall its = call_of(rank, number).read(rank);
    const Mailbox& from = rank == rank_ ? *out_[turn] : in_[turn][static_cast<std::size_t>(rank)];
    const std::string why(reinterpret_cast<const char*>(from.memory->data),
                          static_cast<std::size_t>(its.count));
    expect_next(turn);
    throw Declined(its.reason, rank, why);
  }
  if (is_small(call, size_)) {
    if (call.count > 0 && !call.is_agreement) compute_small(call, number);
  } else if (is_ring_ && call.kind == Kind::kAllReduce) {
    go_round(call, progress);
  } else if (call.kind == Kind::kBroadcast || call.kind == Kind::kAllGather) {
    copy(call, progress);
  } else {
    combine(call, parts_of(call), progress);
  }
  expect_next(turn);
}

void GlooExchange::expect_next(std::size_t turn) {
  try {
    for (int other = 0; other < size_; ++other) {
      if (other != rank_)
        in_[turn][static_cast<std::size_t>(other)].buffer->receive(other, kCallSlot, 0,
                                                                   sizeof(Mailbox::Memory));
    }
  } catch (const GlooLost&) {  // of a later call: this one is complete
  }
}

// Everyone says what it calls, and sees that all call the same.
void GlooExchange::meet(const CommunicatorCall& call, std::uint64_t number, GlooProgress& progress) {
  const auto turn = static_cast<std::size_t>(number % 2);
  Mailbox& out = *out_[turn];
  for (; unsent_[turn] > 0; --unsent_[turn]) out.buffer->await_sent();
  out.memory->call = Call(call, number, is_ring_);
  std::size_t bytes = sizeof(Call);
  if (is_small(call, size_)) {
    const auto more = static_cast<std::size_t>(elements_in(call, rank_, size_) * size_in(call));
    if (more > 0) std::memcpy(out.memory->data, call.in, more);
    bytes += more;
  }
  for (int i = 1; i < size_;
       ++i) {  // each begins with the next one, so that not all write to the same one at first
    out.buffer->send((rank_ + i) % size_, kCallSlot, 0, bytes);
    ++unsent_[turn];
  }
  for (int other = 0; other < size_; ++other) {
    if (other == rank_) continue;
    progress.awaits(other);
    in_[turn][static_cast<std::size_t>(other)].buffer->await_received();
  }
  for (int other = 0; other < size_; ++other) {
    if (call_of(other, number).number != number)
      throw Error(ErrorCode::kUnavailable, str("participant ", other, " sent collective number ",
                                               call_of(other, number).number, " as number ", number));
  }
  if (find_decline(number) >= 0) return;
  const CommunicatorCall first = call_of(0, number).read(0);
  for (int other = 1; other < size_; ++other) {
    const CommunicatorCall its = call_of(other, number).read(other);
    if (its.kind != first.kind || its.op != first.op || its.dtype != first.dtype ||
        its.count != first.count || its.peer != first.peer || its.parts != first.parts ||
        its.memory != first.memory || its.is_agreement != first.is_agreement)
      throw_disagreement(described(first, 0), described(its, other), str(" as collective number ", number));
    if (call_of(other, number).is_ring != call_of(0, number).is_ring)
      throw_disagreement(described(first, 0), described(its, other),
                         ", one of them in a ring (GlooGroupSpec::ring)");
  }
}

int GlooExchange::find_decline(std::uint64_t number) const {
  for (int rank = 0; rank < size_; ++rank) {
    if (call_of(rank, number).read(rank).kind == Kind::kDecline) return rank;
  }
  return -1;
}

const std::byte* GlooExchange::small_input(int rank, std::uint64_t number,
                                           const CommunicatorCall& call) const {
  const auto turn = static_cast<std::size_t>(number % 2);
  if (rank != rank_) return in_[turn][static_cast<std::size_t>(rank)].memory->data;
  // In place, results would be written over it.
  return call.kind == Kind::kReduceScatter ? out_[turn]->memory->data
                                           : static_cast<const std::byte*>(call.in);
}

void GlooExchange::compute_small(const CommunicatorCall& call, std::uint64_t number) {
  const auto bytes = static_cast<std::size_t>(call.count * size_in(call));
  auto* const to = static_cast<std::byte*>(call.out);
  const auto combine_from = [&](std::size_t offset) {
    std::vector<const void*> inputs;
    for (int rank = 0; rank < size_; ++rank) {
      for (std::size_t part = 0; part < static_cast<std::size_t>(call.parts); ++part)
        inputs.push_back(small_input(rank, number, call) + offset + part * bytes);
    }
    kernels::reduce_replicas(call.op, call.dtype, inputs, to, 0, call.count);
  };
  switch (call.kind) {
    case Kind::kAllReduce: combine_from(0); break;
    case Kind::kReduce: {
      if (call.peer == rank_) combine_from(0);
      break;
    }
    case Kind::kReduceScatter: combine_from(static_cast<std::size_t>(rank_) * bytes); break;
    case Kind::kBroadcast: {
      if (call.peer != rank_) std::memcpy(to, small_input(call.peer, number, call), bytes);
      break;
    }
    case Kind::kAllGather: {
      for (int rank = 0; rank < size_; ++rank) {
        std::byte* const place = to + static_cast<std::size_t>(rank) * bytes;
        const std::byte* const from = small_input(rank, number, call);
        if (place != from) std::memcpy(place, from, bytes);
      }
      break;
    }
    case Kind::kBarrier:
    case Kind::kDecline:
    case Kind::kSend:
    case Kind::kReceive: break;
  }
}

// Which participant combines what.
std::vector<GlooExchange::Part> GlooExchange::parts_of(const CommunicatorCall& call) const {
  const auto size = static_cast<std::size_t>(size_);
  auto* const out = static_cast<std::byte*>(call.out);
  std::vector<Part> parts(size);
  switch (call.kind) {
    case Kind::kReduce: parts[static_cast<std::size_t>(call.peer)] = {0, call.count, out}; break;
    case Kind::kReduceScatter: {
      for (int rank = 0; rank < size_; ++rank)
        parts[static_cast<std::size_t>(rank)] = {rank * call.count, call.count, out};
      break;
    }
    default: {  // whole lines, as equal as they can be
      const std::int64_t line = kLine / size_in(call);
      const std::int64_t lines = (call.count + line - 1) / line;
      for (int rank = 0; rank < size_; ++rank) {
        const std::int64_t begin = std::min(call.count, lines * rank / size_ * line);
        const std::int64_t end = std::min(call.count, lines * (rank + 1) / size_ * line);
        parts[static_cast<std::size_t>(rank)] = {begin, end - begin, out + begin * size_in(call)};
      }
    }
  }
  return parts;
}

// Sends the input to those that combine it, combines the own part, and for all_reduce exchanges the results. All messages are
// begun as early as they can be; Gloo keeps those back that are not yet waited for.
void GlooExchange::combine(const CommunicatorCall& call, std::span<const Part> parts,
                           GlooProgress& progress) {
  // Of a piece, the arrays of a participant lie one behind the other.
  const std::int64_t size = size_in(call),
                     piece = std::max(kLine, piece_bytes() / call.parts / kLine * kLine) / size;
  const auto arrays = static_cast<std::size_t>(call.parts), stride = static_cast<std::size_t>(piece * size);
  const auto* const in = static_cast<const std::byte*>(call.in);
  const bool to_all = call.kind == Kind::kAllReduce;
  const Part& mine = parts[static_cast<std::size_t>(rank_)];
  const auto each_piece = [piece](const Part& part, const auto& use) {
    for (std::int64_t at = 0; at < part.count; at += piece) use(at, std::min(piece, part.count - at));
  };
  const auto others = [this](const auto& use) {
    for (int i = 1; i < size_; ++i) use((rank_ + i) % size_);
  };

  GlooBuffer input(mesh_, Use::kCollectives, in,
                   static_cast<std::size_t>(elements_in(call, rank_, size_) * size));
  int sends = 0;
  if (stages_.empty() && mine.count > 0) {
    std::vector<Stage> made(static_cast<std::size_t>(size_));
    others([&](int other) { made[static_cast<std::size_t>(other)].make(mesh_, piece_bytes()); });
    stages_ = std::move(made);
  }
  const std::int64_t pieces = (mine.count + piece - 1) / piece;
  const auto expect = [&](int other, std::int64_t number) {
    if (number >= pieces) return;
    GlooBuffer& into =
        *stages_[static_cast<std::size_t>(other)].buffers[static_cast<std::size_t>(number % kPiecesAhead)];
    for (std::size_t array = 0; array < arrays; ++array)
      into.receive(other, kPieceSlot, array * stride, stride);
  };
  for (int ahead = 0; ahead < kPiecesAhead; ++ahead) {
    others([&](int other) { expect(other, ahead); });
  }
  others([&](int other) {
    const Part& its = parts[static_cast<std::size_t>(other)];
    each_piece(its, [&](std::int64_t at, std::int64_t count) {
      for (std::int64_t array = 0; array < call.parts; ++array) {
        input.send(other, kPieceSlot, static_cast<std::size_t>((array * call.count + its.begin + at) * size),
                   static_cast<std::size_t>(count * size));
        ++sends;
      }
    });
  });
  // Results of others are received where they belong.
  std::vector<std::optional<GlooBuffer>> results(static_cast<std::size_t>(size_));
  if (to_all) {
    for (int owner = 0; owner < size_; ++owner) {
      const Part& its = parts[static_cast<std::size_t>(owner)];
      if (its.count == 0) continue;
      GlooBuffer& result = results[static_cast<std::size_t>(owner)].emplace(
          mesh_, Use::kCollectives, its.out, static_cast<std::size_t>(its.count * size));
      if (owner == rank_) continue;
      each_piece(its, [&](std::int64_t at, std::int64_t count) {
        result.receive(owner, kResultSlot, static_cast<std::size_t>(at * size),
                       static_cast<std::size_t>(count * size));
      });
    }
  }

  std::vector<const void*> inputs(static_cast<std::size_t>(size_) * arrays);
  int result_sends = 0;
  std::int64_t number = 0;
  each_piece(mine, [&](std::int64_t at, std::int64_t count) {
    for (std::size_t array = 0; array < arrays; ++array)
      inputs[static_cast<std::size_t>(rank_) * arrays + array] =
          in + (static_cast<std::int64_t>(array) * call.count + mine.begin + at) * size;
    const auto turn = static_cast<std::size_t>(number % kPiecesAhead);
    others([&](int other) {
      Stage& stage = stages_[static_cast<std::size_t>(other)];
      progress.awaits(other);
      for (std::size_t array = 0; array < arrays; ++array) {
        stage.buffers[turn]->await_received();
        inputs[static_cast<std::size_t>(other) * arrays + array] =
            reinterpret_cast<const std::byte*>(stage.pieces[turn].get()) + array * stride;
      }
    });
    kernels::reduce_replicas(call.op, call.dtype, inputs, mine.out + at * size, 0, count);
    others([&](int other) {
      expect(other, number + kPiecesAhead);
      if (!to_all) return;
      results[static_cast<std::size_t>(rank_)]->send(other, kResultSlot, static_cast<std::size_t>(at * size),
                                                     static_cast<std::size_t>(count * size));
      ++result_sends;
    });
    ++number;
  });
  if (to_all) {
    others([&](int owner) {
      each_piece(parts[static_cast<std::size_t>(owner)], [&](std::int64_t, std::int64_t) {
        progress.awaits(owner);
        results[static_cast<std::size_t>(owner)]->await_received();
      });
    });
  }
  for (; sends > 0; --sends) {
    progress.awaits(-1);
    input.await_sent();
  }
  for (; result_sends > 0; --result_sends) {
    progress.awaits(-1);
    results[static_cast<std::size_t>(rank_)]->await_sent();
  }
}

// Sends arrays to where they belong.
void GlooExchange::copy(const CommunicatorCall& call, GlooProgress& progress) {
  const std::int64_t bytes = call.count * size_in(call);
  const bool gathers = call.kind == Kind::kAllGather;
  auto* const out = static_cast<std::byte*>(call.out);
  const auto each_message = [bytes](const auto& use) {
    for (std::int64_t at = 0; at < bytes; at += kMostAtOnce)
      use(static_cast<std::size_t>(at), static_cast<std::size_t>(std::min(kMostAtOnce, bytes - at)));
  };
  std::vector<std::optional<GlooBuffer>> received(static_cast<std::size_t>(size_));
  for (int other = 0; other < size_; ++other) {
    if (other == rank_ || (!gathers && other != call.peer)) continue;
    GlooBuffer& from = received[static_cast<std::size_t>(other)].emplace(
        mesh_, Use::kCollectives, gathers ? out + other * bytes : out, static_cast<std::size_t>(bytes));
    each_message([&](std::size_t at, std::size_t some) { from.receive(other, kResultSlot, at, some); });
  }
  std::optional<GlooBuffer> own;
  int sends = 0;
  if (gathers || call.peer == rank_) {
    own.emplace(mesh_, Use::kCollectives, call.in, static_cast<std::size_t>(bytes));
    for (int i = 1; i < size_; ++i) {
      each_message([&](std::size_t at, std::size_t some) {
        own->send((rank_ + i) % size_, kResultSlot, at, some);
        ++sends;
      });
    }
  }
  if (gathers && out + rank_ * bytes != call.in)
    std::memcpy(out + rank_ * bytes, call.in, static_cast<std::size_t>(bytes));
  for (int other = 0; other < size_; ++other) {
    std::optional<GlooBuffer>& from = received[static_cast<std::size_t>(other)];
    if (!from) continue;
    each_message([&](std::size_t, std::size_t) {
      progress.awaits(other);
      from->await_received();
    });
  }
  for (; sends > 0; --sends) {
    progress.awaits(-1);
    own->await_sent();
  }
}

// --- messages

void GlooExchange::send(const CommunicatorCall& call, GlooProgress& progress) {
  const Call said(call, 0);
  GlooBuffer head(mesh_, Use::kWork, &said, sizeof said);
  head.send(call.peer, kMessageCallSlot, 0, sizeof said);
  // Without elements, a byte: that it is taken says that the calls agree.
  const auto bytes = std::max<std::int64_t>(1, call.count * size_in(call));
  int sends = 0;
  GlooBuffer body(mesh_, Use::kWork, call.count > 0 ? call.in : &said, static_cast<std::size_t>(bytes));
  for (std::int64_t at = 0; at < bytes; at += kMostAtOnce, ++sends)
    body.send(call.peer, kMessageSlot, static_cast<std::size_t>(at),
              static_cast<std::size_t>(std::min(kMostAtOnce, bytes - at)));
  progress.awaits(call.peer);
  head.await_sent();
  progress.begins();
  for (; sends > 0; --sends) {
    progress.awaits(call.peer);
    body.await_sent();
  }
}

void GlooExchange::receive(const CommunicatorCall& call, GlooProgress& progress) {
  Call said;
  GlooBuffer head(mesh_, Use::kWork, &said, sizeof said);
  head.receive(call.peer, kMessageCallSlot, 0, sizeof said);
  progress.awaits(call.peer);
  head.await_received();
  const CommunicatorCall sent = said.read(call.peer);
  if (sent.count != call.count || sent.dtype != call.dtype)
    throw_disagreement(described(sent, call.peer), described(call, rank_), "");
  progress.begins();
  const auto bytes = std::max<std::int64_t>(1, call.count * size_in(call));
  GlooBuffer body(mesh_, Use::kWork, call.count > 0 ? call.out : &said, static_cast<std::size_t>(bytes));
  int receives = 0;
  for (std::int64_t at = 0; at < bytes; at += kMostAtOnce, ++receives)
    body.receive(call.peer, kMessageSlot, static_cast<std::size_t>(at),
                 static_cast<std::size_t>(std::min(kMostAtOnce, bytes - at)));
  for (; receives > 0; --receives) {
    progress.awaits(call.peer);
    body.await_received();
  }
}

}  // namespace lockstep::internal
