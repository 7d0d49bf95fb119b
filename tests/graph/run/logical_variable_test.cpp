// Tests: graph/run/logical_variable.cpp, graph/run/variable_role.cpp
#include "lockstep/graph/run/logical_variable.h"

#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/run/variable_role.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Copies {
 public:
  Copies(const std::vector<Tensor>& values, const VariableRole& role) {
    std::vector<StoredVariable*> copies;
    for (std::size_t i = 0; i < values.size(); ++i)
      copies.push_back(
          &store_.find_or_create("v" + std::to_string(i), values[i].spec(), [&] { return values[i]; }));
    variable_.emplace(copies, role);
  }
  const internal::LogicalVariable& get() const { return *variable_; }
  Tensor read() const {
    Tensor value = Tensor::zeros(get().spec().dtype, get().spec().shape);
    get().read(value);
    return value;
  }
  std::vector<std::vector<std::int64_t>> parts() const {
    std::vector<std::vector<std::int64_t>> all;
    for (StoredVariable* copy : get().copies()) {
      const auto data = copy->storage().data<std::int64_t>();
      all.emplace_back(data.begin(), data.end());
    }
    return all;
  }

 private:
  VariableStore store_;
  std::optional<internal::LogicalVariable> variable_;
};

Tensor ints(std::vector<std::int64_t> values) {
  return Tensor::from<std::int64_t>({static_cast<std::int64_t>(values.size())}, values);
}

TEST(LogicalVariable, TheFirstCopiesGetTheRemainder) {
  const Copies copies({ints({0, 0}), ints({0, 0}), ints({0, 0})}, {.copies = CopyRule::kSum});
  copies.get().write(ints({7, -8}));
  EXPECT_THAT(copies.parts(), ElementsAre(ElementsAre(3, -3), ElementsAre(2, -3), ElementsAre(2, -2)));
  EXPECT_TRUE(copies.read().bit_equal(ints({7, -8})));
}

// Rows along any axis, the last slices shorter or empty.
TEST(LogicalVariable, SlicesAreJoinedAndCut) {
  for (const std::int32_t axis : {0, 1, 2}) {
    for (const std::int64_t extent : {5, 6, 1, 0}) {
      const std::int64_t rows = (extent + 2) / 3;
      std::vector<std::int64_t> dims{2, 2, 2}, whole_dims{2, 2, 2};
      dims[static_cast<std::size_t>(axis)] = rows;
      whole_dims[static_cast<std::size_t>(axis)] = extent;
      const Tensor slice = Tensor::full(DType::kI64, Shape(dims), -1);
      const Copies copies({slice, slice, slice},
                          {.copies = CopyRule::kSlices, .slice_axis = axis, .slice_extent = extent});
      ASSERT_TRUE(copies.get().has_value());
      EXPECT_EQ(copies.get().spec(), (TensorSpec{DType::kI64, Shape(whole_dims)}));
      Tensor value = Tensor::zeros(DType::kI64, Shape(whole_dims));
      std::iota(value.data<std::int64_t>().begin(), value.data<std::int64_t>().end(), 1);
      copies.get().write(value);
      EXPECT_TRUE(copies.read().bit_equal(value)) << "axis " << axis << ", " << extent;
      std::int64_t kept = 0, all = 0;
      for (const auto& part : copies.parts()) {
        for (const std::int64_t element : part) kept += element == 0 ? 0 : 1;
        all += static_cast<std::int64_t>(part.size());
      }
      EXPECT_EQ(kept, value.num_elements()) << "the rest is zero";
      EXPECT_GE(all, kept);
    }
  }
}

TEST(LogicalVariable, SaysWhyThereIsNoValue) {
  const auto why = [](const Tensor& value, CopyRule rule, std::int64_t extent = 0) {
    return Copies({value, value}, {.copies = rule, .slice_extent = extent}).get().has_value().reason();
  };
  EXPECT_THAT(why(ints({1}), CopyRule::kOwn), HasSubstr("copies() gives each"));
  EXPECT_THAT(why(ints({1}), CopyRule::kMean), HasSubstr("no integer"));
  EXPECT_THAT(why(Tensor::full(DType::kBool, {1}, 1), CopyRule::kSum), HasSubstr("truth values"));
  EXPECT_THAT(why(ints({1}), CopyRule::kSlices, 3), HasSubstr("do not make up the 3 elements"));
  EXPECT_TRUE(Copies({ints({1})}, {.copies = CopyRule::kOwn}).get().has_value());
}

TEST(VariableRole, AndDeclarationsSayTheSame) {
  using enum Aggregation;
  for (const Aggregation aggregation : {kNone, kSum, kMean, kOnlyFirstReplica, kSlices}) {
    VariableDecl decl{.name = "v", .spec = {DType::kF32, {2, 3}}, .initial = {}};
    decl.synchronization = Synchronization::kOnRead;
    decl.aggregation = aggregation;
    if (aggregation == kSlices) decl.slice_axis = 1, decl.slice_extent = 5;
    VariableDecl other{.name = "v", .spec = decl.spec, .initial = {}};
    declare_as(role_of(decl), other);
    EXPECT_EQ(other.synchronization, decl.synchronization);
    EXPECT_EQ(other.aggregation, aggregation);
    EXPECT_EQ(other.slice_axis, decl.slice_axis);
    EXPECT_EQ(other.slice_extent, decl.slice_extent);
  }
  VariableDecl kept{.name = "v", .spec = {DType::kF32, {}}, .initial = {}};
  kept.aggregation = kSum;
  declare_as({}, kept);
  EXPECT_EQ(kept.aggregation, kSum);
  EXPECT_EQ(kept.synchronization, Synchronization::kAuto);
}

}  // namespace
}  // namespace lockstep
