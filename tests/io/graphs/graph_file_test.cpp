// Tests: io/graphs/graph_file.cpp, io/graphs/graph_records.cpp, io/graphs/identities.cpp,
//        io/files/bounded_json.cpp
#include "lockstep/io/graphs/graph_file.h"

#include <cstring>
#include <fstream>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/check/verifier.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/io/drawings/model_explorer.h"
#include "lockstep/io/files/crc32c.h"
#include "lockstep/io/files/files.h"
#include "lockstep/io/files/internal/bounded_archive.h"
#include "lockstep/io/graphs/internal/graph_records.h"
#include "lockstep/strategies/mirrored.h"
#include "support/data_dir.h"
#include "support/file_graphs.h"
#include "support/random_graph.h"
#include "support/random_replicated.h"
#include "support/random_text_graph.h"
#include "support/replica_models.h"
#include "support/temporary_folder.h"
#include "support/test_devices.h"

namespace lockstep {
namespace {

using testing::test_devices;

using internal::GraphFileRecord;
using internal::GraphRecord;
using internal::make_records;
using internal::RecordForm;
using internal::to_portable_bytes;
using lockstep::testing::expect_same_graph;
using lockstep::testing::graph_of_version_1;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::filesystem::path kFiles = lockstep::testing::data_dir() / "io/graphs/files";
constexpr GraphFormat kAllFormats[] = {GraphFormat::kBinary, GraphFormat::kJson, GraphFormat::kText};

// What is said when the bytes are refused; "accepted" otherwise. Only Error may be thrown.
std::string refusal(std::string_view bytes, const ReadLimits& limits = {}) {
  try {
    read_graph(bytes, limits);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

void expect_round_trip(const Graph& graph) {
  for (const GraphFormat format : {GraphFormat::kBinary, GraphFormat::kJson}) {
    SCOPED_TRACE(extension_of(format));
    const std::string bytes = write_graph(graph, format);
    const Graph back = read_graph(bytes);
    expect_same_graph(graph, back);
    EXPECT_EQ(write_graph(back, format), bytes);
  }
  EXPECT_EQ(structural_difference(graph, read_graph(write_graph(graph, GraphFormat::kText))), "");
}

std::set<std::uint64_t> identities_of(const Graph& graph) {
  std::set<std::uint64_t> all;
  for (const Node& node : graph.nodes()) {
    all.insert(node.provenance().identity);
    for (const Graph& region : node.regions()) all.merge(identities_of(region));
  }
  return all;
}

// --- nothing is lost

TEST(GraphFile, KeepsEverythingAGraphCanHold) {
  expect_round_trip(graph_of_version_1());
  expect_round_trip(Graph());
}

TEST(GraphFile, KeepsRandomGraphs) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE(seed);
    expect_round_trip(lockstep::testing::random_valid_graph(seed, 40));
    expect_round_trip(
        lockstep::testing::random_graph({.seed = seed, .nodes = 60, .lambdas = false, .regions = 3}));
    expect_round_trip(
        lockstep::testing::random_replicated_step(2 + static_cast<std::int64_t>(seed % 3), seed));
  }
}

TEST(GraphFile, KeepsModelsBeforeAndAfterAStrategy) {
  for (const auto& make : {&lockstep::testing::mlp_model, &lockstep::testing::transformer_model}) {
    MirroredStrategy strategy({.devices = test_devices(3)});
    const auto scope = strategy.scope();
    const lockstep::testing::ReplicaModel model = make();
    SCOPED_TRACE(model.name);
    const auto step = strategy.function(model.inputs, [&](std::span<const Value> in) {
      const Value loss = model.loss(in);
      Sgd(0.1).minimize(loss, std::vector<VariableRef>(model.variables.begin(), model.variables.end()));
      return loss;
    });
    expect_round_trip(step.step_graph());
    expect_round_trip(step.replicated_graph());
    // A node of the step and its copies on replicas still belong together when both come from files.
    const Graph before = read_graph(write_graph(step.step_graph(), GraphFormat::kBinary));
    const Graph after = read_graph(write_graph(step.replicated_graph(), GraphFormat::kJson));
    const std::set<std::uint64_t> known = identities_of(before);
    std::size_t found = 0;
    for (const Node& node : after.nodes()) found += known.contains(node.provenance().origin) ? 1 : 0;
    EXPECT_GT(found, after.size() / 2);
  }
}

TEST(GraphFile, KeepsGraphsWithGapsAndForwardReferences) {
  Graph graph =
      parse("%x = placeholder() : f32[2]\n%a = relu(%x) : f32[2]\n%b = tanh(%a) : f32[2]\nreturn %b\n");
  NodeInit init;
  init.op = &OpRegistry::global().get("square");
  init.name = "late";
  init.inputs = {ValueId{graph.find("x"), 0}};
  init.outputs = {TensorSpec{DType::kF32, {2}}};
  const NodeId late = graph.add(std::move(init));
  graph.set_input(graph.find("b"), 0, {late, 0});
  graph.erase(graph.find("a"));
  expect_round_trip(graph);
}

TEST(GraphFile, SharesMemoryBetweenConstantsThatShareIt) {
  GraphBuilder b;
  const Tensor large = Tensor::zeros({1000});
  const auto constant = [&] { return b.op1("constant", {}, {{"value", large}}); };  // without a copy
  b.result(constant() + constant());
  const std::string bytes = write_graph(b.finish(), GraphFormat::kBinary);
  EXPECT_LT(bytes.size(), 2 * large.num_bytes());
  const Graph back = read_graph(bytes);
  std::vector<Tensor> constants;
  for (const Node& node : back.nodes()) {
    if (const auto* value = node.find<Tensor>("value")) constants.push_back(*value);
  }
  ASSERT_EQ(constants.size(), 2U);
  EXPECT_TRUE(constants[0].shares_memory_with(constants[1]));
}

// --- files

TEST(GraphFile, SavesByExtensionAndLoadsByContents) {
  const TemporaryFolder folder;
  const Graph graph = graph_of_version_1();
  for (const GraphFormat format : kAllFormats) {
    const auto path = folder / ("step" + std::string(extension_of(format)));
    save_graph(graph, path);
    save_graph(graph, path);  // replaces
    EXPECT_EQ(read_file(path), write_graph(graph, format));
    const auto other_name = folder / "copy.of";
    std::filesystem::copy_file(path, other_name, std::filesystem::copy_options::overwrite_existing);
    EXPECT_EQ(structural_difference(load_graph(other_name), graph), "");
    // A file above the limit is not damaged, whoever finds out.
    EXPECT_THROW(load_graph(path, {.file_bytes = 100}), InvalidArgument);
    EXPECT_THROW(read_graph(read_file(path), {.file_bytes = 100}), InvalidArgument);
  }
  // A pipe is opened once, and read to its end.
  for (const GraphFormat format : kAllFormats) {
    const std::string pipe = (folder / ("pipe" + std::string(extension_of(format)))).string();
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    std::thread writer([&] { std::ofstream(pipe, std::ios::binary) << write_graph(graph, format); });
    EXPECT_EQ(structural_difference(load_graph(pipe), graph), "");
    writer.join();
  }
  EXPECT_THROW(save_graph(graph, folder / "step.onnx"), InvalidArgument);
  EXPECT_THROW(load_graph(folder / "absent.lkg"), NotFound);
  EXPECT_THROW(load_graph(folder.path()), Error);
}

TEST(GraphFile, ReadsLargeConstantsStraightIntoTheirTensors) {
  const TemporaryFolder folder;
  GraphBuilder b;
  const Tensor large = lockstep::testing::counting_tensor(DType::kF32, {1 << 20});
  b.result(b.constant(large));
  save_graph(b.finish(), folder / "large.lkg");
  const auto before = default_host_pool()->stats();
  default_host_pool()->reset_peak();
  const Graph back = load_graph(folder / "large.lkg");
  const auto after = default_host_pool()->stats();
  EXPECT_EQ(after.allocations - before.allocations, 1);
  EXPECT_EQ(after.live_bytes - before.live_bytes, static_cast<std::int64_t>(large.num_bytes()));
  const auto* value = back.node(back.results()[0].node).find<Tensor>("value");
  ASSERT_NE(value, nullptr);
  EXPECT_TRUE(value->bit_equal(large));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(value->raw()) % kAlignment, 0U);
}

// --- files that are in the tests forever

TEST(GraphFile, ReadsFilesOfVersion1) {
  const Graph expected = graph_of_version_1();
  for (const char* name : {"version_1.lkg", "version_1.json"}) {
    SCOPED_TRACE(name);
    const std::string bytes = read_file(kFiles / name);
    expect_same_graph(read_graph(bytes), expected, false);
    EXPECT_EQ(write_graph(load_graph(kFiles / name), graph_format_of(name)), bytes);  // under its own origin
  }
  EXPECT_EQ(structural_difference(load_graph(kFiles / "version_1.lks"), expected), "");
}

// Copies that are slices came with version 2, gradients that a pass made anew with version 3.
Graph graph_of_version_3() {
  Graph graph = parse(R"(
      var @m : f32[2] [synchronization=on_read, aggregation=slices, slice_axis=0, slice_extent=4]
      %x = placeholder() : f32[4]
      %y = relu(%x) : f32[4]
      %g = relu(%x) : f32[4] gradient
      %h = neg(%g) : f32[4] gradient
      return %y, %h
    )");
  Provenance made = graph.node(graph.find("h")).provenance();
  made.made_by = graph.intern("my-pass");
  graph.set_provenance(graph.find("h"), made);
  return graph;
}

TEST(GraphFile, ReadsFilesOfVersion3) {
  for (const char* name : {"version_3.lkg", "version_3.json"}) {
    SCOPED_TRACE(name);
    const std::string bytes = read_file(kFiles / name);
    const Graph graph = read_graph(bytes);
    expect_same_graph(graph, graph_of_version_3(), false);
    EXPECT_EQ(graph.text(graph.node(graph.find("h")).provenance().made_by), "my-pass");
    EXPECT_EQ(write_graph(load_graph(kFiles / name), graph_format_of(name)), bytes);
  }
}

TEST(GraphFile, GivesNodesOfOtherProcessesNumbersOfTheirOwn) {
  testing::any_attributes_op();  // the files have one
  const Graph binary = load_graph(kFiles / "version_1.lkg");
  const Graph json = load_graph(kFiles / "version_1.json");  // both were written by one process
  EXPECT_EQ(identities_of(binary), identities_of(json));
  for (const std::uint64_t identity : identities_of(graph_of_version_1())) {
    EXPECT_FALSE(identities_of(binary).contains(identity));
  }
  // A node that is added here, and what was loaded, stay apart and together through another file.
  Graph changed = binary;
  changed.rename(changed.find("x"), "renamed");
  const Graph back = read_graph(write_graph(changed, GraphFormat::kJson));
  EXPECT_EQ(identities_of(back), identities_of(binary));
}

TEST(GraphFile, RefusesLaterVersions) {
  std::string binary = read_file(kFiles / "version_1.lkg");
  binary[8] = 4;
  EXPECT_THAT(refusal(binary), AllOf(HasSubstr("DataLoss"), HasSubstr("header is damaged")))
      << "a flipped bit";
  const std::uint32_t sum = crc32c(std::string_view(binary).substr(0, 28));
  std::memcpy(binary.data() + 28, &sum, sizeof sum);
  EXPECT_THAT(refusal(binary),
              AllOf(HasSubstr("Unimplemented"), HasSubstr("version is 4"), HasSubstr("update Lockstep")));
  std::string json = read_file(kFiles / "version_1.json");
  const std::string field = "\"lockstep_graph\": 1";
  json.replace(json.find(field), field.size(), "\"new_field\": [], \"lockstep_graph\": 4");
  EXPECT_THAT(refusal(json), AllOf(HasSubstr("Unimplemented"), HasSubstr("version is 4")));
}

// Text may be looked at where its ops are not linked in; everything else of it is checked.
TEST(GraphFile, TextKeepsUnknownOpsForThoseWhoOnlyLook) {
  const std::string text = "%x = placeholder() : f32[]\n%y = nobodys_op[a=1](%x) : f32[]\nreturn %y\n";
  EXPECT_THROW(read_graph(text), NotFound);
  const Graph graph = read_graph(text, {}, "u.lks", UnknownOps::kKeep);
  EXPECT_EQ(graph.node(graph.find("y")).op().name, "nobodys_op");
  const std::string broken =
      "%x = placeholder() : f32[]\n%y = nobodys_op(%x) : f32[]\n%z = add(%y, %x) : f32[2]\n";
  EXPECT_THROW(read_graph(broken, {}, "u.lks", UnknownOps::kKeep), InvalidArgument);
}

// --- what cannot be written

TEST(GraphFile, RefusesLambdasWithTheirNameAndLine) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const auto kernel = [](KernelContext&) {};
  const Value y = cond(
      less(sum(x), 1.0F), [&] { return std::vector<Value>{x}; },
      [&] {
        const std::vector<Value> inputs = {x};
        const std::vector<TensorSpec> outputs = {{DType::kF32, {2}}};
        return b.call("mine", inputs, outputs, kernel, {}, {"model.cpp", "f", 77});
      })[0];
  b.result(y);
  const Graph graph = b.finish();
  for (const GraphFormat format : kAllFormats) {
    try {
      write_graph(graph, format);
      ADD_FAILURE() << "written as " << extension_of(format);
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("mine"), HasSubstr("lambda"), HasSubstr("model.cpp:77")));
    }
  }
}

TEST(GraphFile, RefusesToWriteWhatItWouldNotRead) {
  const Graph broken = parse("%x = no_such_op() : f32[2]\nreturn %x\n");
  for (const GraphFormat format : kAllFormats) EXPECT_THROW(write_graph(broken, format), Error);
  const Graph no_utf8 = parse("%\"\\xff\" = placeholder() : f32[2]\nreturn %\"\\xff\"\n");
  EXPECT_THROW(write_graph(no_utf8, GraphFormat::kJson), InvalidArgument);
  expect_same_graph(read_graph(write_graph(no_utf8, GraphFormat::kBinary)), no_utf8);
}

// --- what cannot be read

// With records and a block.
Graph small_graph() {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {256});
  b.result(relu(x) + b.constant(lockstep::testing::counting_tensor(DType::kF32, {256})));
  return b.finish();
}

TEST(GraphFile, RefusesEveryTruncation) {
  const Graph graph = small_graph();
  const std::string binary = write_graph(graph, GraphFormat::kBinary);
  for (std::size_t size = 0; size < binary.size(); ++size)
    ASSERT_THAT(refusal(std::string_view(binary).substr(0, size)), HasSubstr("DataLoss")) << size;
  const std::string json = write_graph(graph, GraphFormat::kJson);
  for (std::size_t size = 0; size + 1 < json.size(); ++size) {
    ASSERT_NE(refusal(std::string_view(json).substr(0, size)), "accepted") << size;
  }
  EXPECT_THAT(refusal(binary + '\0'), HasSubstr("1 bytes follow"));
  EXPECT_THAT(refusal(json + "{}"), HasSubstr("not JSON"));
}

// What a full disk or a crash leaves most often; whatever it is called.
TEST(GraphFile, RefusesFilesThatLostTheirContents) {
  const TemporaryFolder folder;
  for (const GraphFormat format : kAllFormats) {
    const auto path = folder / ("step" + std::string(extension_of(format)));
    write_file_whole(path, "");
    try {
      load_graph(path);
      ADD_FAILURE() << path << " was read";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
      EXPECT_THAT(error.what(), AllOf(HasSubstr(path.string()), HasSubstr("it is empty")));
    }
    // A graph without nodes is something else.
    save_graph(Graph(), path);
    EXPECT_EQ(load_graph(path).size(), 0U);
  }
  EXPECT_EQ(parse("").size(), 0U);
}

// As editors leave it.
TEST(GraphFile, SkipsTheMarkOfUtf8) {
  for (const GraphFormat format : {GraphFormat::kJson, GraphFormat::kText}) {
    const std::string marked = "\xef\xbb\xbf" + write_graph(graph_of_version_1(), format);
    EXPECT_EQ(structural_difference(read_graph(marked), graph_of_version_1()), "");
  }
}

TEST(GraphFile, RefusesEveryFlippedBit) {
  std::string bytes = write_graph(small_graph(), GraphFormat::kBinary);
  ASSERT_GT(bytes.size(), 1024U);
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    ASSERT_NE(refusal(bytes), "accepted") << "bit " << bit;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
  }
  EXPECT_EQ(refusal(bytes), "accepted");
}

// A binary file of these records, with checksums that are right.
std::string file_of(std::string_view body, std::string_view blocks = {}) {
  std::string out("\x89LKG\r\n\x1a\n\1\0\0\0\0\0\0\0", 16);
  const auto put = [&](auto value) { out.append(reinterpret_cast<const char*>(&value), sizeof value); };
  put(std::uint64_t{body.size()});
  put(crc32c(body));
  put(crc32c(out));
  out += body;
  out += blocks;
  return out;
}

std::string body_of(const std::string& file) {
  std::uint64_t size = 0;
  std::memcpy(&size, file.data() + 16, sizeof size);
  return file.substr(32, size);
}

// Bytes that this process ever held.
std::int64_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

// Whoever writes a file by hand may leave identities out, or copy a node with its own.
TEST(GraphFile, GivesEachNodeAnIdentityOfItsOwn) {
  const Graph graph =
      parse("%x = placeholder() : f32[2]\n%y = relu(%x) : f32[2]\n%z = relu(%y) : f32[2]\nreturn %z\n");
  GraphFileRecord file = make_records(graph, RecordForm::kBinary).file;
  auto& nodes = file.graphs[0].nodes;
  nodes[1].identity = nodes[0].identity;
  nodes[2].identity.number = 0;
  const std::string bytes = file_of(to_portable_bytes(file));
  const Graph back = read_graph(bytes);
  EXPECT_EQ(identities_of(back).size(), 3U);
  EXPECT_FALSE(identities_of(back).contains(0));
  const auto identity = [](const Graph& g, const char* name) {
    return g.node(g.find(name)).provenance().identity;
  };
  EXPECT_EQ(identity(back, "x"), identity(graph, "x")) << "the first has it";
  EXPECT_NE(identity(read_graph(bytes), "z"), identity(back, "z")) << "nothing says that they are one";
}

// Somebody who forges a file also forges its checksums.
TEST(GraphFile, SurvivesForgedRecords) {
  const std::string file = write_graph(graph_of_version_1(), GraphFormat::kBinary);
  const std::string body = body_of(file);
  const std::string blocks = file.substr(32 + body.size());
  ASSERT_EQ(refusal(file_of(body, blocks)), "accepted");
  const std::int64_t before = peak_memory();
  std::size_t refused = 0;
  for (std::size_t at = 0; at < body.size(); at += 7) {
    std::string forged = body;
    forged[at] = static_cast<char>(forged[at] ^ (at % 3 == 0 ? 0x80 : at % 3 == 1 ? 0xff : 1));
    refused += refusal(file_of(forged, blocks)) != "accepted" ? 1 : 0;
    if (at + 8 > body.size()) continue;
    const std::uint64_t huge = at % 2 == 0 ? ~std::uint64_t{0} : std::uint64_t{1} << 35U;  // a count, perhaps
    std::memcpy(forged.data() + at, &huge, sizeof huge);
    refused += refusal(file_of(forged, blocks)) != "accepted" ? 1 : 0;
  }
  EXPECT_GT(refused, body.size() / 7);
  EXPECT_LT(peak_memory() - before, std::int64_t{1} << 30U);  // the counts ask for 32 GiB and more
}

TEST(GraphFile, RefusesWhatDoesNotFitTogether) {
  const GraphFileRecord good =
      make_records(parse("%x = placeholder() : f32[2]\n%y = relu(%x) : f32[2]\nreturn %y\n"),
                   RecordForm::kBinary)
          .file;
  GraphFileRecord with_region =
      make_records(parse("%p = placeholder() : bool[]\n"
                         "%c = cond(%p) : f32[] {\n"
                         "  region {\n    %a = constant[value=f32[]{1.0}]() : f32[]\n    return %a\n  }\n"
                         "  region {\n    %a = constant[value=f32[]{2.0}]() : f32[]\n    return %a\n  }\n"
                         "}\nreturn %c\n"),
                   RecordForm::kBinary)
          .file;
  const auto said = [](GraphFileRecord file, auto change) {
    change(file);
    return refusal(file_of(to_portable_bytes(file)));
  };
  EXPECT_EQ(said(good, [](auto&) {}), "accepted");
  EXPECT_EQ(said(with_region, [](auto&) {}), "accepted");
  using File = GraphFileRecord;
  EXPECT_THAT(said(good, [](File& f) { f.graphs.clear(); }), HasSubstr("holds no graph"));
  EXPECT_THAT(said(good, [](File& f) { f.origins[0] = "../../etc"; }), HasSubstr("32 hexadecimal digits"));
  EXPECT_THAT(said(good, [](File& f) { f.graphs[0].nodes[1].identity.origin = 9; }), HasSubstr("origin 9"));
  EXPECT_THAT(said(good, [](File& f) { f.graphs[0].nodes[1].inputs[0].node = 2; }),
              HasSubstr("node 2 is used"));
  EXPECT_THAT(said(good, [](File& f) { f.graphs[0].nodes[1].inputs[0].output = 7; }),
              HasSubstr("live-inputs"));
  EXPECT_THAT(said(good, [](File& f) { f.graphs[0].nodes[1].inputs[0].node = 1; }), HasSubstr("acyclic"));
  EXPECT_THAT(said(good, [](File& f) { f.graphs[0].nodes[1].name = "x"; }), HasSubstr("exists already"));
  EXPECT_THAT(said(good, [](File& f) { f.graphs[0].nodes[1].op = "rely"; }),
              AllOf(HasSubstr("NotFound"), HasSubstr("node 'y'"), HasSubstr("relu")));
  EXPECT_THAT(said(good, [](File& f) { f.graphs[0].nodes[1].device = "no device"; }),
              HasSubstr("device-known"));
  EXPECT_THAT(said(good, [](File& f) { f.graphs[0].nodes[1].site = 99; }), HasSubstr("site 99"));
  EXPECT_THAT(said(good, [](File& f) { f.graphs[0].nodes[1].replica = -2; }), HasSubstr("no replica -2"));
  EXPECT_THAT(said(good, [](File& f) { f.graphs[0].nodes[1].outputs[0].shape = {-3}; }),
              HasSubstr("negative"));
  EXPECT_THAT(said(good, [](File& f) { f.graphs[0].parameters = {0, 7}; }), HasSubstr("node 7 is used"));
  EXPECT_THAT(said(good,
                   [](File& f) {
                     f.tensors.push_back({.spec = {DType::kF32, {-1}}});
                   }),
              HasSubstr("not known"));
  EXPECT_THAT(said(good,
                   [](File& f) {
                     f.tensors.push_back({.spec = {DType::kBool, {1}}, .contents = "x"});
                   }),
              HasSubstr("neither 0 nor 1"));
  GraphFileRecord claims_much = good;
  claims_much.tensors.push_back({.spec = {DType::kF32, {1LL << 40}}, .in_block = true});
  std::string claim = file_of(to_portable_bytes(claims_much));
  EXPECT_THAT(refusal(claim), HasSubstr("ends early"));
  claim.resize((claim.size() + 63) / 64 * 64 + 64);
  EXPECT_THAT(refusal(claim), HasSubstr("takes 4398046511104 bytes, and 64 are there"));
  EXPECT_THAT(said(with_region,
                   [](File& f) {
                     f.graphs[2].nodes[1].regions = {0, 0};
                   }),
              HasSubstr("region of two nodes"));
  EXPECT_THAT(said(with_region,
                   [](File& f) {
                     f.graphs[2].nodes[1].regions = {0, 2};
                   }),
              HasSubstr("does not stand before"));
  EXPECT_THAT(said(with_region, [](File& f) { f.graphs[2].nodes[1].regions = {1}; }),
              HasSubstr("region of no node"));
  EXPECT_THAT(said(with_region,
                   [](File& f) {
                     for (std::uint32_t i = 0; i < 300; ++i) {
                       GraphRecord outer = f.graphs[0];
                       outer.nodes[0].regions = {static_cast<std::uint32_t>(f.graphs.size() - 1)};
                       f.graphs.push_back(outer);
                     }
                   }),
              HasSubstr("nested deeper than 256"));
}

// Those who catch by kind catch what is refused inside of a file as well.
TEST(GraphFile, KeepsTheKindsOfErrors) {
  GraphFileRecord file =
      make_records(parse("%x = placeholder() : f32[2]\nreturn %x\n"), RecordForm::kBinary).file;
  file.graphs[0].nodes[0].op = "no_such_op";
  EXPECT_THROW(read_graph(file_of(to_portable_bytes(file))), NotFound);
  EXPECT_THAT(refusal("%x = placeholder() : f32[2]\n%y = rely(%x) : f32[2]\nreturn %y\n"),
              AllOf(HasSubstr("NotFound: graph file '<graph>': node 'y'"), HasSubstr("'relu'"),
                    HasSubstr("--load"), HasSubstr("made at <graph>:2")));
  file.graphs[0].nodes[0].op = "placeholder";
  file.origins[0] = "no origin";
  EXPECT_THROW(read_graph(file_of(to_portable_bytes(file))), InvalidArgument);
}

TEST(GraphFile, RefusesJsonThatIsDeepOrUnknown) {
  const std::string good = write_graph(parse("%x = placeholder() : f32[2]\nreturn %x\n"), GraphFormat::kJson);
  const auto replaced = [&](std::string_view from, std::string_view to) {
    std::string changed = good;
    const std::size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from << " in " << good;
    changed.replace(at, from.size(), to);
    return refusal(changed);
  };
  ASSERT_EQ(refusal(good), "accepted");
  EXPECT_THAT(refusal("{\"lockstep_graph\": " + std::string(1'000'000, '[')),
              HasSubstr("nested 1000001 deep"));
  EXPECT_THAT(refusal("{\"lockstep_graph\": 1, \"\\\"[[[[[[[[[[[[[[[[[[[[[[[[\": 2"), HasSubstr("not JSON"));
  EXPECT_THAT(refusal("{}"), HasSubstr("'lockstep_graph' is missing"));
  EXPECT_THAT(refusal(to_model_explorer_json(parse("%x = placeholder() : f32[2]\nreturn %x\n"))),
              HasSubstr("perhaps it was made for Model Explorer"));
  for (const std::string& tail : {std::string(1, '\0'), std::string("\0{}", 3), std::string("\0\n", 2)})
    EXPECT_THAT(refusal(good + tail), HasSubstr("zero byte"));
  EXPECT_THAT(replaced("\"op\"", "\"op_\""), HasSubstr("graphs[0].nodes[0]: the field 'op' is missing"));
  EXPECT_THAT(replaced("\"op\"", "\"why\": \"\", \"op\""), HasSubstr("'why' is not known, or given twice"));
  EXPECT_THAT(replaced("\"op\"", "\"note\": 1, \"op\""), HasSubstr("the field 'note' is not known"));
  EXPECT_THAT(replaced("\"origins\": [", "\"more\": 3, \"origins\": ["),
              HasSubstr("the field 'more' is not known"));
  EXPECT_THAT(replaced("\"placeholder\"", "7"), HasSubstr("graphs[0].nodes[0]: op: expected a string"));
  EXPECT_THAT(replaced("\"replica\": -1", "\"replica\": 4294967296"),
              HasSubstr("4294967296 is out of range"));
  EXPECT_THAT(replaced("\"replica\": -1", "\"replica\": 1.5"), HasSubstr("replica: expected an integer"));
  EXPECT_THAT(replaced("\"inputs\": []", "\"inputs\": {}"),
              HasSubstr("graphs[0].nodes[0].inputs: expected an array"));
  EXPECT_THAT(replaced("\"attributes\": []",
                       "\"attributes\": [{\"name\": \"a\", \"value\": \"f32[9999999999]{*0.0}\"}]"),
              HasSubstr("more than"));
  EXPECT_THAT(replaced("\"attributes\": []", "\"attributes\": [{\"name\": \"a\", \"value\": \"<lambda>\"}]"),
              HasSubstr("lambda"));
  EXPECT_THAT(replaced("\"name\": \"x\"", "\"name\": \"\xff\""), HasSubstr("UTF-8"));
}

TEST(GraphFile, BoundsWhatTextFillsWithOneValue) {
  const std::string text = "%x = constant[value=f32[1000]{*1.0}]() : f32[1000]\nreturn %x\n";
  EXPECT_EQ(refusal(text, {.base_bytes = 8000, .bytes_per_byte = 0}), "accepted");
  EXPECT_THAT(refusal(text, {.base_bytes = 3999, .bytes_per_byte = 0}), HasSubstr("more than 3999 bytes"));
  const std::string json = write_graph(read_graph(text + ""), GraphFormat::kJson);
  EXPECT_EQ(refusal(json, {.base_bytes = 16000, .bytes_per_byte = 0}), "accepted");
  EXPECT_THAT(refusal(json, {.base_bytes = 6000, .bytes_per_byte = 0}), HasSubstr("more than 6000 bytes"));
  EXPECT_THAT(refusal(text, {.file_bytes = 10}), HasSubstr("the limit is 10"));
}

}  // namespace
}  // namespace lockstep
