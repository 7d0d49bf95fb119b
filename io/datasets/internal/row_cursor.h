// io/datasets/internal/row_cursor.h - the cursor over the rows of arrays, front to back.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "lockstep/io/datasets/internal/node.h"

namespace lockstep::internal {

class RowCursor final : public Cursor {
 public:
  explicit RowCursor(std::shared_ptr<RowSource> source) : source_(std::move(source)) {}

  void start(std::uint64_t /*epoch*/) override { at_ = 0; }
  bool next(Element& to) override {
    if (at_ == source_->rows()) return false;
    to = source_->row(at_);
    ++at_;
    return true;
  }
  std::uint64_t skip(std::uint64_t count) override {
    const std::uint64_t done = std::min(count, left());
    at_ += static_cast<std::int64_t>(done);
    return done;
  }
  void save(StateWriter& to) const override { to.number(static_cast<std::uint64_t>(at_)); }
  void restore(StateReader& from) override {
    at_ = static_cast<std::int64_t>(
        from.number(static_cast<std::uint64_t>(source_->rows()), "the row of a source"));
  }
  RowSource* rows() override { return source_.get(); }
  std::size_t next_rows(std::span<std::int64_t> to) override {
    const std::size_t count = std::min<std::uint64_t>(to.size(), left());
    for (std::size_t i = 0; i < count; ++i) to[i] = at_++;
    return count;
  }

 private:
  std::uint64_t left() const { return static_cast<std::uint64_t>(source_->rows() - at_); }

  std::shared_ptr<RowSource> source_;
  std::int64_t at_ = 0;
};

}  // namespace lockstep::internal
