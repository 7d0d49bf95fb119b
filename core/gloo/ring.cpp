// core/gloo/ring.cpp - arrays that are combined on their way round the participants.
#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <vector>

#include "lockstep/core/gloo/internal/exchange.h"
#include "lockstep/core/kernels/reduce_replicas.h"

namespace lockstep::internal {
namespace {

constexpr std::int64_t kPiece = 256 << 10;  // bytes that go on while those behind them are still on their way

void divide(DType dtype, void* array, std::int64_t begin, std::int64_t end, std::int64_t by) {
  visit_dtype(dtype, [&]<class T>(T) {
    if constexpr (!std::is_integral_v<T>) {
      using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
      T* const values = static_cast<T*>(array);
      for (std::int64_t i = begin; i < end; ++i)
        values[i] = static_cast<T>(static_cast<Wide>(values[i]) / static_cast<Wide>(by));
    }
  });
}

}  // namespace

// Part p starts at participant p, which sends it to the next one, which adds its own and sends it on. The last of them has the
// result, which goes round once more.
void GlooExchange::go_round(const CommunicatorCall& call, GlooProgress& progress) {
  const auto size = static_cast<std::int64_t>(size_of(call.dtype));
  const std::int64_t piece = kPiece / size;
  const int next = (rank_ + 1) % size_, before = (rank_ + size_ - 1) % size_;
  const ReplicaReduce op = call.op == ReplicaReduce::kMean ? ReplicaReduce::kSum : call.op;
  auto* const out = static_cast<std::byte*>(call.out);
  const auto at = [size](std::int64_t elements) { return static_cast<std::size_t>(elements * size); };

  std::vector<const void*> own;
  for (std::int64_t array = 0; array < call.parts; ++array)
    own.push_back(static_cast<const std::byte*>(call.in) + at(array * call.count));
  kernels::reduce_replicas(op, call.dtype, own, out, 0, call.count);

  const std::vector<Part> parts = parts_of(call);
  std::int64_t largest = 0;
  for (const Part& part : parts) largest = std::max(largest, part.count);
  // What is sent in a step; what is received in it is sent in the next one.
  const auto sent_in = [&](int step) -> const Part& {
    return parts[static_cast<std::size_t>((rank_ - step + 2 * size_) % size_)];
  };
  const auto each_piece = [piece](const Part& part, const auto& use) {
    for (std::int64_t begin = 0; begin < part.count; begin += piece)
      use(begin, std::min(piece, part.count - begin));
  };
  GlooBuffer whole(mesh_, GlooMesh::Use::kCollectives, out, at(call.count));
  int sends = 0;
  const auto send = [&](const Part& part, std::uint64_t slot, std::int64_t begin, std::int64_t count) {
    whole.send(next, slot, at(part.begin + begin), at(count));
    ++sends;
  };
  struct Incoming {
    std::unique_ptr<std::byte[]> memory;
    std::unique_ptr<GlooBuffer> buffer;
  };
  std::array<Incoming, 2> stages;
  for (Incoming& stage : stages) {
    stage.memory.reset(new std::byte[at(largest)]);  // not set to 0
    stage.buffer =
        std::make_unique<GlooBuffer>(mesh_, GlooMesh::Use::kCollectives, stage.memory.get(), at(largest));
  }
  const int steps = size_ - 1;
  const auto expect = [&](int step) {
    if (step >= steps) return;
    each_piece(sent_in(step + 1), [&](std::int64_t begin, std::int64_t count) {
      stages[static_cast<std::size_t>(step % 2)].buffer->receive(before, kPieceSlot, at(begin), at(count));
    });
  };
  expect(0);
  expect(1);
  for (int step = steps; step < 2 * steps; ++step) {  // results: of the parts that went by first
    const Part& part = sent_in(step + 1);
    each_piece(part, [&](std::int64_t begin, std::int64_t count) {
      whole.receive(before, kResultSlot, at(part.begin + begin), at(count));
    });
  }

  each_piece(sent_in(0),
             [&](std::int64_t begin, std::int64_t count) { send(sent_in(0), kPieceSlot, begin, count); });
  for (int step = 0; step < steps; ++step) {
    const Part& part = sent_in(step + 1);
    const Incoming& stage = stages[static_cast<std::size_t>(step % 2)];
    const bool is_last = step + 1 == steps;
    each_piece(part, [&](std::int64_t begin, std::int64_t count) {
      progress.awaits(before);
      stage.buffer->await_received();
      std::byte* const result = out + at(part.begin + begin);
      const std::array<const void*, 2> both = {stage.memory.get() + at(begin), result};
      kernels::reduce_replicas(op, call.dtype, both, result, 0, count);
      if (is_last && call.op == ReplicaReduce::kMean)
        divide(call.dtype, result, 0, count, size_ * call.parts);
      send(part, is_last ? kResultSlot : kPieceSlot, begin, count);
    });
    expect(step + 2);
  }
  for (int step = steps; step < 2 * steps; ++step) {
    const Part& part = sent_in(step + 1);
    each_piece(part, [&](std::int64_t begin, std::int64_t count) {
      progress.awaits(before);
      whole.await_received();
      if (step + 1 < 2 * steps) send(part, kResultSlot, begin, count);
    });
  }
  for (; sends > 0; --sends) {
    progress.awaits(next);
    whole.await_sent();
  }
}

}  // namespace lockstep::internal
