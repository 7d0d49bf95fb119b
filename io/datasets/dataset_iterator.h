// io/datasets/dataset_iterator.h - a pass over a dataset, whose position can be saved and restored exactly.
//
//   DatasetIterator iterator = dataset.iterator({.name = "train"});
//   while (std::optional<Element> batch = iterator.next()) {
//     try { step(*batch); } catch (const Error&) { iterator.give_back(*std::move(batch)); throw; }
//   }
//   const std::string state = iterator.save();         // after the last element that next() gave
//   other.iterator().restore(state);                   // of an equal tree: goes on with the next one
//
//   position   What is read ahead does not count: save() is the position after the last element that was handed out, and
//              before it once it was given back. So what is saved after a committed step is the position after its batch
//   restoring  On any number of threads, with any prefetch. A state belongs to a tree (AnyDataset::signature): another tree is
//              refused with FailedPrecondition that says what differs, bytes that are damaged with Error(kDataLoss). A
//              position is found again by passing over elements that come since the last place that was kept: a shuffle's
//              buffer is read again
//   errors     of a function or a file are thrown by next(), for this element and every later call; the position stays
//              after the last element handed out. restore(save()) tries again
//   cancelling cancel(), and IteratorOptions::cancel, make next() throw kCancelled within a short time
//   fork()     In the child next() throws FailedPrecondition: the threads are in the parent
//
// Thread safety: one thread at a time; cancel() and stats() from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/io/datasets/any_dataset.h"
#include "lockstep/io/datasets/element.h"

namespace lockstep {

namespace internal {
class Cursor;
struct IteratorAccess;
}  // namespace internal

class LOCKSTEP_API DatasetIterator {
 public:
  explicit DatasetIterator(AnyDataset dataset, IteratorOptions options = {});
  ~DatasetIterator();
  DatasetIterator(DatasetIterator&&) noexcept;
  DatasetIterator& operator=(DatasetIterator&&) noexcept;

  // Nothing at the end, and ever after.
  std::optional<Element> next();
  // Takes back the element that next() gave last; the next call gives it again. Throws FailedPrecondition if there is none.
  void give_back(Element element);

  std::string save() const;
  // If it throws, the iterator stays where it was.
  void restore(std::string_view state);

  const std::string& name() const;
  const AnyDataset& dataset() const;
  const ElementSpec& element_spec() const { return dataset().element_spec(); }

  void cancel();
  // The iterator first, then the places that read ahead, from the end of the tree to its sources.
  std::vector<DatasetStage> stats() const;

 private:
  friend struct internal::IteratorAccess;
  struct State;
  std::unique_ptr<State> state_;
};

namespace internal {

// For those who restore several things together: what can fail, and what cannot.
struct LOCKSTEP_API IteratorAccess {
  static std::unique_ptr<Cursor> prepare(const DatasetIterator& iterator, std::string_view state);
  static void commit(DatasetIterator& iterator, std::unique_ptr<Cursor> cursor) noexcept;
};

}  // namespace internal
}  // namespace lockstep
