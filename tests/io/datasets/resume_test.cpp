// Tests: io/datasets/ahead.cpp, io/datasets/dataset_iterator.cpp, io/datasets/input_arena.cpp, io/datasets/state_bytes.cpp
// Random pipelines stop at every position and go on, in another iterator with other threads: the elements are the same.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/io/datasets/dataset.h"
#include "support/dataset_test.h"

namespace lockstep {
namespace {

using testing::all_of;
using testing::numbers_of;
using testing::shown;

// What may differ between two runs without changing the elements.
struct Tuning {
  unsigned threads = 1;      // of the input
  unsigned map_threads = 1;  // of a map
  std::int64_t prefetch = 1;
  std::int64_t ahead = 0;
};

const ElementSpec kAnyNumbers = ElementSpec(LeafSpec::any_tensor());

Element with_sum(const Element& element, std::int64_t summand) {
  const Tensor tensor = element.tensor().clone();
  Tensor result = Tensor::empty(DType::kI64, tensor.shape());
  const auto from = tensor.data<std::int64_t>();
  std::transform(from.begin(), from.end(), result.data<std::int64_t>().begin(),
                 [&](std::int64_t x) { return x + summand; });
  return result;
}

std::int64_t first_of(const Element& element) {
  const auto data = element.tensor().data<std::int64_t>();
  return data.empty() ? 0 : data[0];
}

// The same tree for the same seed, whatever the tuning. Elements are i64 tensors of rank `rank`.
class RandomPipeline {
 public:
  RandomPipeline(unsigned seed, Tuning tuning) : random_(seed), tuning_(tuning) {}

  AnyDataset make() {
    AnyDataset dataset = source();
    const int operations = 2 + pick(5);
    for (int i = 0; i < operations; ++i) dataset = operation(dataset);
    return dataset.take(60).with_options({.threads = tuning_.threads});
  }

 private:
  int pick(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  AnyDataset source() {
    rank_ = 0;
    const std::int64_t count = 3 + pick(20);
    switch (pick(4)) {
      case 0: return datasets::range(count);
      case 1: {
        Tensor rows = Tensor::empty(DType::kI64, {count, 2});
        const auto data = rows.data<std::int64_t>();
        std::iota(data.begin(), data.end(), 0);
        rank_ = 1;
        return datasets::from_slices(Element(rows));
      }
      case 2:
        return datasets::generator_of(kAnyNumbers, [count] {
          return [n = std::int64_t{0}, count]() mutable -> std::optional<Element> {
            if (n == count) return std::nullopt;
            return Tensor::scalar(n++);
          };
        });
      default: {
        std::vector<Element> elements;
        for (std::int64_t i = 0; i < count; ++i) elements.emplace_back(Tensor::scalar(100 + i));
        return datasets::from_elements(std::move(elements));
      }
    }
  }
  AnyDataset operation(const AnyDataset& input) {
    const int a = pick(7), b = pick(7);
    const std::size_t rank = rank_;
    switch (pick(17)) {
      case 0:
        return input.map([a](const Element& e) { return with_sum(e, a); }, kAnyNumbers, tuning_.map_threads);
      case 1: return input.filter([a](const Element& e) { return first_of(e) % 5 != a; });
      case 2: return input.take(a * 3);
      case 3: return input.skip(a);
      case 4: return input.shard(1 + a % 3, b % (1 + a % 3));
      case 5: return input.repeat(1 + a % 3);
      case 6: return input.repeat().take(50);
      case 7: return input.shuffle(1 + a * 3, {.seed = static_cast<std::uint64_t>(b)});
      case 8: ++rank_; return input.padded_batch(1 + a % 4, {.drop_remainder = b % 2 == 0});
      case 9:
        if (rank == 0) {
          ++rank_;
          return input.window(1 + a % 3,
                              {.shift = 1 + b % 4, .stride = 1 + a % 2, .drop_remainder = b % 2 == 0});
        }
        --rank_;
        return input.unbatch();
      case 10: return input.cache();
      case 11: return input.prefetch(tuning_.prefetch);
      case 12:
        return input.concatenate(
            input.map([a](const Element& e) { return with_sum(e, 1000 + a); }, kAnyNumbers));
      case 13:
        return zip({input, input.skip(a)})
            .map([](const Element& e) { return first_of(e[1]) % 2 == 0 ? e[0] : e[1]; }, kAnyNumbers,
                 tuning_.map_threads);
      case 14:
        return input.interleave(
            [a](const Element& e) {
              return datasets::from_elements({with_sum(e, 1), with_sum(e, 2), with_sum(e, 3)})
                  .shuffle(1 + a)
                  .take(first_of(e) % 4);
            },
            kAnyNumbers, {.cycle = 1 + a % 4, .block = 1 + b % 3, .ahead = tuning_.ahead});
      case 15:
        return input.flat_map(
            [](const Element& e) {
              return datasets::from_elements({e, with_sum(e, 7)});
            },
            kAnyNumbers);
      default:
        if (rank == 0) {
          ++rank_;
          return input.batch(1 + a % 4);
        }
        return input.shuffle(2 + b);
    }
  }

  std::mt19937 random_;
  const Tuning tuning_;
  std::size_t rank_ = 0;
};

AnyDataset random_pipeline(unsigned seed, Tuning tuning) { return RandomPipeline(seed, tuning).make(); }

void expect_equal_from(const std::vector<Element>& all, std::size_t begin, DatasetIterator& iterator,
                       const std::string& what) {
  for (std::size_t i = begin;; ++i) {
    const std::optional<Element> element = iterator.next();
    ASSERT_EQ(element.has_value(), i < all.size()) << what << " at element " << i << " of " << all.size();
    if (!element) return;
    ASSERT_TRUE(bit_equal(*element, all[i]))
        << what << " at element " << i << ": " << *element << " for " << all[i];
  }
}

// Stops at every position, and goes on with the other tuning.
void expect_resumes_everywhere(unsigned seed, const Tuning& before, const Tuning& after) {
  const AnyDataset plain = random_pipeline(seed, {});
  const std::vector<Element> all = all_of(plain);
  const AnyDataset first = random_pipeline(seed, before);
  const AnyDataset second = random_pipeline(seed, after);
  ASSERT_EQ(first.signature(), second.signature());
  DatasetIterator iterator = first.iterator();
  for (std::size_t i = 0; i <= all.size(); ++i) {
    const std::string what = str("seed ", seed, " stopped after ", i, "\n", first.to_string());
    DatasetIterator resumed = second.iterator();
    resumed.restore(iterator.save());
    expect_equal_from(all, i, resumed, what);
    if (::testing::Test::HasFatalFailure()) return;
    std::optional<Element> element = iterator.next();
    ASSERT_EQ(element.has_value(), i < all.size()) << what;
    if (!element) break;
    ASSERT_TRUE(bit_equal(*element, all[i])) << what << *element << " for " << all[i];
    if (i % 3 == 0) {  // a step that failed
      iterator.give_back(*std::move(element));
      DatasetIterator again = second.iterator();
      again.restore(iterator.save());
      expect_equal_from(all, i, again, what + " given back");
      if (::testing::Test::HasFatalFailure()) return;
      ASSERT_TRUE(iterator.next());
    }
  }
}

TEST(DatasetResume, RandomPipelinesGoOnWhereTheyStopped) {
  for (unsigned seed = 0; seed < 250; ++seed) {
    expect_resumes_everywhere(seed, {}, {});
    if (HasFatalFailure()) return;
  }
}

TEST(DatasetResume, OnOtherThreadsAndWithOtherPrefetch) {
  for (unsigned seed = 1000; seed < 1060; ++seed) {
    expect_resumes_everywhere(seed, {.threads = 3, .map_threads = 2, .prefetch = 5, .ahead = 3},
                              {.threads = 1, .map_threads = 0, .prefetch = 1, .ahead = 0});
    if (HasFatalFailure()) return;
    expect_resumes_everywhere(seed, {}, {.threads = 2, .map_threads = 3, .prefetch = 2, .ahead = 2});
    if (HasFatalFailure()) return;
  }
}

TEST(DatasetResume, AStateOfARestoredIteratorIsAsGood) {
  for (unsigned seed = 2000; seed < 2030; ++seed) {
    const AnyDataset dataset =
        random_pipeline(seed, {.threads = 2, .map_threads = 2, .prefetch = 3, .ahead = 1});
    const std::vector<Element> all = all_of(dataset);
    std::string state = dataset.iterator().save();
    for (const Element& expected : all) {  // one element, then another process
      DatasetIterator iterator = dataset.iterator();
      iterator.restore(state);
      const std::optional<Element> element = iterator.next();
      ASSERT_TRUE(element && bit_equal(*element, expected)) << seed << "\n" << dataset.to_string();
      state = iterator.save();
    }
  }
}

TEST(DatasetResume, EachElementComesOnceAnEpoch) {
  std::mt19937 random(7);
  const auto pick = [&](unsigned below) { return static_cast<std::int64_t>(random() % below); };
  for (int round = 0; round < 100; ++round) {
    const std::int64_t count = 1 + pick(40), shards = 1 + pick(4), epochs = 1 + pick(3),
                       buffer = 1 + pick(50), batch = 1 + pick(9);
    std::vector<std::int64_t> seen;
    for (std::int64_t shard = 0; shard < shards; ++shard) {
      const bool shuffle_first = round % 2 == 0;
      AnyDataset dataset = datasets::range(count);
      if (shuffle_first) dataset = dataset.shuffle(buffer, {.seed = 9});
      dataset = dataset.shard(shards, shard);
      if (!shuffle_first) dataset = dataset.shuffle(buffer, {.seed = 9});
      for (const std::int64_t number : numbers_of(dataset.repeat(epochs).batch(batch).prefetch(2)))
        seen.push_back(number);
    }
    std::vector<std::int64_t> times(static_cast<std::size_t>(count), 0);
    for (const std::int64_t number : seen) ++times[static_cast<std::size_t>(number)];
    EXPECT_THAT(times, ::testing::Each(epochs)) << count << " in " << shards << " shards";
  }
}

}  // namespace
}  // namespace lockstep
