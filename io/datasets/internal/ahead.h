// io/datasets/internal/ahead.h - elements made before they are asked for, by the threads of the input: prefetch and parallel map.
//
//   input ──pull──► chunks in a row ──function──► done chunks ──► the taker, in the order of the input
//
// Whoever waits works: a taker that finds nothing ready pulls or computes itself. So no stage depends on a free thread, and
// stages above each other cannot deadlock. One thread at a time pulls; several compute. A chunk is as many elements as take
// some 50 us together, so that cheap elements do not pay for a lock each. No more than `room` elements are held.
//
// The position: that of the input before the chunk that the taker is in, and how many elements of it were taken. It does
// not depend on threads, room or the sizes of chunks.
//
// Thread safety: one taker.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "lockstep/io/datasets/internal/node.h"

namespace lockstep::internal {

class Ahead final : public Cursor {
 public:
  // Computes an element in its place; `index` is its number in the epoch.
  using Compute = std::function<void(Element& element, std::uint64_t index)>;
  struct Plan {
    std::uint64_t room = 1;  // elements
    unsigned threads = 1;    // that work at one time, besides the taker
    Compute compute = {};    // none: elements stay as they are
    std::string name = {};   // in stats
  };

  Ahead(std::unique_ptr<Cursor> input, const CursorContext& context, Plan plan);
  ~Ahead() override;

  void start(std::uint64_t epoch) override;
  bool next(Element& to) override;
  std::uint64_t skip(std::uint64_t count) override;
  void save(StateWriter& to) const override;
  void restore(StateReader& from) override;
  void add_stats(std::vector<DatasetStage>& to) const override;

 private:
  struct Shared;
  struct Chunk;
  void begin();
  bool take_chunk();
  void release_chunk();

  std::shared_ptr<Shared> shared_;
  std::shared_ptr<std::stop_callback<std::function<void()>>> wake_;
  // Of the taker.
  std::unique_ptr<Chunk> chunk_;
  std::size_t at_ = 0;       // in the chunk
  std::string before_;       // the input's position before the chunk
  std::uint64_t taken_ = 0;  // elements since then
  std::uint64_t index_ = 0;  // of the first element since then
};

}  // namespace lockstep::internal
