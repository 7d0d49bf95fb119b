// io/datasets/files.h - files as datasets, by their formats.
//
//   const auto records = datasets::tfrecords({"a.tfrecord", "b.tfrecord.gz"});       // strings, file after file
//   const auto batches = parse_examples(records.shuffle(10'000).batch(64),
//                                       {{.name = "image", .shape = {784}},
//                                        {.name = "label", .type = FeatureType::kI64}});
//   auto batch = batches.iterator().next();                                          // (*batch)["image"]: f32[64,784]
//
//   datasets::text_lines(datasets::matching("logs/2026-*.txt"))
//   datasets::fixed_length({"data_batch_1.bin"}, {.record_bytes = 3073})
//   datasets::idx_rows("train-images-idx3-ubyte.gz"), npy_rows("x.npy"), npz_rows("xy.npz", "x")
//
// The formats are those of io/formats; their headers say what is accepted, and what an error names. Files are a dataset of their own
// in the tree, so that they can be shuffled, and be shared out to workers. Thread safety: any thread.
#pragma once

#include <string>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/source_site.h"
#include "lockstep/io/datasets/any_dataset.h"
#include "lockstep/io/datasets/dataset.h"
#include "lockstep/io/datasets/element.h"
#include "lockstep/io/formats/example.h"
#include "lockstep/io/formats/fixed_length.h"
#include "lockstep/io/formats/text_lines.h"
#include "lockstep/io/formats/tfrecord.h"

namespace lockstep {

namespace datasets {

// Of names of files, or of a dataset that gives them.
LOCKSTEP_API Dataset<std::string> tfrecords(const AnyDataset& files, const TfRecordOptions& options = {},
                                            SourceSite site = SourceSite::current());
LOCKSTEP_API Dataset<std::string> tfrecords(Strings files, const TfRecordOptions& options = {},
                                            SourceSite site = SourceSite::current());
LOCKSTEP_API Dataset<std::string> text_lines(const AnyDataset& files, const TextLineOptions& options = {},
                                             SourceSite site = SourceSite::current());
LOCKSTEP_API Dataset<std::string> text_lines(Strings files, const TextLineOptions& options = {},
                                             SourceSite site = SourceSite::current());
LOCKSTEP_API Dataset<std::string> fixed_length(const AnyDataset& files, const FixedLengthOptions& options,
                                               SourceSite site = SourceSite::current());
LOCKSTEP_API Dataset<std::string> fixed_length(Strings files, const FixedLengthOptions& options,
                                               SourceSite site = SourceSite::current());

// The rows of the array in a file.
LOCKSTEP_API Dataset<Tensor> idx_rows(const std::string& file, SourceSite site = SourceSite::current());
LOCKSTEP_API Dataset<Tensor> npy_rows(const std::string& file, SourceSite site = SourceSite::current());
LOCKSTEP_API Dataset<Tensor> npz_rows(const std::string& file, const std::string& member,
                                      SourceSite site = SourceSite::current());

// The names of the files that a pattern matches (io/formats/match_files.h), in sorted order.
LOCKSTEP_API Strings matching(const std::string& pattern);

}  // namespace datasets

// Records that hold tf.train.Examples, as dictionaries by the features' names. Records one by one give the features' shapes; batches of
// them (lists of strings) give all records' values with the batch in front, which is many times faster. Of a batch, a feature of a
// variable length gives the values of all records one after another, and NAME/lengths, i64[n], how many each has. A feature of bytes
// gives a string if it is one, else strings. Throws InvalidArgument if the dataset has other elements.
LOCKSTEP_API AnyDataset parse_examples(const AnyDataset& records, std::vector<FeatureSpec> features,
                                       unsigned threads = 1, SourceSite site = SourceSite::current());

}  // namespace lockstep
