// io/traces/worker_traces.cpp - what ran when on all workers, in one file and by one clock.
#include "lockstep/io/traces/worker_traces.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "lockstep/core/communicators/group_round.h"
#include "lockstep/io/traces/internal/chrome_events.h"
#include "lockstep/strategies/strategy.h"

namespace lockstep {

namespace {

constexpr int kTurns = 8;  // in which a worker is the last to send
constexpr std::chrono::microseconds kLater{300};
constexpr std::int64_t kPiece = 1 << 20;  // bytes of the texts that are under way

std::int64_t now() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Clocks {
  std::vector<std::int64_t> ahead;  // of the first worker's, by worker
  std::int64_t differ_by = 0;       // at most
};

// How long a message took from one worker to another, by the clocks of both, is its time under way and what the clocks differ by.
// The other way round it is the time less that. What a worker waited for is the message that came last: each is the last in turn.
Clocks compare_clocks(GroupRound& round) {
  const auto size = static_cast<std::size_t>(round.size());
  std::vector<std::int64_t> took(size, std::numeric_limits<std::int64_t>::max()), sent(size);
  for (int turn = 0; turn < kTurns * round.size(); ++turn) {
    if (turn % round.size() == round.rank()) std::this_thread::sleep_for(kLater);
    const std::int64_t mine = now();
    round.all_gather(DType::kI64, &mine, sent.data(), 1);
    const std::int64_t here = now();
    for (std::size_t other = 0; other < size; ++other)
      took[other] = std::min(took[other], here - sent[other]);
  }
  std::vector<std::int64_t> all(size * size);  // by receiver and sender
  round.all_gather(DType::kI64, took.data(), all.data(), round.size());
  Clocks clocks;
  for (std::size_t worker = 0; worker < size; ++worker) {
    const std::int64_t to = all[worker * size], from = all[worker];
    clocks.ahead.push_back(worker == 0 ? 0 : (to - from) / 2);
    if (worker > 0) clocks.differ_by = std::max(clocks.differ_by, (to + from + 1) / 2);
  }
  return clocks;
}

// All texts, by worker, for the first one.
std::vector<std::string> gather_texts(GroupRound& round, const std::string& mine) {
  const auto size = static_cast<std::size_t>(round.size());
  const auto length = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> lengths(size);
  round.all_gather(DType::kI64, &length, lengths.data(), 1);
  const std::int64_t longest = *std::ranges::max_element(lengths);
  std::vector<std::string> texts(size);
  std::string piece, pieces;
  for (std::int64_t at = 0; at < longest; at += kPiece) {
    const auto bytes = static_cast<std::size_t>(std::min(kPiece, longest - at));
    piece =
        static_cast<std::size_t>(at) < mine.size() ? mine.substr(static_cast<std::size_t>(at), bytes) : "";
    piece.resize(bytes);
    pieces.resize(bytes * size);
    round.all_gather(DType::kU8, piece.data(), pieces.data(), static_cast<std::int64_t>(bytes));
    if (round.rank() != 0) continue;
    for (std::size_t worker = 0; worker < size; ++worker) texts[worker].append(pieces, worker * bytes, bytes);
  }
  if (round.rank() != 0) return {};
  for (std::size_t worker = 0; worker < size; ++worker)
    texts[worker].resize(static_cast<std::size_t>(lengths[worker]));
  return texts;
}

}  // namespace

std::string gather_chrome_traces(const Trace& trace, const Strategy& strategy,
                                 const ChromeTraceOptions& options) {
  internal::ChromeProcess self{.number = strategy.worker().rank + 1, .name = strategy.worker().task()};
  if (strategy.worker().count == 1) {
    const std::string events = internal::chrome_events(trace, options, self);
    return internal::chrome_file({&events, 1}, {{"dropped_events", trace.dropped}});
  }
  std::string file;
  strategy.run_round([&](GroupRound& round) {
    const auto rank = static_cast<std::size_t>(round.rank());
    const Clocks clocks = compare_clocks(round);
    // When each recorder began, by the first worker's clock: the earliest is the beginning of all.
    struct Said {
      std::int64_t began = 0, dropped = 0;
    };
    const Said mine{trace.origin - clocks.ahead[rank], static_cast<std::int64_t>(trace.dropped)};
    std::vector<Said> all(static_cast<std::size_t>(round.size()));
    round.all_gather(DType::kI64, &mine, all.data(), 2);
    self.later_ns = mine.began - std::ranges::min(all, {}, &Said::began).began;
    const std::vector<std::string> events =
        gather_texts(round, internal::chrome_events(trace, options, self));
    if (rank != 0) return;
    std::uint64_t dropped = 0;
    for (const Said& said : all) dropped += static_cast<std::uint64_t>(said.dropped);
    file = internal::chrome_file(
        events, {{"dropped_events", dropped},
                 {"clocks_differ_by_ns_at_most", static_cast<std::uint64_t>(clocks.differ_by)}});
  });
  return file;
}

}  // namespace lockstep
