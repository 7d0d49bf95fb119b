// io/datasets/sources.h - where datasets begin: numbers, tensors in memory, functions, files.
//
//   datasets::range(10)                                   i64 scalars 0 ... 9
//   datasets::from_slices(Element::tuple({x, y}))         rows of tensors, which share their memory
//   datasets::from_elements({a, b, c})                    what is given
//   datasets::generator_of(spec, [] { return [n = 0]() mutable -> std::optional<Element> { ... }; })
//   datasets::records({"a.tfrecord"}, {.format = "tfrecord", .open = open_tfrecord})
//   datasets::array_rows("x.npy", open_npy_rows)
//
// The typed spellings of from_slices and the like are in io/datasets/dataset.h.
//
// Tensors that are given must not be written to while the dataset is in use. Thread safety: any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/source_site.h"
#include "lockstep/io/datasets/any_dataset.h"
#include "lockstep/io/datasets/element.h"

namespace lockstep {

class ArrayRows;
class RecordReader;

// A pass over something: gives elements until nothing.
class LOCKSTEP_API ElementStream {
 public:
  ElementStream();
  virtual ~ElementStream();
  ElementStream(const ElementStream&) = delete;
  ElementStream& operator=(const ElementStream&) = delete;

  virtual std::optional<Element> next() = 0;
  // Where it is, as bytes, and back. As given here, the position is a count, and a new stream throws that many elements away.
  virtual std::optional<std::string> save() const;
  virtual void restore(const std::string& state);
};

struct RecordFormat {
  std::string format;  // "tfrecord", "lines": what tells two datasets of one file apart
  std::function<std::unique_ptr<RecordReader>(const std::string& file)> open;
};

namespace datasets {

// Scalars of i64: begin, begin + step, ... before end.
LOCKSTEP_API AnyDataset range(std::int64_t begin, std::int64_t end, std::int64_t step = 1,
                              SourceSite site = SourceSite::current());
inline AnyDataset range(std::int64_t end, SourceSite site = SourceSite::current()) {
  return range(0, end, 1, site);
}

// The elements, which must fit one spec.
LOCKSTEP_API AnyDataset from_elements(std::vector<Element> elements, SourceSite site = SourceSite::current());
// The rows of tensors of one first extent, and of lists of strings as long as that. Elements share the tensors' memory, and
// batches of them are made by one copy.
LOCKSTEP_API AnyDataset from_slices(const Element& nest, SourceSite site = SourceSite::current());

// Each pass over it calls `make`, and takes elements from what that returns.
LOCKSTEP_API AnyDataset generator(ElementSpec spec, std::function<std::unique_ptr<ElementStream>()> make,
                                  SourceSite site = SourceSite::current());
// The same from functions that give elements.
LOCKSTEP_API AnyDataset generator_of(ElementSpec spec,
                                     std::function<std::function<std::optional<Element>()>()> make,
                                     SourceSite site = SourceSite::current());

// The records of files, file after file: strings. The files are a dataset of strings, so that they can be shuffled and sharded.
LOCKSTEP_API AnyDataset records(const AnyDataset& files, RecordFormat format,
                                SourceSite site = SourceSite::current());
LOCKSTEP_API AnyDataset records(Strings files, RecordFormat format, SourceSite site = SourceSite::current());

// The rows of an array in a file, read when they are needed. It is opened now, for its spec, and by each pass.
LOCKSTEP_API AnyDataset array_rows(const std::string& file,
                                   std::function<std::unique_ptr<ArrayRows>(const std::string& file)> open,
                                   SourceSite site = SourceSite::current());

}  // namespace datasets
}  // namespace lockstep
