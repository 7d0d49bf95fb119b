// Lockstep: datasets with one thread of their own, beside the one that takes the batches.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cases.h"
#include "lockstep/io/datasets/dataset.h"
#include "lockstep/io/datasets/files.h"
#include "lockstep/io/formats/csv.h"

namespace lockstep::bench {
namespace {

constexpr std::int64_t kShuffled = 10'000;  // records in the buffer

std::string file(const char* name) {
  const char* const folder = std::getenv("BENCH_INPUT");
  if (folder == nullptr) throw std::runtime_error("BENCH_INPUT does not say where the files are");
  return (std::filesystem::path(folder) / name).string();
}

AnyDataset examples(const char* name, std::int64_t batch, unsigned threads) {
  return parse_examples(
             datasets::tfrecords({file(name)}).shuffle(kShuffled, {.seed = 1}).repeat().batch(batch),
             {{.name = "x", .shape = {kFeatures}}, {.name = "y", .type = FeatureType::kI64}}, threads)
      .prefetch(8);
}

AnyDataset slices(std::int64_t batch) {
  const Tensor images = Tensor::full(DType::kF32, {kImages, 28, 28}, 0.5);
  Tensor labels = Tensor::empty(DType::kI64, {kImages});
  std::int64_t next = 0;
  for (std::int64_t& label : labels.data<std::int64_t>()) label = next++ % 10;
  return datasets::from_slices(images, labels)
      .shuffle(kImages, {.seed = 1})
      .repeat()
      .batch(batch)
      .prefetch(8);
}

// Rows of the table, a batch at a time: column by column.
class TableStream final : public ElementStream {
 public:
  explicit TableStream(std::int64_t batch) : batch_(batch), reader_(open_csv(file("table.csv"), schema())) {}
  std::optional<Element> next() override {
    if (table_.read(*reader_, batch_) == 0) return std::nullopt;
    std::vector<Element> columns;
    for (CsvValue& value : table_.take()) columns.emplace_back(std::move(value.tensor));
    return Element::tuple(std::move(columns));
  }
  static ElementSpec spec() {
    std::vector<ElementSpec> columns{LeafSpec(TensorSpec{DType::kI64, {kUnknown}})};
    for (std::int64_t i = 0; i < kColumns; ++i)
      columns.emplace_back(LeafSpec(TensorSpec{DType::kF32, {kUnknown}}));
    return ElementSpec::tuple(std::move(columns));
  }

 private:
  static CsvSchema schema() {
    std::vector<CsvColumn> columns{{.name = "label", .dtype = DType::kI64}};
    for (std::int64_t i = 0; i < kColumns; ++i) columns.push_back({.name = "c" + std::to_string(i)});
    return CsvSchema(std::move(columns));
  }
  std::int64_t batch_;
  CsvTable table_{schema()};
  std::unique_ptr<CsvReader> reader_;
};

AnyDataset table(std::int64_t batch) {
  return datasets::generator(TableStream::spec(), [batch] { return std::make_unique<TableStream>(batch); })
      .repeat()
      .prefetch(16);
}

// A function that computes for 50 us.
AnyDataset mapped(std::int64_t batch, unsigned threads) {
  const auto compute = [](Element element) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(50);
    while (std::chrono::steady_clock::now() < end) {
    }
    return element;
  };
  const AnyDataset numbers = datasets::range(1'000'000'000);
  return numbers.map(compute, numbers.element_spec(), threads).batch(batch);
}

class Input final : public Participant {
 public:
  Input(const AnyDataset& dataset, unsigned threads) : iterator_(dataset.iterator({.threads = threads})) {}
  // The rows of the last batch.
  double run(std::size_t steps) override {
    std::optional<Element> batch;
    for (std::size_t i = 0; i < steps; ++i) {
      batch = iterator_.next();
      if (!batch) throw std::runtime_error("it has come to an end");
    }
    std::int64_t rows = 0;
    batch->for_each_leaf([&](const ElementLeaf& leaf) { rows = std::get<Tensor>(leaf).shape()[0]; });
    return static_cast<double>(rows);
  }

 private:
  DatasetIterator iterator_;
};

}  // namespace

std::unique_ptr<Participant> make_input(const std::string& name, std::int64_t batch, std::size_t threads) {
  const unsigned beside = threads > 1 ? static_cast<unsigned>(threads) - 1 : 1;
  const auto of = [beside](const AnyDataset& dataset) { return std::make_unique<Input>(dataset, beside); };
  if (name == "tfrecord") return of(examples("small.tfrecord", batch, beside));
  if (name == "gzip") return of(examples("small.tfrecord.gz", batch, beside));
  if (name == "slices") return of(slices(batch));
  if (name == "csv") return of(table(batch));
  if (name == "map") return of(mapped(batch, beside));
  return nullptr;
}

}  // namespace lockstep::bench
