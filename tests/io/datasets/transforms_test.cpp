// Tests: io/datasets/any_dataset.cpp, io/datasets/batch.cpp, io/datasets/cache.cpp, io/datasets/cuts.cpp, io/datasets/dataset.cpp,
//        io/datasets/element.cpp, io/datasets/generator.cpp, io/datasets/interleave.cpp, io/datasets/joins.cpp,
//        io/datasets/map.cpp, io/datasets/shuffle.cpp, io/datasets/slices.cpp, io/datasets/window.cpp
// Each operation: what it gives, what its spec says beforehand, what it refuses.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/io/datasets/dataset.h"
#include "support/dataset_test.h"

namespace lockstep {
namespace {

using testing::all_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::numbers_of;
using testing::refusal_of;
using ::testing::UnorderedElementsAreArray;

std::vector<std::int64_t> counting(std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(end - begin));
  std::iota(numbers.begin(), numbers.end(), begin);
  return numbers;
}

AnyDataset plus(const AnyDataset& dataset, std::int64_t summand) {
  return dataset.map(
      [summand](const Element& element) {
        return Tensor::scalar(static_cast<std::int64_t>(element.tensor().item()) + summand);
      },
      ElementSpec(TensorSpec{DType::kI64, {}}));
}

TEST(Element, NestsKeepTheirPartsAndSayWhatIsMissing) {
  const Element nest =
      Element::dict({{"y", Tensor::scalar(1.F)}, {"x", Element::tuple({"text", Strings{"a", "b"}})}});
  EXPECT_EQ(str(spec_of(nest)), "{x: (string, strings), y: f32[]}");
  EXPECT_EQ(nest["x"][0].string(), "text");
  EXPECT_EQ(num_bytes(nest), 4U + 4U + 2U);
  EXPECT_THAT(refusal_of([&] { static_cast<void>(nest["z"]); }), HasSubstr("no part 'z'; there is 'x', 'y'"));
  EXPECT_THAT(refusal_of([&] { static_cast<void>(nest["x"].tensor()); }),
              HasSubstr("expected a tensor, this is a tuple"));
  EXPECT_THAT(refusal_of([&] {
                static_cast<void>(Element::dict({{"a", "1"}, {"a", "2"}}));
              }),
              HasSubstr("'a' comes twice"));
  EXPECT_TRUE(bit_equal(nest, nest));
  EXPECT_FALSE(bit_equal(nest, Element("text")));
}

TEST(Element, SpecsAdmitAndJoin) {
  const ElementSpec rows(TensorSpec{DType::kF32, {kUnknown, 2}});
  EXPECT_TRUE(admits(rows, Tensor::zeros({3, 2})));
  EXPECT_FALSE(admits(rows, Tensor::zeros({3, 3})));
  EXPECT_FALSE(admits(rows, Tensor::zeros({2})));
  EXPECT_FALSE(admits(rows, Element("no tensor")));
  EXPECT_EQ(str(join_specs(spec_of(Tensor::zeros({3, 2})), spec_of(Tensor::zeros({4, 2})))), "f32[?,2]");
  EXPECT_EQ(str(join_specs(spec_of(Tensor::zeros({3, 2})), spec_of(Tensor::zeros({4})))), "tensor");
  EXPECT_THAT(refusal_of([] { static_cast<void>(join_specs(spec_of("a"), spec_of(Tensor::zeros({4})))); }),
              HasSubstr("elements of string and of f32[4] do not fit together"));
}

TEST(DatasetSources, RangeCountsUpAndDown) {
  EXPECT_THAT(numbers_of(datasets::range(4)), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(numbers_of(datasets::range(5, 0, -2)), ElementsAre(5, 3, 1));
  EXPECT_THAT(numbers_of(datasets::range(3, 3)), IsEmpty());
  EXPECT_EQ(str(datasets::range(4).element_spec()), "i64[]");
  EXPECT_THAT(refusal_of([] { datasets::range(0, 4, 0); }),
              AllOf(HasSubstr("step is 0"), HasSubstr("transforms_test.cpp")));
}

TEST(DatasetSources, SlicesShareTheMemoryOfTheirTensors) {
  const Tensor x = Tensor::from<float>({3, 2}, {0, 1, 2, 3, 4, 5});
  const Tensor y = Tensor::from<std::int64_t>({3}, {7, 8, 9});
  std::int64_t rows = 0;
  for (auto [image, label] : datasets::from_slices(x, y)) {
    EXPECT_TRUE(image.shares_memory_with(x));
    EXPECT_EQ(image.shape(), Shape({2}));
    EXPECT_EQ(label.item(), 7 + static_cast<double>(rows++));
  }
  EXPECT_EQ(rows, 3);
  EXPECT_THAT(refusal_of([&] { datasets::from_slices(x, Tensor::zeros({4})); }),
              HasSubstr("4 rows, another one 3"));
}

TEST(DatasetSources, StringsAreElementsAndBatchToLists) {
  const auto words = datasets::from_slices(Strings{"a", "b", "c"});
  std::vector<Strings> batches;
  for (Strings batch : words.batch(2)) batches.push_back(batch);
  EXPECT_THAT(batches, ElementsAre(Strings{"a", "b"}, Strings{"c"}));
  EXPECT_EQ(str(words.batch(2).element_spec()), "strings");
  EXPECT_THAT(refusal_of([&] { words.batch(2).batch(2); }), HasSubstr("lists are not batched"));
}

TEST(DatasetSources, GeneratorsRestartWithEachPass) {
  const AnyDataset three = datasets::generator_of(ElementSpec(TensorSpec{DType::kI64, {}}), [] {
    return [n = std::int64_t{0}]() mutable -> std::optional<Element> {
      if (n == 3) return std::nullopt;
      return Tensor::scalar(n++);
    };
  });
  EXPECT_THAT(numbers_of(three.repeat(2)), ElementsAre(0, 1, 2, 0, 1, 2));
  const AnyDataset wrong = datasets::generator_of(ElementSpec(TensorSpec{DType::kI64, {}}), [] {
    return []() -> std::optional<Element> { return Tensor::scalar(1.F); };
  });
  EXPECT_THAT(refusal_of([&] { all_of(wrong); }),
              AllOf(HasSubstr("element 0 does not fit: expected i64[], got f32[]"),
                    HasSubstr("transforms_test.cpp")));
}

TEST(DatasetTransforms, CutsAndPasses) {
  const AnyDataset ten = datasets::range(10);
  EXPECT_THAT(numbers_of(ten.take(3)), ElementsAre(0, 1, 2));
  EXPECT_THAT(numbers_of(ten.skip(7)), ElementsAre(7, 8, 9));
  EXPECT_THAT(numbers_of(ten.skip(12)), IsEmpty());
  EXPECT_THAT(numbers_of(ten.shard(3, 1)), ElementsAre(1, 4, 7));
  EXPECT_THAT(numbers_of(ten.skip(8).repeat(2)), ElementsAre(8, 9, 8, 9));
  EXPECT_THAT(numbers_of(ten.skip(8).repeat().take(5)), ElementsAre(8, 9, 8, 9, 8));
  EXPECT_THAT(numbers_of(ten.take(0).repeat()), IsEmpty()) << "does not look for an element for ever";
  EXPECT_THAT(numbers_of(ten.filter([](const Element& e) { return e.tensor().item() > 7; })),
              ElementsAre(8, 9));
  EXPECT_THAT(numbers_of(ten.take(1).concatenate(ten.skip(9))), ElementsAre(0, 9));
  EXPECT_THAT(refusal_of([&] { ten.shard(2, 2); }), HasSubstr("index 2 of 2 shards"));
}

TEST(DatasetTransforms, ShardsOfRowsAndOfElementsAreTheSame) {
  const AnyDataset rows = datasets::range(20);
  const AnyDataset elements = plus(rows, 0);
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(numbers_of(rows.skip(2).shard(3, i).take(5).batch(2)),
              numbers_of(elements.skip(2).shard(3, i).take(5).batch(2)));
  }
}

TEST(DatasetTransforms, ShufflesOfRowsAndOfElementsAreTheSame) {
  for (const std::int64_t buffer : {1, 2, 7, 19, 20, 50}) {
    const ShuffleOptions options{.seed = 5};
    const AnyDataset rows = datasets::range(20).shuffle(buffer, options).repeat(3).batch(4);
    const AnyDataset elements = plus(datasets::range(20), 0).shuffle(buffer, options).repeat(3).batch(4);
    const std::vector<std::int64_t> numbers = numbers_of(rows);
    EXPECT_EQ(numbers, numbers_of(elements)) << buffer;
    for (std::size_t epoch = 0; epoch < 3; ++epoch) {
      const auto begin = numbers.begin() + static_cast<std::ptrdiff_t>(20 * epoch);
      EXPECT_THAT(std::vector<std::int64_t>(begin, begin + 20), UnorderedElementsAreArray(counting(0, 20)));
    }
    if (buffer > 5) {
      EXPECT_FALSE(std::equal(numbers.begin(), numbers.begin() + 20, numbers.begin() + 20))
          << "another epoch";
    }
  }
  const auto once = datasets::range(20).shuffle(20, {.seed = 5, .reshuffle = false}).repeat(2);
  const auto numbers = numbers_of(once);
  EXPECT_TRUE(std::equal(numbers.begin(), numbers.begin() + 20, numbers.begin() + 20));
  EXPECT_NE(numbers_of(datasets::range(20).shuffle(20, {.seed = 6})),
            numbers_of(datasets::range(20).shuffle(20, {.seed = 5})));
  EXPECT_NE(numbers_of(datasets::range(20).shuffle(20)),
            numbers_of(datasets::range(20).shuffle(20), {.epoch = 1}));
}

TEST(DatasetTransforms, BatchesOfRowsAndOfElementsAreTheSame) {
  for (const bool drop : {false, true}) {
    for (const std::int64_t size : {1, 3, 10, 11}) {
      const auto rows = all_of(datasets::range(10).batch(size, {.drop_remainder = drop}));
      const auto elements = all_of(plus(datasets::range(10), 0).batch(size, {.drop_remainder = drop}));
      ASSERT_EQ(rows.size(), elements.size());
      for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_TRUE(bit_equal(rows[i], elements[i]));
    }
  }
  EXPECT_EQ(str(datasets::range(10).batch(4).element_spec()), "i64[?]");
  EXPECT_EQ(str(datasets::range(10).batch(4, {.drop_remainder = true}).element_spec()), "i64[4]");
  EXPECT_EQ(numbers_of(datasets::range(10).batch(4).unbatch()), counting(0, 10));
}

TEST(DatasetTransforms, ElementsThatDoNotFitABatchAreNamed) {
  const AnyDataset ragged = datasets::range(1, 6).map(
      [](const Element& element) {
        return Tensor::zeros({element.tensor().item() < 4 ? std::int64_t{2} : std::int64_t{3}});
      },
      ElementSpec(TensorSpec{DType::kF32, {kUnknown}}));
  EXPECT_THAT(refusal_of([&] { all_of(ragged.batch(5)); }),
              AllOf(HasSubstr("element 3"), HasSubstr("expected f32[2]"), HasSubstr("got f32[3]"),
                    HasSubstr("padded_batch")));
}

TEST(DatasetTransforms, PaddedBatchesFillUp) {
  const AnyDataset growing = datasets::range(1, 4).map(
      [](const Element& element) {
        const auto n = static_cast<std::int64_t>(element.tensor().item());
        return Tensor::full(DType::kI64, {n, 2}, static_cast<double>(n));
      },
      ElementSpec(TensorSpec{DType::kI64, {kUnknown, 2}}));
  const AnyDataset padded = growing.padded_batch(2, {.value = -1});
  EXPECT_EQ(str(padded.element_spec()), "i64[?,?,2]");
  const auto batches = all_of(padded);
  ASSERT_EQ(batches.size(), 2U);
  EXPECT_THAT(numbers_of(batches[0]), ElementsAre(1, 1, -1, -1, 2, 2, 2, 2));
  EXPECT_THAT(numbers_of(batches[1]), ElementsAre(3, 3, 3, 3, 3, 3));
  const AnyDataset fixed = growing.padded_batch(2, {.drop_remainder = true, .shapes = {Shape{4, 3}}});
  EXPECT_EQ(str(fixed.element_spec()), "i64[2,4,3]");
  EXPECT_EQ(all_of(fixed)[0].tensor().shape(), Shape({2, 4, 3}));
  EXPECT_THAT(numbers_of(all_of(fixed)[0]), ElementsAre(1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  //
                                                        2, 2, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(refusal_of([&] {
                all_of(growing.padded_batch(3, {.shapes = {Shape{2, 2}}}));
              }),
              HasSubstr("more than the shape [2,2]"));
}

TEST(DatasetTransforms, WindowsOverlap) {
  const AnyDataset seven = datasets::range(7);
  const auto windows = [&](std::int64_t size, WindowOptions options) {
    std::string text;
    for (const Element& window : all_of(seven.window(size, options))) {
      for (const std::int64_t number : numbers_of(window)) text += str(number);
      text += ' ';
    }
    return text;
  };
  EXPECT_EQ(windows(3, {.shift = 1}), "012 123 234 345 456 ");
  EXPECT_EQ(windows(3, {}), "012 345 ");
  EXPECT_EQ(windows(3, {.drop_remainder = false}), "012 345 6 ");
  EXPECT_EQ(windows(2, {.shift = 3, .stride = 2}), "02 35 ");
  EXPECT_EQ(windows(2, {.shift = 4}), "01 45 ");
}

TEST(DatasetTransforms, ZipEndsWithTheShortest) {
  const auto pairs = zip(datasets::range(5).as<Tensor>(), datasets::from_slices(Strings{"a", "b"}));
  std::vector<std::string> seen;
  for (auto [number, word] : pairs) seen.push_back(str(number.item(), word));
  EXPECT_THAT(seen, ElementsAre("0a", "1b"));
}

TEST(DatasetTransforms, FlatMapAndInterleave) {
  const ElementSpec number(TensorSpec{DType::kI64, {}});
  const DatasetFunction rows = [](const Element& element) {
    const auto n = static_cast<std::int64_t>(element.tensor().item());
    return datasets::range(10 * n, 10 * n + n);
  };
  EXPECT_THAT(numbers_of(datasets::range(4).flat_map(rows, number)), ElementsAre(10, 20, 21, 30, 31, 32));
  EXPECT_THAT(numbers_of(datasets::range(1, 4).interleave(rows, number, {.cycle = 2})),
              ElementsAre(10, 20, 30, 21, 31, 32));
  EXPECT_THAT(numbers_of(datasets::range(2, 4).interleave(rows, number, {.cycle = 2, .block = 2})),
              ElementsAre(20, 21, 30, 31, 32));
  const DatasetFunction wrong = [](const Element& /*element*/) { return datasets::from_elements({"text"}); };
  EXPECT_THAT(refusal_of([&] { all_of(datasets::range(4).flat_map(wrong, number)); }),
              AllOf(HasSubstr("element 0"), HasSubstr("string")));
}

TEST(DatasetTransforms, CacheAsksItsInputOnce) {
  int calls = 0;
  const AnyDataset counted = datasets::range(5).map(
      [&](Element element) {
        ++calls;
        return element;
      },
      ElementSpec(TensorSpec{DType::kI64, {}}));
  const AnyDataset cached = counted.shuffle(5).cache();
  const auto first = numbers_of(cached.repeat(2));
  EXPECT_EQ(calls, 5);
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + 5, first.begin() + 5));
  EXPECT_EQ(numbers_of(cached.repeat(2)), first);
  EXPECT_EQ(calls, 5) << "other iterators find it";
}

TEST(DatasetTransforms, MapsRunPrograms) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 2});
  b.result(x + x);
  const Program program = compile(b.finish(), Runtime({.threads = 1}));
  const AnyDataset doubled =
      datasets::from_slices(Tensor::from<float>({3, 2}, {0, 1, 2, 3, 4, 5})).untyped().batch(2).map(program);
  EXPECT_EQ(str(doubled.element_spec()), "f32[?,2]");
  EXPECT_TRUE(all_of(doubled)[1].tensor().bit_equal(Tensor::from<float>({1, 2}, {8, 10})));
  EXPECT_THAT(refusal_of([&] { datasets::range(3).map(program); }),
              HasSubstr("feed 0 is f32[?,2], and the elements are i64[]"));
}

TEST(DatasetTransforms, TypedMapsGiveStructuredBindings) {
  const auto pairs = datasets::range(6).as<Tensor>().map(
      [](Tensor n) { return std::tuple(n, Tensor::scalar(n.item() * 2)); });
  double sum = 0;
  for (auto [n, twice] : pairs.filter([](const Tensor&n, const Tensor& /*twice*/) { return n.item() > 2; }))
    sum += twice.item() - n.item();
  EXPECT_EQ(sum, 3 + 4 + 5);
  EXPECT_EQ(str(pairs.element_spec()), "(tensor, tensor)");
  const auto declared = datasets::range(3).as<Tensor>().map(
      [](const Tensor& n) { return Tensor::scalar(static_cast<float>(n.item())); },
      {.spec = ElementSpec(TensorSpec{DType::kF32, {}})});
  EXPECT_EQ(str(declared.batch(3).element_spec()), "f32[?]");
  EXPECT_THAT(refusal_of([] { datasets::range(3).as<std::string>(); }),
              HasSubstr("Dataset<std::string>: the elements of this dataset are i64[]"));
}

TEST(DatasetErrors, NameTheElementAndTheLine) {
  const AnyDataset failing = datasets::range(9).map(
      [](Element element) -> Element {
        if (element.tensor().item() == 6) throw std::runtime_error("six");
        return element;
      },
      ElementSpec(TensorSpec{DType::kI64, {}}));
  DatasetIterator iterator = failing.batch(4).iterator();
  EXPECT_EQ(numbers_of(*iterator.next()).size(), 4U);
  const std::string before = iterator.save();
  const std::string first = refusal_of([&] { iterator.next(); });
  EXPECT_THAT(first, AllOf(HasSubstr("map: element 6: six"), HasSubstr("transforms_test.cpp")));
  EXPECT_EQ(refusal_of([&] { iterator.next(); }), first) << "it stays";
  EXPECT_EQ(iterator.save().size(), before.size())
      << "the position after the last element that was handed out";
  iterator.restore(iterator.save());
  EXPECT_EQ(refusal_of([&] { iterator.next(); }), first) << "a restored iterator tries again";
}

TEST(DatasetTree, IsPrintedAndRebuiltOverOtherInputs) {
  const AnyDataset tree = datasets::range(10).shuffle(4, {.seed = 3}).batch(2).prefetch(7);
  EXPECT_THAT(tree.to_string(),
              AllOf(HasSubstr("prefetch(count=7): i64[?]"),
                    HasSubstr("\n    shuffle(buffer=4, seed=3, reshuffle=true)"),
                    HasSubstr("\n      range(begin=0, end=10, step=1)"), HasSubstr("transforms_test.cpp:")));
  EXPECT_THAT(tree.signature(), ::testing::Not(HasSubstr("count=7")));
  const AnyDataset& batch = tree.inputs()[0];
  EXPECT_EQ(batch.op(), "batch");
  const AnyDataset rebuilt =
      tree.with_inputs({batch.with_inputs({batch.inputs()[0].inputs()[0].shard(2, 1)})});
  EXPECT_THAT(numbers_of(rebuilt), ElementsAre(1, 3, 5, 7, 9));
  EXPECT_THAT(refusal_of([&] { tree.with_inputs({}); }), HasSubstr("prefetch has 1 input, got 0"));
}

TEST(DatasetIterator, GivesAnElementBack) {
  DatasetIterator iterator = datasets::range(40).iterator();
  for (std::int64_t i = 0; i < 40; ++i) {
    const std::string before = iterator.save();
    std::optional<Element> element = iterator.next();
    ASSERT_TRUE(element);
    iterator.give_back(*std::move(element));
    EXPECT_THAT(refusal_of([&] { iterator.give_back(Tensor::scalar(1.F)); }),
                HasSubstr("one element can be given back"));
    DatasetIterator other = datasets::range(40).iterator();
    other.restore(iterator.save());
    EXPECT_THAT(numbers_of(*other.next()), ElementsAre(i)) << "its position is before the element again";
    EXPECT_THAT(numbers_of(*iterator.next()), ElementsAre(i));
  }
  EXPECT_FALSE(iterator.next());
  EXPECT_FALSE(iterator.next());
}

TEST(DatasetIterator, RefusesStatesOfOtherTreesAndDamagedOnes) {
  const AnyDataset tree = datasets::range(10).shuffle(4).batch(2);
  DatasetIterator iterator = tree.iterator();
  iterator.next();
  const std::string state = iterator.save();
  DatasetIterator other = datasets::range(10).shuffle(4).batch(3).iterator();
  EXPECT_THAT(refusal_of([&] { other.restore(state); }),
              AllOf(HasSubstr("FailedPrecondition"), HasSubstr("operation 1 was 'batch(size=2"),
                    HasSubstr("is 'batch(size=3")));
  EXPECT_EQ(numbers_of(*other.next()).size(), 3U) << "it is as it was";
  DatasetIterator same = datasets::range(10).shuffle(4).batch(2).with_options({.threads = 3}).iterator();
  same.restore(state);
  for (std::size_t i = 0; i < state.size(); ++i) {
    std::string damaged = state;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x40);
    EXPECT_THAT(refusal_of([&] { iterator.restore(damaged); }), ::testing::Not(IsEmpty())) << i;
    EXPECT_THAT(refusal_of([&] { iterator.restore(state.substr(0, i)); }), HasSubstr("DataLoss")) << i;
  }
}

}  // namespace
}  // namespace lockstep
