// Tests: io/state/checkpoint.cpp, io/state/checkpoint_index.cpp
#include "lockstep/io/state/checkpoint.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/io/files/crc32c.h"
#include "lockstep/io/files/files.h"
#include "lockstep/io/files/internal/bounded_archive.h"
#include "lockstep/io/files/internal/raw_blocks.h"
#include "lockstep/io/state/internal/checkpoint_index.h"
#include "support/data_dir.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using internal::to_portable_bytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

void put(VariableStore& store, const std::string& name, const Tensor& value, const VariableRole& role = {}) {
  store.find_or_create(
      name, value.spec(), [&] { return value; }, role);
}

// One variable of every dtype, a scalar, one without elements, and one whose name holds scopes.
Snapshot of_everything() {
  std::vector<Snapshot::Item> items;
  for (const DType dtype : kAllDTypes) {
    items.push_back({std::string(to_string(dtype)), Tensor::full(dtype, {2, 3}, 1)});
  }
  items.push_back({"none", Tensor::zeros({0, 7})});
  items.push_back({"encoder/layer_1/w", Tensor::from({3}, {1.5F, -2.25F, 1e-30F})});
  items.push_back({"scalar", Tensor::scalar(std::int64_t{-5})});
  return Snapshot(1234567890123, std::move(items));
}

// Small enough to try every bit of it.
Snapshot small() {
  return Snapshot(7, {{"b", Tensor::scalar(2.5)}, {"w", Tensor::from({3}, {1.F, 2.F, 3.F})}});
}

void overwrite(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

void expect_same(const Snapshot& a, const Snapshot& b) {
  EXPECT_EQ(a.step(), b.step());
  ASSERT_EQ(a.variables().size(), b.variables().size());
  for (std::size_t i = 0; i < a.variables().size(); ++i) {
    EXPECT_EQ(a.variables()[i].name, b.variables()[i].name);
    EXPECT_TRUE(a.variables()[i].value.bit_equal(b.variables()[i].value)) << a.variables()[i].name;
  }
}

ErrorCode code_of(const std::function<void()>& call, std::string* message = nullptr) {
  try {
    call();
  } catch (const Error& error) {
    if (message != nullptr) *message = error.message();
    return error.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::kInternal;
}

TEST(Checkpoint, ComesBackBitForBit) {
  const TemporaryFolder folder;
  const Snapshot snapshot = of_everything();
  write_checkpoint(snapshot, folder / "a.lkc");
  expect_same(read_checkpoint(folder / "a.lkc"), snapshot);

  const CheckpointInfo info = inspect_checkpoint(folder / "a.lkc");
  EXPECT_EQ(info.version, 1U);
  EXPECT_EQ(info.step, snapshot.step());
  ASSERT_EQ(info.entries.size(), snapshot.variables().size());
  for (const CheckpointInfo::Entry& entry : info.entries) EXPECT_EQ(entry.offset % 64, 0U) << entry.name;

  write_checkpoint(Snapshot(), folder / "nothing.lkc");
  expect_same(read_checkpoint(folder / "nothing.lkc"), Snapshot());
}

TEST(Checkpoint, SavesAndRestoresAStore) {
  const TemporaryFolder folder;
  VariableStore from, to;
  put(from, "w", Tensor::from({2}, {1.F, 2.F}));
  from.set_step(41);
  save_checkpoint(from, folder / "a.lkc");

  put(to, "w", Tensor::from({2}, {8.F, 9.F}));
  const RestoreReport report = restore_checkpoint(to, folder / "a.lkc");
  EXPECT_EQ(report.step, 41U);
  EXPECT_EQ(to.step(), 41U);
  EXPECT_TRUE(to.value("w").bit_equal(from.value("w")));
}

// Written once by version 1; whatever becomes of the format, this file stays readable.
TEST(Checkpoint, OfVersionOneIsReadForever) {
  const std::filesystem::path frozen = testing::data_dir() / "io/state/files/checkpoint_v1.lkc";
  expect_same(read_checkpoint(frozen), of_everything());

  const TemporaryFolder folder;
  write_checkpoint(of_everything(), folder / "a.lkc");
  EXPECT_EQ(read_file(folder / "a.lkc"), read_file(frozen)) << "the same version must mean the same bytes";
}

TEST(Checkpoint, NamesAllThatDoesNotFitAndChangesNothing) {
  const TemporaryFolder folder;
  write_checkpoint(Snapshot(9, {{"a", Tensor::scalar(1.F)},
                                {"b", Tensor::scalar(1.F)},
                                {"c", Tensor::scalar(1.F)},
                                {"fits", Tensor::scalar(1.F)},
                                {"z", Tensor::scalar(1.F)}}),
                   folder / "a.lkc");
  VariableStore store;
  put(store, "aa", Tensor::scalar(5.F));
  put(store, "b", Tensor::zeros({2}));
  put(store, "c", Tensor::scalar(5.0));
  put(store, "fits", Tensor::scalar(5.F));
  put(store, "y", Tensor::scalar(5.F));
  std::string message;
  EXPECT_EQ(code_of([&] { restore_checkpoint(store, folder / "a.lkc"); }, &message),
            ErrorCode::kFailedPrecondition);
  EXPECT_THAT(message, HasSubstr("a.lkc"));
  EXPECT_THAT(message, HasSubstr("missing (the program has them): 'aa', 'y'\n"));
  EXPECT_THAT(message, HasSubstr("extra (the program does not have them): 'a', 'z'\n"));
  EXPECT_THAT(message, HasSubstr("'b' is f32[2] in the program and f32[] there"));
  EXPECT_THAT(message, HasSubstr("'c' is f64[] in the program and f32[] there"));
  EXPECT_THAT(message, Not(HasSubstr("fits")));
  EXPECT_EQ(store.value("fits").item(), 5);
  EXPECT_EQ(store.step(), 0U);
}

TEST(Checkpoint, RestoresAPartWhereThatIsAllowed) {
  const TemporaryFolder folder;
  write_checkpoint(small(), folder / "a.lkc");
  VariableStore store;
  put(store, "w", Tensor::zeros({3}));
  put(store, "head", Tensor::scalar(4.F));
  EXPECT_EQ(code_of([&] { restore_checkpoint(store, folder / "a.lkc", {.allow_missing = true}); }),
            ErrorCode::kFailedPrecondition);
  EXPECT_EQ(code_of([&] { restore_checkpoint(store, folder / "a.lkc", {.allow_extra = true}); }),
            ErrorCode::kFailedPrecondition);
  EXPECT_EQ(store.value("w").data<float>()[1], 0.F);

  const RestoreReport report =
      restore_checkpoint(store, folder / "a.lkc", {.allow_missing = true, .allow_extra = true});
  EXPECT_THAT(report.missing, ElementsAre("head"));
  EXPECT_THAT(report.extra, ElementsAre("b"));
  EXPECT_EQ(store.value("w").data<float>()[1], 2.F);
  EXPECT_EQ(store.value("head").item(), 4);

  // What is left aside is checked all the same.
  std::string bytes = read_file(folder / "a.lkc");
  bytes[inspect_checkpoint(folder / "a.lkc").entries[0].offset] ^= 1;
  overwrite(folder / "a.lkc", bytes);
  EXPECT_EQ(code_of([&] {
              restore_checkpoint(store, folder / "a.lkc", {.allow_missing = true, .allow_extra = true});
            }),
            ErrorCode::kDataLoss);
}

TEST(Checkpoint, DetectsEveryFlippedBit) {
  const TemporaryFolder folder;
  write_checkpoint(small(), folder / "a.lkc");
  const std::string good = read_file(folder / "a.lkc");
  ASSERT_LT(good.size(), 400U);
  VariableStore store;
  put(store, "b", Tensor::scalar(0.0));
  put(store, "w", Tensor::zeros({3}));
  std::fstream file(folder / "a.lkc", std::ios::in | std::ios::out | std::ios::binary);
  const auto set_byte = [&](std::size_t at, int value) {  // in place, which is quick
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(value)).flush();
  };
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    set_byte(bit / 8, good[bit / 8] ^ (1 << (bit % 8)));
    ASSERT_EQ(code_of([&] { restore_checkpoint(store, folder / "a.lkc"); }), ErrorCode::kDataLoss) << bit;
    ASSERT_EQ(code_of([&] { read_checkpoint(folder / "a.lkc"); }), ErrorCode::kDataLoss) << bit;
    set_byte(bit / 8, good[bit / 8]);
  }
  EXPECT_TRUE(store.value("w").bit_equal(Tensor::zeros({3})));
  EXPECT_EQ(store.step(), 0U);
  restore_checkpoint(store, folder / "a.lkc");
  EXPECT_EQ(store.step(), 7U);
}

TEST(Checkpoint, DetectsEveryTruncationAndWhatIsAppended) {
  const TemporaryFolder folder;
  write_checkpoint(small(), folder / "a.lkc");
  const std::uintmax_t whole = std::filesystem::file_size(folder / "a.lkc");
  std::filesystem::resize_file(folder / "a.lkc", whole + 64);  // by zeros
  EXPECT_EQ(code_of([&] { read_checkpoint(folder / "a.lkc"); }), ErrorCode::kDataLoss);
  for (std::uintmax_t size = whole; size-- > 0;) {
    std::filesystem::resize_file(folder / "a.lkc", size);
    ASSERT_EQ(code_of([&] { read_checkpoint(folder / "a.lkc"); }), ErrorCode::kDataLoss) << "size " << size;
  }
  EXPECT_EQ(code_of([&] { read_checkpoint(folder / "absent.lkc"); }), ErrorCode::kNotFound);
  EXPECT_EQ(code_of([&] { read_checkpoint(folder.path()); }), ErrorCode::kFailedPrecondition);
}

TEST(Checkpoint, RefusesVersionsThatItDoesNotKnow) {
  const TemporaryFolder folder;
  write_checkpoint(small(), folder / "a.lkc");
  std::string bytes = read_file(folder / "a.lkc");
  internal::CheckpointHeader header =
      internal::parse_header(bytes, bytes.size(), ReadLimits(), "the test's checkpoint");
  for (const std::uint32_t version : {0U, 3U, 0xFFFFFFFFU}) {
    header.version = version;
    bytes.replace(0, internal::kCheckpointHeaderBytes, internal::write_header(header));
    overwrite(folder / "a.lkc", bytes);
    std::string message;
    EXPECT_EQ(code_of([&] { read_checkpoint(folder / "a.lkc"); }, &message), ErrorCode::kUnimplemented);
    EXPECT_THAT(message, HasSubstr(str("version ", version, ", and this Lockstep reads versions 1 to 2")));
  }
}

// Whoever forges a file computes its checksums, too.
TEST(Checkpoint, RefusesBoolsThatAreNeither) {
  const TemporaryFolder folder;
  Tensor flags = Tensor::zeros(DType::kBool, {3});
  static_cast<char*>(flags.raw())[1] = 2;
  write_checkpoint(Snapshot(1, {{"flags", flags}}), folder / "a.lkc");
  VariableStore has_it, has_not;
  put(has_it, "flags", Tensor::zeros(DType::kBool, {3}));
  const std::vector<std::function<void()>> calls = {
      [&] { read_checkpoint(folder / "a.lkc"); }, [&] { restore_checkpoint(has_it, folder / "a.lkc"); },
      [&] { restore_checkpoint(has_not, folder / "a.lkc", {.allow_extra = true}); }};
  for (const std::function<void()>& call : calls) {
    std::string message;
    EXPECT_EQ(code_of(call, &message), ErrorCode::kDataLoss);
    EXPECT_THAT(message, HasSubstr("a truth value of 'flags' is neither 0 nor 1"));
  }
}

TEST(Checkpoint, BoundsSizesBeforeMemoryIsTaken) {
  const TemporaryFolder folder;
  write_checkpoint(small(), folder / "a.lkc");
  const std::uint64_t size = std::filesystem::file_size(folder / "a.lkc");
  VariableStore store;
  put(store, "b", Tensor::scalar(0.0));
  put(store, "w", Tensor::zeros({3}));
  const std::pair<ReadLimits, std::string> cases[] = {
      {{.base_bytes = 10, .bytes_per_byte = 0},
       "more than the limit of 10 for this file (ReadLimits::base_bytes)"},
      {{.file_bytes = size - 1}, str("more than the limit of ", size - 1, " (ReadLimits::file_bytes)")}};
  for (const auto& one : cases) {
    const ReadLimits& limits = one.first;
    const std::string& reason = one.second;
    const std::vector<std::function<void()>> calls = {
        [&] { read_checkpoint(folder / "a.lkc", limits); },
        [&] { inspect_checkpoint(folder / "a.lkc", limits); },
        [&] { restore_checkpoint(store, folder / "a.lkc", {}, limits); },
        [&] { write_checkpoint(small(), folder / "b.lkc", limits); },
        [&] { save_checkpoint(store, folder / "b.lkc", limits); }};
    for (const std::function<void()>& call : calls) {
      std::string message;
      EXPECT_EQ(code_of(call, &message), ErrorCode::kInvalidArgument);
      EXPECT_THAT(message, HasSubstr(reason));
    }
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "b.lkc"));
  EXPECT_EQ(read_checkpoint(folder / "a.lkc", {.file_bytes = size}).variables().size(), 2U);
  EXPECT_EQ(read_checkpoint(folder / "a.lkc", ReadLimits::unlimited()).variables().size(), 2U);
  // What a file may take grows with it.
  write_checkpoint(Snapshot(0, {{"w", Tensor::zeros({1000})}}), folder / "c.lkc",
                   {.base_bytes = 0, .bytes_per_byte = 1});
  EXPECT_EQ(read_checkpoint(folder / "c.lkc", {.base_bytes = 0, .bytes_per_byte = 1}).variables().size(), 1U);
}

// An index of nothing but the shortest entries, without a byte of tensors, would take many times its size.
TEST(Checkpoint, BoundsTheRecordsOfItsIndexByTheFile) {
  std::vector<Snapshot::Item> items;
  for (int i = 0; i < 10'000; ++i) items.push_back({str(i), Tensor::zeros(DType::kU8, {0})});
  const TemporaryFolder folder;
  const Snapshot many(0, std::move(items));
  write_checkpoint(many, folder / "many.lkc");
  const ReadLimits tight{.base_bytes = 0, .bytes_per_byte = 4};
  std::string message;
  EXPECT_EQ(code_of([&] { inspect_checkpoint(folder / "many.lkc", tight); }, &message),
            ErrorCode::kInvalidArgument);
  EXPECT_THAT(message, HasSubstr("the names and shapes of 10000 variables"));
  EXPECT_EQ(inspect_checkpoint(folder / "many.lkc").entries.size(), 10'000U);
}

TEST(Checkpoint, IsForItsOwnerAloneUnlessItReplacesAFile) {
  const TemporaryFolder folder;
  const auto mode = [&](const char* name) {
    return std::filesystem::status(folder / name).permissions() & std::filesystem::perms::all;
  };
  write_checkpoint(small(), folder / "new.lkc");
  EXPECT_EQ(mode("new.lkc"), std::filesystem::perms{0600});
  overwrite(folder / "old.lkc", "old");
  std::filesystem::permissions(folder / "old.lkc", std::filesystem::perms{0640});
  write_checkpoint(small(), folder / "old.lkc");
  EXPECT_EQ(mode("old.lkc"), std::filesystem::perms{0640});
}

// What an index would look like from somebody who computes checksums too.
struct ForgedEntry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> dims;
  std::uint32_t crc = 0;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(name, dtype, dims, crc);
  }
};
struct ForgedIndex {
  std::uint64_t step = 0;
  std::vector<ForgedEntry> entries;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(step, entries);
  }
};

TEST(Checkpoint, RefusesAForgedIndex) {
  const std::int64_t huge = std::int64_t{1} << 40;
  const struct {
    std::vector<ForgedEntry> entries;
    std::string reason;
  } cases[] = {
      {{{"../../etc/passwd", "f32", {}}}, "'.' or '..'"},
      {{{"/etc/passwd", "f32", {}}}, "a part that is empty"},
      {{{"a//b", "f32", {}}}, "a part that is empty"},
      {{{"a/", "f32", {}}}, "a part that is empty"},
      {{{"a/./b", "f32", {}}}, "'.' or '..'"},
      {{{"", "f32", {}}}, "a name is empty"},
      {{{std::string("a\0b", 3), "f32", {}}}, "control characters"},
      {{{std::string(5000, 'a'), "f32", {}}}, "more than 4096 bytes"},
      {{{"a", "f32", {}}, {"a", "f32", {}}}, "not in order"},
      {{{"b", "f32", {}}, {"a", "f32", {}}}, "not in order"},
      {{{"a", "f33", {}}}, "unknown dtype 'f33'"},
      {{{"a", "f32", {-1}}}, "is impossible"},
      {{{"a", "f32", {-5}}}, "is impossible"},
      {{{"a", "f64", {huge, huge}}}, "is impossible"},
      {{{"a", "f64", {std::int64_t{1} << 61}}}, "is impossible"},
      {{{"a", "f64", std::vector<std::int64_t>(300, 1)}}, "is impossible"},
      {{{"a", "f64", {huge}}}, "more than the file holds"},
      {{{"a", "f32", {}}, {"b", "f32", {huge}}}, "more than the file holds"},
      {{{"a", "f32", {}}}, "its tensors end at byte"},
  };
  for (const auto& c : cases) {
    const std::string bytes = to_portable_bytes(ForgedIndex{1, c.entries});
    std::string message;
    EXPECT_EQ(
        code_of(
            [&] { internal::parse_index(bytes, 1, internal::aligned(36 + bytes.size()) + 128, {}, "index"); },
            &message),
        ErrorCode::kDataLoss)
        << c.reason;
    EXPECT_THAT(message, HasSubstr(c.reason));
  }
  // The same with a name as it should be, and sizes that add up.
  const std::string bytes = to_portable_bytes(ForgedIndex{1, {{"a", "f32", {}}, {"b", "f64", {8}}}});
  EXPECT_EQ(
      internal::parse_index(bytes, 1, internal::aligned(36 + bytes.size()) + 128, {}, "index").entries.size(),
      2U);
}

// The same of version 2, which knows copies and states.
struct ForgedPart {
  ForgedEntry entry;
  std::uint8_t kind = 0;
  std::uint32_t copy = 0, copies = 0;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(entry, kind, copy, copies);
  }
};
struct ForgedParts {
  std::uint64_t step = 0;
  std::vector<ForgedPart> entries;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(step, entries);
  }
};

TEST(Checkpoint, RefusesForgedCopiesAndStates) {
  const ForgedEntry a{"a", "f32", {}}, b{"b", "f32", {}}, wide{"a", "f64", {}}, state{"s", "u8", {4}};
  const auto parse = [](const std::vector<ForgedPart>& entries) {
    const std::string bytes = to_portable_bytes(ForgedParts{1, entries});
    return internal::parse_index(bytes, 2, internal::aligned(36 + bytes.size()) + 64 * entries.size(), {},
                                 "index");
  };
  struct Case {
    std::vector<ForgedPart> entries;
    std::string reason;
  };
  const Case cases[] = {
      {{{a, 3, 0, 0}}, "of the unknown kind 3"},
      {{{a, 0, 1, 2}}, "is copy 1 of 2"},
      {{{a, 1, 0, 0}}, "is copy 0 of 0"},
      {{{a, 1, 2, 2}}, "is copy 2 of 2"},
      {{{a, 1, 1, 2}}, "the copies of 'a' are not all there"},
      {{{a, 1, 0, 2}}, "the copies of 'a' are not all there"},
      {{{a, 1, 0, 2}, {b, 0, 0, 0}}, "the copies of 'a' are not all there"},
      {{{a, 1, 0, 2}, {b, 1, 1, 2}}, "the copies of 'a' are not all there"},
      {{{a, 1, 0, 2}, {a, 1, 1, 3}}, "the copies of 'a' are not all there"},
      {{{a, 1, 0, 2}, {wide, 1, 1, 2}}, "the copies of 'a' are not all there"},
      {{{a, 1, 0, 2}, {a, 1, 0, 2}}, "the copies of 'a' are not all there"},
      {{{a, 0, 0, 0}, {a, 1, 0, 1}}, "not in order"},
      {{{state, 2, 0, 0}, {a, 0, 0, 0}}, "not in order"},
      {{{state, 2, 0, 0}, {state, 2, 0, 0}}, "not in order"},
      {{{a, 2, 0, 0}}, "no list of bytes"},
  };
  for (const Case& c : cases) {
    std::string message;
    EXPECT_EQ(code_of([&] { parse(c.entries); }, &message), ErrorCode::kDataLoss) << c.reason;
    EXPECT_THAT(message, HasSubstr(c.reason));
  }
  const CheckpointInfo info = parse({{a, 1, 0, 2}, {a, 1, 1, 2}, {b, 0, 0, 0}, {{"a", "u8", {1}}, 2, 0, 0}});
  EXPECT_EQ(info.entries.size(), 4U);
  EXPECT_EQ(info.entries[1].copy, 1U);
}

TEST(Checkpoint, WritesNoNameThatItWouldNotRead) {
  const TemporaryFolder folder;
  std::string message;
  EXPECT_EQ(code_of(
                [&] {
                  write_checkpoint(Snapshot(0, {{"../w", Tensor::scalar(1.F)}}), folder / "a.lkc");
                },
                &message),
            ErrorCode::kInvalidArgument);
  EXPECT_THAT(message, HasSubstr("give the variable another name"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace lockstep
