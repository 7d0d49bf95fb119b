// io/graphs/graph_file.cpp - graphs in files: binary, JSON and text.
#include "lockstep/io/graphs/graph_file.h"

#include <cstring>
#include <memory>

#include "lockstep/core/base/utf8.h"
#include "lockstep/graph/check/verifier.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/io/files/crc32c.h"
#include "lockstep/io/files/files.h"
#include "lockstep/io/files/internal/bounded_archive.h"
#include "lockstep/io/files/internal/bounded_json.h"
#include "lockstep/io/files/internal/input_file.h"
#include "lockstep/io/files/internal/raw_blocks.h"
#include "lockstep/io/graphs/internal/graph_records.h"

namespace lockstep {

using namespace internal;  // NOLINT(google-build-using-namespace): the records and blocks that these files are made of

namespace {

constexpr std::uint32_t kVersion = 3;  // highest version read; a graph is written in the lowest that holds it

// As in PNG: a byte above 127, then a name, then line ends and an end-of-file byte, which careless copying
// changes.
constexpr std::string_view kMagic("\x89LKG\r\n\x1a\n", 8);
constexpr std::size_t kHeaderBytes = 32;

constexpr const char* kJsonVersion = "lockstep_graph";  // the first field of the outermost object
// Depth of records in records. Regions do not add to it, since graphs lie side by side.
constexpr BoundedLimits kRecordLimits{.max_depth = 16};

[[noreturn]] void refuse(std::string_view source, const std::string& message) {
  throw Error(ErrorCode::kDataLoss, str("graph file '", source, "': ", message));
}

void check_size(std::uint64_t bytes, const ReadLimits& limits, std::string_view source) {
  if (bytes <= limits.file_bytes) return;
  throw InvalidArgument(str("graph file '", source, "': it has ", bytes, " bytes, and the limit is ",
                            limits.file_bytes, " (ReadLimits::file_bytes in C++)"));
}

void check_version(std::uint64_t version, std::string_view source) {
  if (version >= 1 && version <= kVersion) return;
  throw Error(ErrorCode::kUnimplemented, str("graph file '", source, "': its version is ", version,
                                             ", and this Lockstep reads versions 1 to ", kVersion,
                                             version > kVersion ? ": update Lockstep to read it" : ""));
}

// --- the header of a binary file: magic, version, zero, bytes of the records, their checksum, the header's
// checksum

// Hands the bytes of the file to `append`, piece by piece, so that blocks need not be copied.
template <class Append>
void write_binary(const Graph& graph, Append append) {
  GraphRecords records = make_records(graph, RecordForm::kBinary);
  std::size_t next = 0;
  for (TensorRecord& tensor : records.file.tensors) {
    if (tensor.in_block) tensor.block_crc = crc32c(bytes_of(records.blocks[next++]));
  }
  const std::string body = to_portable_bytes(records.file);

  std::string header(kMagic);
  put_number(header, records.version);
  put_number(header, std::uint32_t{0});
  put_number(header, std::uint64_t{body.size()});
  put_number(header, crc32c(body));
  put_number(header, crc32c(header));
  append(header);
  append(body);
  std::uint64_t offset = header.size() + body.size();
  for (const Tensor& block : records.blocks) {
    append(gap_behind(offset));
    append(bytes_of(block));
    offset = aligned(offset) + block.num_bytes();
  }
}

// The bytes of a binary file, read front to back: from memory, or from a file whose blocks go straight into
// their tensors.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::uint64_t size() const = 0;
  virtual std::uint64_t position() const = 0;
  virtual void read(void* to, std::size_t count) = 0;  // within size()
};

class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::string_view bytes) : bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }
  std::uint64_t position() const override { return position_; }
  void read(void* to, std::size_t count) override {
    if (count > 0) std::memcpy(to, bytes_.data() + position_, count);
    position_ += count;
  }

 private:
  std::string_view bytes_;
  std::size_t position_ = 0;
};

class FileSource final : public ByteSource {
 public:
  explicit FileSource(InputFile& file) : file_(file) {}
  std::uint64_t size() const override { return file_.size(); }
  std::uint64_t position() const override { return file_.position(); }
  void read(void* to, std::size_t count) override { file_.read(static_cast<char*>(to), count); }

 private:
  InputFile& file_;
};

// Reads the table of tensors: those held in the records, and blocks, each after the last one at the next
// multiple of 64 bytes.
class BlockReader {
 public:
  BlockReader(ByteSource& bytes, std::string_view source) : bytes_(bytes), source_(source) {}

  std::vector<Tensor> read_all(const std::vector<TensorRecord>& records) {
    std::vector<Tensor> tensors;
    tensors.reserve(records.size());
    for (const TensorRecord& record : records) tensors.push_back(read(record));
    if (left() != 0) refuse(source_, str(left(), " bytes follow behind the last block"));
    return tensors;
  }

 private:
  std::uint64_t left() const { return bytes_.size() - bytes_.position(); }

  Tensor read(const TensorRecord& record) {
    const TensorSpec spec{record.spec.dtype, Shape(std::span<const std::int64_t>(record.spec.shape))};
    if (!spec.shape.is_known())
      refuse(source_, str("a tensor has the shape ", spec.shape, ", which is not known"));
    const auto count = static_cast<std::uint64_t>(num_bytes(spec));
    if (record.in_block) skip_gap();
    const std::uint64_t there = record.in_block ? left() : record.contents.size();
    if (record.in_block ? count > there || !record.contents.empty() : count != there) {
      refuse(source_, str("a tensor of type ", spec, " takes ", count, " bytes, and ", there, " are there"));
    }
    Tensor tensor = Tensor::empty(spec.dtype, spec.shape);
    if (record.in_block) {
      bytes_.read(tensor.raw(), static_cast<std::size_t>(count));
      if (crc32c(bytes_of(tensor)) != record.block_crc)
        refuse(source_,
               str("the block of a tensor of type ", spec, " is damaged: its checksum does not match"));
    } else if (count > 0) {
      std::memcpy(tensor.raw(), record.contents.data(), record.contents.size());
    }
    if (spec.dtype == DType::kBool && !are_truth_values(bytes_of(tensor)))
      refuse(source_, "a truth value is neither 0 nor 1");
    return tensor;
  }

  void skip_gap() {
    const std::uint64_t begin = bytes_.position();
    if (aligned(begin) > bytes_.size()) refuse(source_, "it ends early, before a block");
    if (!gap_is_empty(begin, [this](char* to, std::size_t count) { bytes_.read(to, count); }))
      refuse(source_, str("the gap at byte ", begin, " is not empty"));
  }

  ByteSource& bytes_;
  std::string_view source_;
};

Graph read_binary(ByteSource& bytes, std::string_view source, ReadBudget& budget) {
  if (bytes.size() < kHeaderBytes)
    refuse(source, str("it ends early: ", bytes.size(), " bytes are no header"));
  std::string header(kHeaderBytes, '\0');
  bytes.read(header.data(), header.size());
  // The checksum comes first, so that damage is not taken for an unknown version: the header has this form in
  // all versions.
  if (number_at<std::uint32_t>(header, 28) != crc32c(std::string_view(header).substr(0, 28))) {
    refuse(source, "its header is damaged: the checksum does not match");
  }
  check_version(number_at<std::uint32_t>(header, 8), source);
  if (number_at<std::uint32_t>(header, 12) != 0)
    refuse(source, "its header has bits that mean nothing in this version");
  const auto record_bytes = number_at<std::uint64_t>(header, 16);
  if (record_bytes > bytes.size() - kHeaderBytes) {
    refuse(source, str("it ends early: ", record_bytes, " bytes of records expected, ",
                       bytes.size() - kHeaderBytes, " are there"));
  }
  std::string body(static_cast<std::size_t>(record_bytes), '\0');
  bytes.read(body.data(), body.size());
  if (number_at<std::uint32_t>(header, 24) != crc32c(body)) {
    refuse(source, "its records are damaged: the checksum does not match");
  }
  const auto file = from_portable_bytes<GraphFileRecord>(body, "records", kRecordLimits, &budget);
  body = {};
  const std::vector<Tensor> tensors = BlockReader(bytes, source).read_all(file.tensors);
  return make_graph(file, RecordForm::kBinary, tensors, budget);
}

// --- JSON

std::string write_json(const Graph& graph) {
  const GraphRecords records = make_records(graph, RecordForm::kJson);
  std::ostringstream out;
  using Options = cereal::JSONOutputArchive::Options;
  auto archive = std::make_unique<cereal::JSONOutputArchive>(out, Options(17, Options::IndentChar::space, 1));
  try {
    (*archive)(cereal::make_nvp(kJsonVersion, records.version));
    (*archive)(cereal::make_nvp("origins", records.file.origins),
               cereal::make_nvp("graphs", records.file.graphs));
  } catch (...) {
    // The archive's destructor writes the brackets that are still open, and ends the process if they do not
    // match, as when memory ran out inside a record. So the archive is leaked.
    static_cast<void>(archive.release());
    throw;
  }
  archive.reset();  // writes the last bracket
  out << '\n';
  std::string text = std::move(out).str();
  if (!is_utf8(text)) {
    throw InvalidArgument(
        "a name in the graph is not UTF-8, which JSON requires: rename the node, or write the binary or the "
        "text form");
  }
  return text;
}

Graph read_json(std::string_view text, std::string_view source, ReadBudget& budget) {
  if (text.find(str('"', kJsonVersion, '"')) == std::string_view::npos &&
      text.find("\"graphs\"") != std::string_view::npos) {
    refuse(source,
           str("it has no field '", kJsonVersion,
               "': perhaps it was made for Model Explorer, which is for looking at and cannot be read back; "
               "'lockstep opt' and save_graph() write .json files that can"));
  }
  BoundedJsonInput archive(text, str("graph file '", source, "'"), kRecordLimits, &budget);
  std::uint64_t version = 0;
  archive(cereal::make_nvp(kJsonVersion, version));
  check_version(version, source);
  GraphFileRecord file;
  archive(cereal::make_nvp("origins", file.origins), cereal::make_nvp("graphs", file.graphs));
  archive.finish();
  return make_graph(file, RecordForm::kJson, {}, budget);
}

// --- what all forms refuse

void check_no_lambdas(const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    for (const Attribute& attribute : node.attributes()) check_can_be_kept(node, attribute);
    for (const Graph& region : node.regions()) check_no_lambdas(region);
  }
}

void check_can_be_written(const Graph& graph) {
  check_no_lambdas(graph);
  verify(graph);
}

// --- text

// The text of an empty graph would be empty, like a file that lost its contents. This line tells them apart.
constexpr std::string_view kEmptyGraph = "// an empty graph\n";

std::string write_text(const Graph& graph) {
  std::string text = print(graph);
  return text.empty() ? std::string(kEmptyGraph) : text;
}

// Refuses ops that are not registered. The parser accepts them, for callers that only look at the graph.
void check_ops(const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    if (!node.op().known) {
      try {
        registered_op(node.op().name);
      } catch (const NotFound& error) {
        throw NotFound(str("node '", node.name(), "': ", error.message()), place_of(node));
      }
    }
    for (const Graph& region : node.regions()) check_ops(region);
  }
}

Graph read_text(std::string_view text, std::string_view source, const ReadLimits& limits,
                UnknownOps unknown) {
  Graph graph = parse(text, source, limits);
  if (unknown == UnknownOps::kRefuse) {
    check_ops(graph);
    verify(graph);
    return graph;
  }
  for (Violation& violation : find_violations(graph)) {
    if (violation.rule != "known-ops") throw VerifyError(std::move(violation));
  }
  return graph;
}

// Refuses an empty file, and one that ends within the magic bytes of a binary file.
void check_whole(std::string_view bytes, std::string_view source) {
  if (bytes.empty()) refuse(source, "it is empty, with not even a graph without nodes in it");
  if (kMagic.starts_with(bytes) && bytes.size() < kMagic.size())
    refuse(source, str("it ends early: ", bytes.size(), " bytes are no header"));
}

// The bytes after the UTF-8 byte order mark that some editors put first.
std::string_view without_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xef\xbb\xbf";
  return text.starts_with(kMark) ? text.substr(kMark.size()) : text;
}

bool is_json(std::string_view bytes) {
  const std::size_t first = bytes.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && bytes[first] == '{';
}

// Adds the file's name to the errors of `read` that lack it.
template <class Read>
Graph with_source(std::string_view source, Read read) {
  try {
    return read();
  } catch (const ParseError&) {
    throw;
  } catch (const Error& error) {
    if (error.message().starts_with("graph file '")) throw;
    throw_error(error.code(), str("graph file '", source, "': ", error.message()), error.place());
  }
}

}  // namespace

std::string_view extension_of(GraphFormat format) {
  switch (format) {
    case GraphFormat::kBinary: return ".lkg";
    case GraphFormat::kJson: return ".json";
    case GraphFormat::kText: break;
  }
  return ".lks";
}

GraphFormat graph_format_of(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  for (const GraphFormat format : {GraphFormat::kBinary, GraphFormat::kJson, GraphFormat::kText}) {
    if (extension == extension_of(format)) return format;
  }
  throw InvalidArgument(
      str("'", path.string(),
          "' does not say in which form to write a graph: its name should end in .lkg (binary), .json "
          "or .lks (text)"));
}

std::string write_graph(const Graph& graph, GraphFormat format) {
  check_can_be_written(graph);
  if (format == GraphFormat::kJson) return write_json(graph);
  if (format == GraphFormat::kText) return write_text(graph);
  std::string bytes;
  write_binary(graph, [&](std::string_view piece) { bytes += piece; });
  return bytes;
}

Graph read_graph(std::string_view bytes, const ReadLimits& limits, std::string_view source,
                 UnknownOps unknown) {
  check_size(bytes.size(), limits, source);
  check_whole(bytes, source);
  ReadBudget budget(limits, bytes.size());
  return with_source(source, [&] {
    if (bytes.starts_with(kMagic)) {
      MemorySource memory(bytes);
      return read_binary(memory, source, budget);
    }
    const std::string_view text = without_mark(bytes);
    if (is_json(text)) return read_json(text, source, budget);
    return read_text(text, source, limits, unknown);
  });
}

void save_graph(const Graph& graph, const std::filesystem::path& path) {
  const GraphFormat format = graph_format_of(path);
  if (format != GraphFormat::kBinary) return write_file_whole(path, write_graph(graph, format));
  check_can_be_written(graph);
  WholeFile file(path);
  write_binary(graph, [&](std::string_view piece) { file.append(piece); });
  file.commit();
}

Graph load_graph(const std::filesystem::path& path, const ReadLimits& limits, UnknownOps unknown) {
  const std::string source = path.string();
  InputFile file(path, InputFile::Accepts::kAnything);
  if (file.is_plain()) {
    check_size(file.size(), limits, source);
    if (file.peek(kMagic.size()) == kMagic) {
      FileSource bytes(file);
      ReadBudget budget(limits, file.size());
      return with_source(source, [&] { return read_binary(bytes, source, budget); });
    }
  }
  return read_graph(file.read_rest(limits), limits, source, unknown);
}

}  // namespace lockstep
