// io/datasets/any_dataset.h - a dataset: an immutable tree of named operations.
//
//   AnyDataset input = datasets::from_slices(nest).shuffle(10'000, {.seed = 7}).repeat().batch(64).prefetch(2);
//   std::cout << input.to_string();
//   DatasetIterator iterator = input.iterator();
//   while (std::optional<Element> batch = iterator.next()) train(*batch);
//
// A dataset is a cheap handle: an operation makes a new node over the ones that are there, and nothing is read until an
// iterator asks. Dataset<Tensor, Tensor> (io/datasets/dataset.h) is the same with types.
//
//   spec        element_spec() is known before the first element. An element that does not fit it is an error that names
//               both. Of what a C++ function returns only the kinds are known, unless MapOptions::spec says more
//   order       is the same on any number of threads, with any prefetch
//   shuffle     draws by its seed and the number of the epoch: repeat() counts epochs, and iterating again begins with the
//               first (IteratorOptions::epoch)
//   rewriting   op(), attributes() and inputs() show a node; with_inputs() makes the same operation over others
//   errors      InvalidArgument for wrong arguments, where the operation is called; errors of functions name the element and
//               the line of the operation
//
// Thread safety: any thread may use a handle; functions that are given to map() and the like may be called from several
// threads at once if MapOptions::threads is not 1, and by prefetch from another thread than the iterator's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/source_site.h"
#include "lockstep/io/datasets/element.h"

namespace lockstep {

class AnyDataset;
template <class... Ts>
class Dataset;
class DatasetIterator;
class Program;
namespace internal {
class DatasetNode;
}

struct DatasetAttribute {
  using Value = std::variant<bool, std::int64_t, double, std::string, Strings>;
  enum class Kind : std::uint8_t {
    kMeaning,  // says which elements there are, in which order
    kTuning,   // threads, room for what is read ahead: states of iterators do not depend on it
  };
  std::string name;
  Value value;
  Kind kind = Kind::kMeaning;
};

// A function of elements; it must give the same result for the same element if the position of an iterator is to be saved.
using ElementFunction = std::function<Element(Element)>;
using ElementPredicate = std::function<bool(const Element&)>;
using DatasetFunction = std::function<AnyDataset(const Element&)>;

struct MapOptions {
  // How many elements are computed at one time. 1: one after another, when they are asked for. 0: on all threads of the input.
  unsigned threads = 1;
  // What the function returns. Without it, dtypes and shapes of its tensors are not known beforehand.
  std::optional<ElementSpec> spec = std::nullopt;
};

struct BatchOptions {
  // A last batch with fewer elements is left out; then the extent of the batch is known.
  bool drop_remainder = false;
};

struct PaddedBatchOptions {
  bool drop_remainder = false;
  // Of each leaf, in order; kUnknown: to the largest of the batch. Empty: that, for all.
  std::vector<Shape> shapes = {};
  double value = 0;  // what is put beside
};

struct ShuffleOptions {
  std::uint64_t seed = 0;
  // Another order in each epoch; false: the same one.
  bool reshuffle = true;
};

struct WindowOptions {
  std::int64_t shift =
      0;  // from the beginning of a window to that of the next one; 0: the size, without overlap
  std::int64_t stride = 1;  // from an element of a window to the next one
  bool drop_remainder = true;
};

struct InterleaveOptions {
  std::int64_t cycle = 4;  // how many datasets are read in turn
  std::int64_t block = 1;  // how many elements of each
  // How many elements of each are read ahead, on threads of the input; 0: none.
  std::int64_t ahead = 0;
};

struct DatasetOptions {
  unsigned threads = 0;  // of the input; 0: half of the cores, one at least
};

struct IteratorOptions {
  std::string name = "input";  // in checkpoints
  std::uint64_t epoch = 0;     // of the first pass
  // Threads beside the one that calls next(); 0: what with_options() says. With several iterators each has its own.
  unsigned threads = 0;
  // next() throws kCancelled once a stop is requested.
  std::stop_token cancel = {};
};

// What happened at one place that reads ahead, or at the iterator itself.
struct DatasetStage {
  std::string name;            // the op and its line
  std::uint64_t elements = 0;  // that were handed on
  // Of the iterator alone: what was handed on, and since when.
  std::uint64_t bytes = 0;
  double seconds = 0;
  std::uint64_t ready = 0;    // elements that wait to be taken
  std::uint64_t room = 0;     // how many there may be
  double waited_seconds = 0;  // the taker waited: what comes before is too slow
  double full_seconds = 0;    // there was no room: what comes after is slower
};

class LOCKSTEP_API AnyDataset {
 public:
  explicit AnyDataset(std::shared_ptr<const internal::DatasetNode> node);
  ~AnyDataset();
  AnyDataset(const AnyDataset&);
  AnyDataset& operator=(const AnyDataset&);
  AnyDataset(AnyDataset&&) noexcept;
  AnyDataset& operator=(AnyDataset&&) noexcept;

  const ElementSpec& element_spec() const;
  const std::string& op() const;
  const std::vector<DatasetAttribute>& attributes() const;
  const std::vector<AnyDataset>& inputs() const;
  const SourceSite& site() const;
  // The same operation over other inputs, as many as there are. Throws InvalidArgument if their specs do not fit it.
  AnyDataset with_inputs(std::vector<AnyDataset> inputs) const;
  // One line for each node, the last operation first, its inputs below it.
  std::string to_string() const;
  // The same without what is tuning: what a state of an iterator belongs to.
  std::string signature() const;

  DatasetIterator iterator(IteratorOptions options = {}) const;
  // The same with types (io/datasets/dataset.h). Throws InvalidArgument if the spec says something else.
  template <class... Ts>
  Dataset<Ts...> as() const;

  // --- one element for one
  AnyDataset map(ElementFunction function, ElementSpec spec, unsigned threads = 1,
                 SourceSite site = SourceSite::current()) const;
  // The leaves are the program's feeds, in order; its results become a tuple, or a leaf if there is one.
  AnyDataset map(const Program& program, unsigned threads = 1, SourceSite site = SourceSite::current()) const;
  // The elements must fit this spec from here on.
  AnyDataset with_spec(ElementSpec spec, SourceSite site = SourceSite::current()) const;

  // --- which elements
  AnyDataset filter(ElementPredicate keep, SourceSite site = SourceSite::current()) const;
  AnyDataset take(std::int64_t count, SourceSite site = SourceSite::current()) const;
  AnyDataset skip(std::int64_t count, SourceSite site = SourceSite::current()) const;
  // Element `index`, and every `count`-th after it.
  AnyDataset shard(std::int64_t count, std::int64_t index, SourceSite site = SourceSite::current()) const;
  // count < 0: without end. An input that has no elements ends it.
  AnyDataset repeat(std::int64_t count = -1, SourceSite site = SourceSite::current()) const;
  // Draws each element from the next `buffer` ones. A position is saved as a count, and what was in the buffer is read again.
  AnyDataset shuffle(std::int64_t buffer, ShuffleOptions options = {},
                     SourceSite site = SourceSite::current()) const;
  AnyDataset concatenate(const AnyDataset& next, SourceSite site = SourceSite::current()) const;

  // --- how many in one
  AnyDataset batch(std::int64_t size, BatchOptions options = {},
                   SourceSite site = SourceSite::current()) const;
  AnyDataset padded_batch(std::int64_t size, PaddedBatchOptions options = {},
                          SourceSite site = SourceSite::current()) const;
  AnyDataset unbatch(SourceSite site = SourceSite::current()) const;
  // Batches that may overlap: elements b, b + stride, ... for b = 0, shift, 2 * shift, ...
  AnyDataset window(std::int64_t size, WindowOptions options = {},
                    SourceSite site = SourceSite::current()) const;

  // --- datasets of datasets. `spec` is that of their elements.
  AnyDataset flat_map(DatasetFunction function, ElementSpec spec,
                      SourceSite site = SourceSite::current()) const;
  AnyDataset interleave(DatasetFunction function, ElementSpec spec, InterleaveOptions options = {},
                        SourceSite site = SourceSite::current()) const;

  // --- when they are made
  // What the first pass reads is kept in memory, for all later passes and iterators, as long as the dataset lives.
  AnyDataset cache(SourceSite site = SourceSite::current()) const;
  // Up to so many elements are made beforehand, on a thread of the input.
  AnyDataset prefetch(std::int64_t count, SourceSite site = SourceSite::current()) const;
  AnyDataset with_options(DatasetOptions options, SourceSite site = SourceSite::current()) const;

 private:
  friend class internal::DatasetNode;
  std::shared_ptr<const internal::DatasetNode> node_;
};

// Tuples of one element of each; ends with the shortest.
LOCKSTEP_API AnyDataset zip(std::vector<AnyDataset> inputs, SourceSite site = SourceSite::current());

}  // namespace lockstep
