// Trains from TFRecords that it writes, stops in the middle of an epoch, and ends with the bits of training that did not stop.
//
//   digits-*.tfrecord.gz ── shuffle ── repeat ── batch ── parse_examples ── prefetch ──► step
//
//   undisturbed:   step 0 ──────────────────────────────────────► 90
//   interrupted:   step 0 ───────► 40: checkpoint │ another program, on other threads: 40 ──► 90
//
// The checkpoint holds the variables, and the position of the input after the batch of the last committed step, though prefetch
// has read further by then.
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <string>

#include <unistd.h>

#include "glyphs.h"
#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

constexpr std::int64_t kRecords = 1000, kBatch = 32;  // of each of two files: 62 and a half batches an epoch
constexpr std::uint64_t kStop = 40, kSteps = 90;

void write_records(const std::filesystem::path& file, std::uint64_t seed) {
  const glyphs::Set digits = glyphs::make(kRecords, seed);
  TfRecordWriter writer(file);
  for (std::int64_t i = 0; i < kRecords; ++i) {
    ExampleBuilder example;
    example.tensor("image", digits.images.slice(i, i + 1)).tensor("label", digits.labels.slice(i, i + 1));
    writer.append(example.encoded());
  }
  writer.commit();
}

Graph training_step() {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 784});
  const Value y = b.placeholder("y", DType::kI64, {kUnknown});
  const VariableRef w1 = b.variable("w1", initializers::he_normal({784, 64}, 1));
  const VariableRef b1 = b.variable("b1", initializers::zeros({64}));
  const VariableRef w2 = b.variable("w2", initializers::glorot_uniform({64, 10}, 2));
  const VariableRef b2 = b.variable("b2", initializers::zeros({10}));
  const Value hidden = dropout(relu(matmul(x, b.read(w1)) + b.read(b1)), 0.1);
  const Value loss = mean(softmax_cross_entropy(matmul(hidden, b.read(w2)) + b.read(b2), y));
  Adam(2e-3).minimize(loss, {w1, b1, w2, b2});
  b.result(loss);
  return b.finish();
}

// Trains from the checkpoint on, if there is one, until so many steps are committed, and leaves a checkpoint. Gives w1.
Tensor train(const std::filesystem::path& folder, const std::string& checkpoint, std::uint64_t until,
             unsigned threads) {
  const AnyDataset input = parse_examples(
      datasets::tfrecords(datasets::matching((folder / "digits-*.tfrecord.gz").string()))
          .shuffle(500, {.seed = 7})
          .repeat()
          .batch(kBatch),
      {{.name = "image", .shape = {784}}, {.name = "label", .type = FeatureType::kI64}}, threads);
  DatasetIterator batches = input.prefetch(2 + threads).iterator({.threads = threads});

  const Program step = compile(optimize(training_step()), Runtime());
  const std::filesystem::path file = folder / checkpoint;
  if (std::filesystem::exists(file)) restore_checkpoint(step.variables(), file, {&batches});
  std::cout << checkpoint << ": step " << step.variables().step();
  while (step.variables().step() < until) {
    const Element batch = *batches.next();
    step.run({{"x", batch["image"].tensor()}, {"y", batch["label"].tensor()}});
  }
  std::cout << " to " << until << '\n';
  save_checkpoint(step.variables(), file, {&batches});
  return step.variables().value("w1").clone();
}

}  // namespace

int main() {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / str("lockstep-example-19-", ::getpid());
  std::filesystem::create_directories(folder);
  write_records(folder / "digits-0.tfrecord.gz", 1);
  write_records(folder / "digits-1.tfrecord.gz", 2);

  const Tensor undisturbed = train(folder, "undisturbed", kSteps, 1);
  train(folder, "interrupted", kStop, 2);
  const Tensor resumed = train(folder, "interrupted", kSteps, 3);
  std::filesystem::remove_all(folder);
  const bool same = resumed.bit_equal(undisturbed);
  std::cout << (same ? "same bits" : "OTHER bits") << '\n';
  return same ? 0 : 1;
}
