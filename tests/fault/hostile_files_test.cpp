// Tests: graph/text/text_parse.cpp, graph/text/text_values.cpp, io/graphs/graph_file.cpp, io/graphs/graph_records.cpp,
//        io/drawings/graph_view_fold.cpp
// Files that ask for much: each is refused with Error or read, drawn and dropped, within a second and within the memory
// that ReadLimits allows for its size. Each runs in a process of its own, which is how its memory is known.
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/core/read_limits.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/io/drawings/dot.h"
#include "lockstep/io/drawings/html.h"
#include "lockstep/io/files/npy.h"
#include "lockstep/io/files/npz.h"
#include "lockstep/io/graphs/graph_file.h"
#include "support/reading_cost.h"
#include "support/sanitizers.h"

namespace lockstep {
namespace {

// --- how a file is tried

using testing::reading_cost_of;

void read(const std::string& bytes) { read_graph(bytes); }

// For names and regions, whose depth drawings follow. (To draw many thousands of boxes takes its time.)
void read_and_draw(const std::string& bytes) {
  const Graph graph = read_graph(bytes);
  to_dot(graph);
  to_html(graph);
}

struct HostileFile {
  std::string name;
  std::function<std::string()> make;
  std::function<void(const std::string&)> read_by = read;
};

// --- what they hold

std::string times(std::size_t count, const std::function<std::string(std::size_t)>& part) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += part(i);
  return text;
}
std::string times(std::size_t count, const std::string& part) {
  return times(count, [&](std::size_t) { return part; });
}
std::string n(std::size_t i) { return std::to_string(i); }

std::string with_x(const std::string& rest) { return "%x = placeholder() : f32[4]\n" + rest + "return %x\n"; }

std::string nested_regions(std::size_t depth, const std::string& name) {
  std::string text = "%p = placeholder() : bool[]\n%x = placeholder() : f32[4]\n";
  for (std::size_t i = 0; i < depth; ++i) {
    text += "%" + name + n(i) + " = cond(%p) : f32[4] {\nregion {\n%p = placeholder() : bool[]\n";
  }
  text += "%x = placeholder() : f32[4]\nreturn %x\n";
  return text + times(depth, "}\nregion {\n}\n}\n") + "return %x\n";
}

// Names that are all one number to the standard library's hash, whatever process asks: the last eight bytes of each
// undo what the first eight did. (MurmurHash64A, whose steps can be taken back.)
std::vector<std::string> colliding_names(std::size_t count) {
  constexpr std::uint64_t kMul = (std::uint64_t{0xc6a4a793U} << 32U) + 0x5bd1e995U;
  std::uint64_t inverse = kMul;  // of an odd number, by Newton
  for (int i = 0; i < 6; ++i) inverse *= 2 - kMul * inverse;
  const auto shift = [](std::uint64_t v) { return v ^ (v >> 47U); };
  const auto forward = [&](std::uint64_t k) { return shift(k * kMul) * kMul; };
  const auto backward = [&](std::uint64_t k) { return shift(k * inverse) * inverse; };
  constexpr std::uint64_t kSeed = 0xc70f6907U;
  const std::uint64_t start = kSeed ^ (16 * kMul);
  std::vector<std::string> names;
  for (std::uint64_t i = 0; names.size() < count; ++i) {
    const std::uint64_t first = 0x6161616161616161U + (i % 20) + (i / 20 % 20 << 8U) + (i / 400 % 20 << 16U) +
                                (i / 8000 % 20 << 24U) + (i / 160000 << 32U);
    const std::uint64_t between = (start ^ forward(first)) * kMul;
    const std::uint64_t second = backward(between ^ 12345);
    std::string name(16, '\0');
    std::memcpy(name.data(), &first, 8);
    std::memcpy(name.data() + 8, &second, 8);
    names.push_back(std::move(name));
  }
  return names;
}

std::string quoted(const std::string& name) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text = "\"";
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    text += std::string("\\x") + kDigits[byte >> 4U] + kDigits[byte & 15U];
  }
  return text + '"';
}

std::string with_node(const std::string& node) { return with_x("%n = " + node + "\n"); }

const std::vector<HostileFile>& hostile_files() {
  static const std::vector<HostileFile> files = {
      // Kernels of ops that only passes make, while a shape operand is read.
      {"join_chunks",
       [] {
         return std::string(
             "%x = placeholder() : f32[1]\n%c = constant[value=i64[40]{*7}]() : i64[40]\n"
             "%s = constant[value=i64[1]{1}]() : i64[1]\n%j = join_chunks[chunks=1](%c, %s) : i64[1]\n"
             "%r = reshape(%x, %j) : f32[1]\nreturn %r\n");
       }},
      {"reduce_chunk",
       [] {
         return std::string(
             "%x = placeholder() : f32[1]\n%c = constant[value=i64[4]{*1}]() : i64[4]\n"
             "%j = reduce_chunk[chunk=9223372036854775806, chunks=9223372036854775807, reduce=\"sum\", "
             "replicas=1](%c) : "
             "i64[1]\n%r = reshape(%x, %j) : f32[1]\nreturn %r\n");
       }},
      {"reduce_chunk_small",
       [] {
         return std::string(
             "%x = placeholder() : f32[1]\n%c = constant[value=i64[4]{*1}]() : i64[4]\n"
             "%j = reduce_chunk[chunk=1000, chunks=1001, reduce=\"sum\", replicas=1](%c) : i64[1]\n"
             "%r = reshape(%x, %j) : f32[1]\nreturn %r\n");
       }},
      {"copy_as_shape",
       [] {
         return std::string(
             "%x = placeholder() : f32[1]\n%c = constant[value=i64[1]{1}]() : i64[1]\n%j = copy(%c) : "
             "i64[1]\n"
             "%r = reshape(%x, %j) : f32[1]\nreturn %r\n");
       }},
      {"agree_as_shape",
       [] {
         return std::string(
             "%x = placeholder() : f32[1]\n%c = constant[value=i64[1]{1}]() : i64[1]\n%d = "
             "constant[value=i64[3]{*9}]() : "
             "i64[3]\n%j = agree(%c, %d) : i64[1]\n%r = reshape(%x, %j) : f32[1]\nreturn %r\n");
       }},
      {"random_as_shape",
       [] {
         return std::string(
             "%x = placeholder() : f32[1]\n%n = constant[value=i64[]{60000}]() : i64[]\n"
             "%j = random_permutation[key=1](%n) : i64[60000]\n%r = reshape(%x, %j) : f32[1]\nreturn %r\n");
       }},
      // A few bytes that ask for outputs, elements, attributes.
      {"split_parts", [] { return with_node("split[axis=0, parts=1000000000](%x) : f32[1]"); }},
      {"split_sizes",
       [] { return with_node("split[axis=0, sizes=[" + times(100000, "0,") + "4]](%x) : f32[1]"); }},
      {"shape_operand",
       [] { return with_x("%s = placeholder() : i64[400000000]\n%r = reshape(%x, %s) : f32[4]\n"); }},
      {"shape_operand_huge",
       [] {
         return with_x("%s = placeholder() : i64[9223372036854775807]\n%r = reshape(%x, %s) : f32[4]\n");
       }},
      {"full_as_shape",
       [] {
         return with_x(
             "%s = full[dtype=i64, shape=<100000000>, value=1.0]() : i64[100000000]\n%r = reshape(%x, %s) : "
             "f32[4]\n");
       }},
      {"iota_as_shape",
       [] {
         return with_x(
             "%s = iota[count=1000000000000, dtype=i64, start=0.0, step=1.0]() : i64[1000000000000]\n"
             "%r = reshape(%x, %s) : f32[4]\n");
       }},
      {"tile_as_shape",
       [] {
         return with_x(
             "%c = constant[value=i64[1]{1}]() : i64[1]\n%s = tile[reps=[1000000000]](%c) : i64[1000000000]\n"
             "%r = reshape(%x, %s) : f32[4]\n");
       }},
      {"broadcast_as_shape",
       [] {
         return with_x(
             "%c = constant[value=i64[1]{1}]() : i64[1]\n%s = broadcast_to[shape=<1000000000>](%c) : "
             "i64[1000000000]\n"
             "%r = reshape(%x, %s) : f32[4]\n");
       }},
      {"pad_as_shape",
       [] {
         return with_x(
             "%c = constant[value=i64[1]{1}]() : i64[1]\n%s = pad[after=[1000000000], before=[0], "
             "value=0.0](%c) : "
             "i64[1000000001]\n%r = reshape(%x, %s) : f32[4]\n");
       }},
      {"repeated_shapes",
       [] {
         std::string text =
             "%x = placeholder() : f32[1]\n%c0 = constant[value=i64[60000]{*1}]() : i64[60000]\n";
         for (std::size_t i = 1; i < 250; ++i)
           text += "%c" + n(i) + " = add(%c" + n(i - 1) + ", %c" + n(i - 1) + ") : i64[60000]\n";
         return text +
                times(400, [](std::size_t i) { return "%r" + n(i) + " = reshape(%x, %c249) : f32[1]\n"; }) +
                "return %x\n";
       }},
      {"deep_shape",
       [] {
         std::string text = "%x = placeholder() : f32[1]\n%c0 = constant[value=i64[1]{1}]() : i64[1]\n";
         for (std::size_t i = 1; i < 20000; ++i)
           text += "%c" + n(i) + " = mul(%c" + n(i - 1) + ", %c" + n(i - 1) + ") : i64[1]\n";
         return text + "%r = reshape(%x, %c19999) : f32[1]\nreturn %r\n";
       }},
      {"wide_shapes",
       [] {
         return with_x(times(3000, [](std::size_t i) {
           return "%s" + n(i) + " = full[dtype=i64, shape=<65000>, value=1.0]() : i64[65000]\n%r" + n(i) +
                  " = reshape(%x, %s" + n(i) + ") : f32[4]\n";
         }));
       }},
      // Fills.
      {"fill_4_gib", [] { return with_node("constant[value=f32[1073741824]{*0.0}]() : f32[1073741824]"); }},
      {"fill_overflow",
       [] {
         return with_node("constant[value=f64[4611686018427387904]{*0.0}]() : f64[4611686018427387904]");
       }},
      {"fills_together",
       [] {
         return with_x(times(40, [](std::size_t i) {
           return "%c" + n(i) + " = constant[value=f32[4000000]{*1.0}]() : f32[4000000]\n";
         }));
       }},
      {"variable_fill", [] { return "var @w : f32[1073741824] = f32[1073741824]{*0.0}\n" + with_x(""); }},
      {"variables_huge",
       [] {
         return times(2000, [](std::size_t i) { return "var @w" + n(i) + " : f32[1099511627776]\n"; }) +
                with_x("");
       }},
      {"attribute_fill", [] { return with_node("neg[a=f32[1073741824]{*0.0}](%x) : f32[4]"); }},
      {"stated_elements",
       [] { return with_node("constant[value=f32[1000000000]{1.0}]() : f32[1000000000]"); }},
      // Many of something small.
      {"nodes",
       [] { return with_x(times(60000, [](std::size_t i) { return "%a" + n(i) + "=neg(%x):f32[4]\n"; })); }},
      {"nodes_without_outputs",
       [] { return with_x(times(300000, [](std::size_t i) { return "%a" + n(i) + "=k()\n"; })); }},
      {"variables",
       [] {
         return times(60000, [](std::size_t i) { return "var @" + std::string("w") + n(i) + ":f32[]\n"; }) +
                with_x("");
       }},
      {"empty_regions", [] { return with_x("%n = k() {\n" + times(200000, "region {\n}\n") + "}\n"); }},
      {"outputs", [] { return with_node("k() : f32[]" + times(300000, ",f32[]")); }},
      {"wide_outputs",
       [] { return with_node("k() : f32[1,1,1,1,1,1,1,1]" + times(80000, ",f32[1,1,1,1,1,1,1,1]")); }},
      {"inputs", [] { return with_node("k(%x" + times(300000, ",%x") + ")"); }},
      {"inputs_to_come", [] { return with_node("k(%z" + times(300000, ",%z") + ")"); }},
      {"controls", [] { return with_node("neg(%x) : f32[4] after(%x" + times(300000, ",%x") + ")"); }},
      {"results", [] { return "%x = placeholder() : f32[4]\nreturn %x" + times(500000, ",%x") + "\n"; }},
      {"int_list", [] { return with_node("k[a=[1" + times(1000000, ",1") + "]]()"); }},
      {"float_list", [] { return with_node("k[a=[1.0" + times(500000, ",1.0") + "]]()"); }},
      {"string_list", [] { return with_node("k[a=[\"\"" + times(500000, ",\"\"") + "]]()"); }},
      {"attributes",
       [] {
         return with_node("k[" + times(100000, [](std::size_t i) { return "a" + n(i) + "=1,"; }) + "b=1]()");
       }},
      {"attribute_twice", [] { return with_node("k[" + times(100000, "a=1,") + "b=1]()"); }},
      {"sum_of_many",
       [] { return with_node("concat[axis=0](%x" + times(100000, ",%x") + ") : f32[400004]"); }},
      {"unknown_ops",
       [] { return with_x(times(50000, [](std::size_t i) { return "%a" + n(i) + "=u" + n(i) + "()\n"; })); }},
      {"long_unknown_op", [] { return with_node(std::string(2000000, 'u') + "()"); }},
      {"colliding_names",
       [] {
         std::string text;
         for (const std::string& name : colliding_names(20000)) text += "%" + quoted(name) + "=k()\n";
         return with_x(text);
       }},
      {"colliding_variables",
       [] {
         std::string text;
         for (const std::string& name : colliding_names(10000)) text += "var @" + quoted(name) + ":f32[]\n";
         return text + with_x("");
       }},
      {"names_to_come",
       [] {
         return times(50000,
                      [](std::size_t i) { return "%a" + n(i) + "=neg(%a" + n(i + 1) + "):f32[4]\n"; }) +
                "%a50000=placeholder():f32[4]\nreturn %a0\n";
       }},
      {"cycle",
       [] {
         return times(50000,
                      [](std::size_t i) {
                        return "%a" + n(i) + "=neg(%a" + n((i + 1) % 50000) + "):f32[4]\n";
                      }) +
                "return %a0\n";
       }},
      {"control_cycle",
       [] {
         return "%x = placeholder() : f32[4]\n" +
                times(20000,
                      [](std::size_t i) {
                        return "%a" + n(i) + "=neg(%x):f32[4] after(%a" + n((i + 1) % 20000) + ")\n";
                      }) +
                "return %a0\n";
       }},
      // Depth.
      {"slashes", [] { return with_x("%\"" + std::string(40000, '/') + "\" = neg(%x) : f32[4]\n"); },
       read_and_draw},
      {"named_slashes", [] { return with_x("%\"" + times(40000, "a/") + "b\" = neg(%x) : f32[4]\n"); },
       read_and_draw},
      {"many_slashes",
       [] {
         return with_x(times(300, [](std::size_t i) {
           return "%\"" + times(1000, "a" + n(i) + "/") + "b\" = neg(%x) : f32[4]\n";
         }));
       },
       read_and_draw},
      {"slashes_of_variables", [] { return "var @\"" + times(40000, "a/") + "b\" : f32[4]\n" + with_x(""); },
       read_and_draw},
      {"regions_deep", [] { return nested_regions(300, "c"); }, read_and_draw},
      {"regions_deep_open", [] { return times(100000, "%c = k() {\nregion {\n"); }},
      {"regions_long_names", [] { return nested_regions(200, std::string(5000, 'n')); }, read_and_draw},
      {"brackets", [] { return with_node("k[a=" + std::string(200000, '[')); }},
      {"angles", [] { return with_node("k[a=" + std::string(200000, '<')); }},
      {"json_brackets", [] { return "{\"lockstep_graph\": " + std::string(500000, '['); }},
      {"json_objects", [] { return times(200000, "{\"a\":"); }},
      // Length.
      {"long_name", [] { return with_x("%" + std::string(3000000, 'n') + " = neg(%x) : f32[4]\n"); },
       read_and_draw},
      {"long_string", [] { return with_node("k[a=\"" + std::string(3000000, 's') + "\"]()"); }},
      {"long_number", [] { return with_node("k[a=" + std::string(3000000, '9') + "]()"); }},
      {"long_comment", [] { return "//" + std::string(3000000, 'c') + "\n" + with_x(""); }},
      {"long_device", [] { return with_node("neg(%x) : f32[4] on \"" + std::string(2000000, 'd') + "\""); }},
      {"many_devices",
       [] {
         return with_x(times(
             30000, [](std::size_t i) { return "%a" + n(i) + "=neg(%x):f32[4] on \"cpu:" + n(i) + "\"\n"; }));
       }},
      {"blank_lines", [] { return std::string(4000000, '\n') + with_x(""); }},
      {"zeros", [] { return std::string(4000000, '\0'); }},
      // JSON.
      {"json_numbers",
       [] { return "{\"lockstep_graph\": 1, \"origins\": [" + times(1000000, "1,") + "1]}"; }},
      {"json_strings",
       [] { return "{\"lockstep_graph\": 1, \"origins\": [" + times(500000, "\"\",") + "\"\"]}"; }},
      {"json_graphs",
       [] {
         return "{\"lockstep_graph\": 1, \"origins\": [], \"graphs\": [" +
                times(20000,
                      "{\"variables\":[],\"sites\":[],\"nodes\":[],\"parameters\":[],\"results\":[]},") +
                "{\"variables\":[],\"sites\":[],\"nodes\":[],\"parameters\":[],\"results\":[]}]}";
       }},
      {"json_fields",
       [] {
         return "{" + times(200000, [](std::size_t i) { return "\"a" + n(i) + "\":1,"; }) +
                "\"lockstep_graph\": 1}";
       }},
      // Replicas.
      {"merge_call_replicas",
       [] {
         return with_x(
             "%m = merge_call[replicas=4611686018427387904, single=ints[]](%x, %x, %x, %x) {\nregion "
             "{\n}\n}\n");
       }},
      {"replicated_replicas",
       [] {
         return with_x("%m = replicated[replicas=9223372036854775807, shared=0]() {\nregion {\n}\n}\n");
       }},
      {"all_gather_overflow",
       [] {
         return std::string(
             "%x = placeholder() : u8[9223372036854775807]\n%g, = all_gather[replicas=2](%x, %x)\nreturn "
             "%x\n");
       }},
      {"all_gather_sum",
       [] {
         return std::string(
             "%x = placeholder() : u8[9223372036854775807]\n%g = all_gather[replicas=2](%x, %x) : u8[1], "
             "u8[1]\nreturn %x\n");
       }},
      // NumPy's formats.
      {"npy_header",
       [] { return "\x93NUMPY\x02" + std::string("\0\xff\xff\xff\x7f", 5) + std::string(1000, ' '); },
       [](const std::string& bytes) { read_npy(bytes); }},
      {"npy_shape",
       [] {
         const std::string header =
             "{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 1024), }\n";
         std::string bytes("\x93NUMPY\x01\x00", 8);
         bytes += static_cast<char>(header.size());
         bytes += '\0';
         return bytes + header;
       },
       [](const std::string& bytes) { read_npy(bytes); }},
  };
  return files;
}

TEST(HostileFiles, AreManyAndOfManyKinds) { EXPECT_GE(hostile_files().size(), 60U); }

TEST(HostileFiles, CollideUnderTheStandardHash) {
  const std::vector<std::string> names = colliding_names(100);
  for (const std::string& name : names)
    EXPECT_EQ(std::hash<std::string_view>{}(name), std::hash<std::string_view>{}(names[0]));
}

class HostileFileTest : public ::testing::TestWithParam<std::size_t> {};

TEST_P(HostileFileTest, IsRefusedOrDoneInTimeAndMemory) {
  const HostileFile& file = hostile_files()[GetParam()];
  const std::string bytes = file.make();
  const testing::ReadingCost idle = reading_cost_of([] {});
  testing::ReadingCost cost = reading_cost_of([&] { file.read_by(bytes); });
  EXPECT_THAT(cost.status, ::testing::AnyOf(0, 1)) << file.name;
  if (testing::kSanitized) return;  // which takes memory and time of its own
  // Another process may have had the processor: three tries.
  for (int i = 0; i < 2 && cost.seconds > 1; ++i) cost = reading_cost_of([&] { file.read_by(bytes); });
  EXPECT_LT(cost.seconds, 1) << file.name;
  constexpr std::int64_t kCode = 4 << 20;  // pages of the program that it is the first to touch
  EXPECT_LE(cost.bytes - idle.bytes, static_cast<std::int64_t>(ReadLimits().memory_for(bytes.size())) + kCode)
      << file.name;
  RecordProperty("milliseconds", static_cast<int>(1000 * cost.seconds));
  RecordProperty("kib", static_cast<int>((cost.bytes - idle.bytes) / 1024));
}

INSTANTIATE_TEST_SUITE_P(All, HostileFileTest, ::testing::Range(std::size_t{0}, hostile_files().size()),
                         [](const auto& file) { return hostile_files()[file.param].name; });

// Text that is refused leaves nothing behind, and neither does text that is read and dropped.
TEST(HostileFiles, LeaveNothingBehind) {
  if (testing::kSanitized) GTEST_SKIP() << "freed memory is kept for a while";
  const auto growth_of = [](const std::function<void(std::size_t)>& once) {
    return reading_cost_of([&] {
             for (std::size_t i = 0; i < 20; ++i) once(i);
           }).bytes -
           reading_cost_of([&] { once(0); }).bytes;
  };
  const auto unknown_ops = [](std::size_t round) {
    return with_x(
        times(20000, [&](std::size_t i) { return "%a" + n(i) + "=u" + n(round) + "_" + n(i) + "()\n"; }));
  };
  EXPECT_LT(growth_of([&](std::size_t round) { parse(unknown_ops(round)); }), 8 << 20);
  EXPECT_LT(growth_of([&](std::size_t round) {
              try {
                read_graph(unknown_ops(round));
              } catch (const Error&) {
              }
            }),
            8 << 20);
}

}  // namespace
}  // namespace lockstep
