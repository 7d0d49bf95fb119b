// Tests: graph/ops/moving.cpp, graph/ops/shapes.cpp, graph/ops/slicing.cpp
// The value of each op that moves elements or changes shapes against a naive computation.
#include <cmath>
#include <cstring>
#include <functional>

#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "support/op_test.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using testing::caught;
using ::testing::ElementsAre;
using testing::evaluate;
using testing::floats;
using ::testing::HasSubstr;
using Ints = std::vector<std::int64_t>;

// 0, 1, 2, ... as far as the dtype can hold them.
Tensor counting(const Shape& shape, DType dtype = DType::kF32) {
  Tensor tensor = Tensor::empty(dtype, shape);
  visit_dtype(dtype, [&]<class T>(T) {
    std::int64_t next = 0;
    for (T& element : tensor.data<T>()) {
      if constexpr (std::is_same_v<T, bool>) {
        element = next++ % 3 == 0;
      } else if constexpr (std::is_same_v<T, F16> || std::is_same_v<T, BF16>) {
        element = T(static_cast<float>(next++ % 256));
      } else {
        element = static_cast<T>(next++ % 251);
      }
    }
  });
  return tensor;
}

// Element by element: out[index] = in[from(index)] for tensors of any dtype.
template <class From>
Tensor moved(const Tensor& in, const Shape& shape, From&& from) {
  Tensor out = Tensor::empty(in.dtype(), shape);
  const std::size_t size = size_of(in.dtype());
  Ints index(shape.rank(), 0);
  for (std::int64_t at = 0; at < shape.num_elements(); ++at) {
    const Ints source = from(index);
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < source.size(); ++i) offset = offset * in.shape()[i] + source[i];
    std::memcpy(static_cast<char*>(out.raw()) + static_cast<std::size_t>(at) * size,
                static_cast<const char*>(in.raw()) + static_cast<std::size_t>(offset) * size, size);
    for (std::size_t i = shape.rank(); i-- > 0;) {
      if (++index[i] < shape[i]) break;
      index[i] = 0;
    }
  }
  return out;
}

// One op on a feed whose shape the graph knows, or does not.
Tensor apply(const Tensor& feed, bool known, const std::function<Value(GraphBuilder&, const Value&)>& f) {
  GraphBuilder b;
  const Ints any(feed.shape().rank(), kUnknown);
  const Value x =
      b.placeholder("x", feed.dtype(), known ? feed.shape() : Shape(std::span<const std::int64_t>(any)));
  const Value y = f(b, x);
  b.result(y);
  const Shape stated = y.shape();
  Tensor result = evaluate(b, {feed})[0];
  EXPECT_TRUE(stated.admits(result.shape())) << stated << " " << result.shape();
  return result;
}

void expect_value(const Tensor& feed, const Tensor& expected,
                  const std::function<Value(GraphBuilder&, const Value&)>& f) {
  for (const bool known : {true, false}) {
    const Tensor result = apply(feed, known, f);
    EXPECT_TRUE(result.bit_equal(expected))
        << result << " is not " << expected << (known ? "" : ", shape unknown");
  }
}

std::string refusal(const std::function<void(GraphBuilder&)>& f) {
  return caught([&] {
           GraphBuilder b;
           f(b);
         })
      .what;
}

// --- shapes

TEST(ShapeOf, GivesTheFedShape) {
  for (const bool known : {true, false}) {
    const Tensor shape =
        apply(counting({5, 3}), known, [](GraphBuilder&, const Value& x) { return shape_of(x); });
    EXPECT_THAT(shape.data<std::int64_t>(), ElementsAre(5, 3));
  }
  EXPECT_EQ(apply(counting({}), true, [](GraphBuilder&, const Value& x) { return shape_of(x); }).shape(),
            (Shape{0}));
}

TEST(Reshape, KeepsTheElements) {
  for (const DType dtype : kAllDTypes) {
    const Tensor feed = counting({2, 6}, dtype);
    expect_value(feed, feed.reshape({3, 2, 2}), [](GraphBuilder&, const Value& x) {
      return reshape(x, {-1, 2, 2});
    });
    expect_value(feed, feed,
                 [](GraphBuilder&, const Value& x) { return reshape(reshape(x, Shape{-1}), shape_of(x)); });
  }
  expect_value(counting({}), counting({1, 1}), [](GraphBuilder&, const Value& x) {
    return reshape(x, {1, 1});
  });
  expect_value(counting({0, 3}), counting({3, 0}), [](GraphBuilder&, const Value& x) {
    return reshape(x, {3, 0});
  });
  expect_value(counting({0, 3}), counting({0, 5}), [](GraphBuilder&, const Value& x) {
    return reshape(x, {-1, 5});
  });
}

TEST(Reshape, SaysWhatDoesNotFit) {
  const auto error = [](const Shape& from, const Shape& to) {
    return refusal([&](GraphBuilder& b) { reshape(b.placeholder("x", DType::kF32, from), to); });
  };
  EXPECT_THAT(error({2, 3}, {4}), HasSubstr("a value of shape [2,3] has 6 elements, which do not fill [4]"));
  EXPECT_THAT(error({2, 3}, {-1, 4}), HasSubstr("has 6 elements, which do not fill [?,4]"));
  EXPECT_THAT(error({2, 3}, {-1, -1}), HasSubstr("more than one dimension of the new shape is -1"));
  EXPECT_THAT(error({0, 3}, {-1, 0}), HasSubstr("-1 in [?,0] cannot be computed"));
  EXPECT_THAT(refusal([](GraphBuilder& b) { b.op1("reshape", {b.constant(1.F)}); }),
              HasSubstr("needs the attribute 'shape', or the shape as its last input"));
  EXPECT_THAT(refusal([](GraphBuilder& b) {
                const Value x = b.placeholder("x", DType::kF32, {2});
                reshape(x, b.constant(Tensor::from<std::int64_t>({1}, {-2})));
              }),
              HasSubstr("a dimension of the new shape is -2; it must be -1 (computed), 0 or more"));
  EXPECT_THAT(refusal([](GraphBuilder& b) {
                reshape(1.0, Shape{1});
                (void)b;
              }),
              HasSubstr("takes a Value here"));
}

TEST(ExpandDims, AddsAxesThatSqueezeTakesAway) {
  const Tensor feed = counting({2, 3});
  expect_value(feed, feed.reshape({1, 2, 3}),
               [](GraphBuilder&, const Value& x) { return expand_dims(x, 0); });
  expect_value(feed, feed.reshape({2, 3, 1}),
               [](GraphBuilder&, const Value& x) { return expand_dims(x, -1); });
  expect_value(feed, feed.reshape({2, 1, 3, 1}), [](GraphBuilder&, const Value& x) {
    return expand_dims(x, {-1, 1});
  });
  expect_value(counting({2, 1, 3, 1}), feed, [](GraphBuilder&, const Value& x) {
    return squeeze(x, {-1, 1});
  });
  EXPECT_TRUE(apply(counting({1, 3, 1}), true, [](GraphBuilder&, const Value& x) {
                return squeeze(x);
              }).bit_equal(counting({3})));
  EXPECT_THAT(refusal([](GraphBuilder& b) {
                squeeze(b.placeholder("x", DType::kF32, {2, 3}), {1});
              }),
              HasSubstr("axis 1 of [2,3] has extent 3, not 1"));
  EXPECT_THAT(refusal([](GraphBuilder& b) { squeeze(b.placeholder("x", DType::kF32, {kUnknown})); }),
              HasSubstr("which axes of [?] have extent 1 is not known yet; name them"));
  EXPECT_THAT(refusal([](GraphBuilder& b) {
                expand_dims(b.placeholder("x", DType::kF32, {2}), {0, 0});
              }),
              HasSubstr("axis 0 is named twice"));
  EXPECT_THAT(refusal([](GraphBuilder& b) { expand_dims(b.placeholder("x", DType::kF32, {2}), 2); }),
              HasSubstr("axis 2 is outside of a value of rank 2; axes go from -2 to 1"));
}

TEST(BroadcastTo, RepeatsAndSumToAddsUpAgain) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 1});
  const Value like = b.placeholder("like", DType::kF32, {2, kUnknown, 3});
  const Value y = broadcast_to(x, shape_of(like));
  b.result(y);
  b.result(sum_to(y, shape_of(x)));
  b.result(sum_to(y, Shape{}));
  const std::vector<Tensor> results = evaluate(b, {counting({2, 1}), counting({2, 2, 3})});
  EXPECT_THAT(floats(results[0]), ElementsAre(0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1));
  EXPECT_THAT(floats(results[1]), ElementsAre(0, 6));
  EXPECT_THAT(floats(results[2]), ElementsAre(6));
}

TEST(BroadcastTo, TakesEveryDType) {
  for (const DType dtype : kAllDTypes) {
    const Tensor feed = counting({3, 1}, dtype);
    expect_value(feed,
                 moved(feed, {2, 3, 4},
                       [](const Ints& i) {
                         return Ints{i[1], 0};
                       }),
                 [](GraphBuilder&, const Value& x) {
                   return broadcast_to(x, {2, 3, 4});
                 });
  }
  expect_value(counting({1}), Tensor::zeros({0}),
               [](GraphBuilder&, const Value& x) { return broadcast_to(x, Shape{0}); });
}

TEST(BroadcastTo, SaysWhatDoesNotFit) {
  EXPECT_THAT(refusal([](GraphBuilder& b) {
                broadcast_to(b.placeholder("x", DType::kF32, {2}), {2, 3});
              }),
              HasSubstr("a value of shape [2] does not broadcast to [2,3]"));
  EXPECT_THAT(refusal([](GraphBuilder& b) {
                sum_to(b.placeholder("x", DType::kF32, {2, 3}), Shape{2});
              }),
              HasSubstr("a value of shape [2,3] does not sum to [2]"));
  EXPECT_THAT(refusal([](GraphBuilder& b) { sum_to(b.placeholder("x", DType::kBool, {2}), Shape{}); }),
              HasSubstr("has no meaning for bool"));
}

TEST(SumTo, AddsUpInTheOrderOfSum) {
  // Large enough for several shards, and for the tiles of a sum of everything.
  Tensor feed = Tensor::empty(DType::kF32, {130, 1100});
  float next = 1;
  for (float& element : feed.data<float>()) element = next = next * 1.37F - std::floor(next * 1.37F) + 0.1F;
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, kUnknown});
  b.result(sum_to(x, Shape{}));
  b.result(sum(x));
  b.result(sum_to(x, Shape{1100}));
  b.result(sum(x, {0}));
  b.result(sum_to(x, Shape{130, 1}));
  b.result(sum(x, {1}, true));
  const std::vector<Tensor> results = evaluate(b, {feed});
  for (std::size_t i = 0; i < 6; i += 2) EXPECT_TRUE(results[i].bit_equal(results[i + 1])) << i;
}

TEST(ZerosLike, FollowsTheFedShape) {
  expect_value(counting({2, 3}), Tensor::zeros({2, 3}),
               [](GraphBuilder&, const Value& x) { return zeros_like(x); });
  expect_value(counting({300}, DType::kBF16), Tensor::full(DType::kBF16, {300}, 1),
               [](GraphBuilder&, const Value& x) { return ones_like(x); });
}

// --- moving

TEST(Transpose, PermutesAxes) {
  const std::pair<Shape, Ints> cases[] = {{{2, 3}, {1, 0}},
                                          {{2, 3, 4}, {2, 0, 1}},
                                          {{2, 3, 4, 5}, {0, 2, 1, 3}},
                                          {{70, 90}, {1, 0}},
                                          {{0, 3}, {1, 0}},
                                          {{3}, {0}},
                                          {{2, 3, 4}, {0, -1, 1}},
                                          {{}, {}}};
  for (const auto& [shape, perm] : cases) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kI64, DType::kBool}) {
      const Tensor feed = counting(shape, dtype);
      Ints dims, positive;
      for (const std::int64_t axis : perm) {
        positive.push_back(axis < 0 ? axis + static_cast<std::int64_t>(shape.rank()) : axis);
        dims.push_back(shape.dim(axis));
      }
      const Tensor expected = moved(feed, Shape(std::span<const std::int64_t>(dims)), [&](const Ints& index) {
        Ints from(index.size());
        for (std::size_t i = 0; i < index.size(); ++i) from[static_cast<std::size_t>(positive[i])] = index[i];
        return from;
      });
      expect_value(feed, expected,
                   [&order = perm](GraphBuilder&, const Value& x) { return transpose(x, order); });
    }
  }
  const Tensor feed = counting({2, 3, 4});
  expect_value(feed,
               moved(feed, {4, 3, 2},
                     [](const Ints& i) {
                       return Ints{i[2], i[1], i[0]};
                     }),
               [](GraphBuilder&, const Value& x) { return transpose(x); });
}

TEST(Transpose, OfManyTilesIsCutIntoShards) {
  const Tensor feed = counting({700, 513});
  expect_value(feed,
               moved(feed, {513, 700},
                     [](const Ints& i) {
                       return Ints{i[1], i[0]};
                     }),
               [](GraphBuilder&, const Value& x) { return transpose(x); });
}

TEST(Transpose, RefusesWhatIsNoPermutation) {
  const auto error = [](Ints perm) {
    return refusal([&](GraphBuilder& b) { transpose(b.placeholder("x", DType::kF32, {2, 3}), perm); });
  };
  EXPECT_THAT(error({0}), HasSubstr("perm names 1 axis of a value of rank 2; it must name each once"));
  EXPECT_THAT(error({0, 0}), HasSubstr("axis 0 is named twice"));
  EXPECT_THAT(error({0, 2}), HasSubstr("axis 2 is outside of a value of rank 2"));
}

TEST(Flip, ReversesAxes) {
  const Tensor feed = counting({2, 3, 4}, DType::kI32);
  expect_value(feed,
               moved(feed, {2, 3, 4},
                     [](const Ints& i) {
                       return Ints{1 - i[0], i[1], 3 - i[2]};
                     }),
               [](GraphBuilder&, const Value& x) {
                 return flip(x, {0, -1});
               });
  expect_value(feed,
               moved(feed, {2, 3, 4},
                     [](const Ints& i) {
                       return Ints{1 - i[0], 2 - i[1], 3 - i[2]};
                     }),
               [](GraphBuilder&, const Value& x) { return flip(x); });
  expect_value(counting({0}), counting({0}), [](GraphBuilder&, const Value& x) { return flip(x); });
}

TEST(Tile, RepeatsTheWhole) {
  const Tensor feed = counting({2, 3}, DType::kU8);
  const Tensor expected = moved(feed, {4, 9}, [](const Ints& i) { return Ints{i[0] % 2, i[1] % 3}; });
  expect_value(feed, expected, [](GraphBuilder&, const Value& x) { return tile(x, Ints{2, 3}); });
  expect_value(feed, expected, [](GraphBuilder&, const Value& x) { return tile(x, shape_of(x)); });
  expect_value(feed, counting({0, 3}, DType::kU8), [](GraphBuilder&, const Value& x) {
    return tile(x, Ints{0, 1});
  });
  EXPECT_THAT(refusal([](GraphBuilder& b) {
                tile(b.placeholder("x", DType::kF32, {2}), Ints{1, 2});
              }),
              HasSubstr("needs a number of repeats for each axis of a value of rank 1, got 2"));
  EXPECT_THAT(refusal([](GraphBuilder& b) { tile(b.placeholder("x", DType::kF32, {2}), Ints{-1}); }),
              HasSubstr("an axis is to be repeated -1 times"));
}

TEST(Concat, JoinsAlongAnAxis) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2, kUnknown});
  const Value y = b.placeholder("y", DType::kF32, {kUnknown, 1});
  const Value joined = concat({x, y}, -1);
  EXPECT_EQ(joined.shape(), (Shape{2, kUnknown}));
  b.result(joined);
  b.result(stack({x, x}, 1));
  const std::vector<Tensor> results =
      evaluate(b, {counting({2, 2}), Tensor::from<float>({2, 1}, {8.F, 9.F})});
  EXPECT_EQ(results[0].shape(), (Shape{2, 3}));
  EXPECT_THAT(floats(results[0]), ElementsAre(0, 1, 8, 2, 3, 9));
  EXPECT_EQ(results[1].shape(), (Shape{2, 2, 2}));
  EXPECT_THAT(floats(results[1]), ElementsAre(0, 1, 0, 1, 2, 3, 2, 3));
}

TEST(Stack, SaysWhatDoesNotFit) {
  const auto error = [](DType dtype, const Shape& shape, std::int64_t axis) {
    return refusal([&](GraphBuilder& b) {
      stack({b.placeholder("x", DType::kF32, {3}), b.placeholder("y", dtype, shape)}, axis);
    });
  };
  EXPECT_THAT(error(DType::kF32, {2}, 0),
              HasSubstr("stack: values must have one dtype and shape, got 'x' f32[3] and 'y' f32[2]"));
  EXPECT_THAT(error(DType::kF64, {3}, 0), HasSubstr("got 'x' f32[3] and 'y' f64[3]"));
  EXPECT_THAT(error(DType::kF32, {3, 1}, 0), HasSubstr("got 'x' f32[3] and 'y' f32[3,1]"));
  for (const std::int64_t axis : {2, -3})
    EXPECT_THAT(error(DType::kF32, {3}, axis),
                HasSubstr("stack: the new axis of f32[3] must lie between -2 and 1"));
}

TEST(Concat, SaysWhatDoesNotFit) {
  EXPECT_THAT(refusal([](GraphBuilder& b) {
                concat({b.placeholder("x", DType::kF32, {2, 3}), b.placeholder("y", DType::kF32, {3, 3})}, 1);
              }),
              HasSubstr("shapes may differ along axis 1 alone, got [2,3] and [3,3]"));
  EXPECT_THAT(refusal([](GraphBuilder&) { concat({}, 0); }),
              HasSubstr("concat: takes at least 1 value, got none"));
  EXPECT_THAT(refusal([](GraphBuilder& b) { concat({b.constant(1.F)}, 0); }),
              HasSubstr("axis 0 is outside of a value of rank 0"));
}

TEST(Split, CutsAndConcatJoinsAgain) {
  for (const DType dtype : kAllDTypes) {
    const Tensor feed = counting({3, 6, 2}, dtype);
    expect_value(feed, feed, [](GraphBuilder&, const Value& x) {
      return concat(split(x, Ints{1, -1, 2}, 1), 1);
    });
    expect_value(feed, feed, [](GraphBuilder&, const Value& x) { return concat(split_evenly(x, 3, -2), 1); });
    expect_value(feed,
                 moved(feed, {3, 3, 2},
                       [](const Ints& i) {
                         return Ints{i[0], i[1] + 1, i[2]};
                       }),
                 [](GraphBuilder& b, const Value& x) {
                   return split(x, b.constant(Tensor::from<std::int64_t>({3}, {1, 3, 2})), 1)[1];
                 });
  }
}

TEST(Split, SaysWhatDoesNotFit) {
  const auto error = [](const std::function<void(const Value&)>& f) {
    return refusal([&](GraphBuilder& b) { f(b.placeholder("x", DType::kF32, {4, 2})); });
  };
  EXPECT_THAT(error([](const Value& x) {
                split(x, Ints{1, 2}, 0);
              }),
              HasSubstr("pieces of 3 in all do not fit axis 0 of [4,2]"));
  EXPECT_THAT(error([](const Value& x) {
                split(x, Ints{5, -1}, 0);
              }),
              HasSubstr("pieces of 5 in all do not fit"));
  EXPECT_THAT(error([](const Value& x) { split(x, Ints{-1, -1}, 0); }), HasSubstr("more than one piece"));
  EXPECT_THAT(error([](const Value& x) { split_evenly(x, 3, 0); }),
              HasSubstr("axis 0 of [4,2] does not fall into 3 pieces of one extent"));
  for (const std::int64_t parts : {0, -3}) {
    EXPECT_THAT(error([parts](const Value& x) { split_evenly(x, parts, 0); }),
                HasSubstr(str("cannot cut into ", parts, " pieces; `parts` must be 1 or more")));
  }
  EXPECT_THAT(error([](const Value& x) { split(x, Ints{}, 0); }), HasSubstr("cannot cut into no pieces"));
}

// --- slices

// What Python's range(begin, end, step) over an axis picks; kOpen for an absent bound.
Ints python_range(std::int64_t extent, std::int64_t begin, std::int64_t end, std::int64_t step) {
  const auto bound = [&](std::int64_t index, std::int64_t absent) {
    if (index == kOpen) return absent;
    if (index < 0) index += extent;
    return step > 0 ? std::clamp<std::int64_t>(index, 0, extent)
                    : std::clamp<std::int64_t>(index, -1, extent - 1);
  };
  Ints picked;
  const std::int64_t last = bound(end, step > 0 ? extent : -1);
  for (std::int64_t i = bound(begin, step > 0 ? 0 : extent - 1); step > 0 ? i < last : i > last; i += step)
    picked.push_back(i);
  return picked;
}

TEST(Slice, ReadsBoundsAsNumPyDoes) {
  const Tensor feed = counting({5, 7});
  const std::int64_t bounds[] = {kOpen, 0, 1, 4, 5, 9, -1, -3, -5, -9};
  for (const std::int64_t begin : bounds) {
    for (const std::int64_t end : bounds) {
      for (const std::int64_t step : {1, 2, 7, -1, -3}) {
        const Ints rows = python_range(5, begin, end, step);
        const Tensor expected = moved(feed, {static_cast<std::int64_t>(rows.size()), 7}, [&](const Ints& i) {
          return Ints{rows[static_cast<std::size_t>(i[0])], i[1]};
        });
        const auto f = [&](GraphBuilder&, const Value& x) { return slice(x, {begin}, {end}, {step}); };
        GraphBuilder b;
        const Value x = b.placeholder("x", DType::kF32, {5, 7});
        b.result(f(b, x));
        const Tensor result = Interpreter(b.finish()).run({feed})[0];
        EXPECT_TRUE(result.bit_equal(expected)) << begin << ":" << end << ":" << step << " " << result;
      }
    }
  }
}

TEST(Slice, CutsEveryDTypeAndAxis) {
  for (const DType dtype : kAllDTypes) {
    const Tensor feed = counting({4, 5, 6}, dtype);
    expect_value(feed,
                 moved(feed, {2, 5, 3},
                       [](const Ints& i) {
                         return Ints{i[0] + 1, 4 - i[1], 2 * i[2]};
                       }),
                 [](GraphBuilder&, const Value& x) {
                   return slice(x, {1, kOpen, 0}, {3, kOpen, 6}, {1, -1, 2});
                 });
    expect_value(feed,
                 moved(feed, {2, 5, 4},
                       [](const Ints& i) {
                         return Ints{i[0] + 1, i[1], i[2] + 2};
                       }),
                 [](GraphBuilder& b, const Value& x) {
                   const Value begin = b.constant(Tensor::from<std::int64_t>({3}, {1, 0, 2}));
                   return slice(x, begin, b.constant(Tensor::from<std::int64_t>({3}, {2, -1, -1})));
                 });
  }
}

TEST(Slice, SaysWhatDoesNotFit) {
  const auto error = [](const std::function<void(GraphBuilder&, const Value&)>& f) {
    return refusal([&](GraphBuilder& b) { f(b, b.placeholder("x", DType::kF32, {4, 2})); });
  };
  const auto ints = [](GraphBuilder& b, std::int64_t i, std::int64_t k) {
    return b.constant(Tensor::from<std::int64_t>({2}, {i, k}));
  };
  EXPECT_THAT(error([](GraphBuilder&, const Value& x) { slice(x, {0}, {1}, {0}); }),
              HasSubstr("a step is 0; it must be above or below 0"));
  EXPECT_THAT(error([](GraphBuilder&, const Value& x) {
                slice(x, {0, 0, 0}, {1, 1, 1});
              }),
              HasSubstr("begin, end and steps need one number per axis, for at most 2 axes, got 3, 3 and 3"));
  EXPECT_THAT(refusal([](GraphBuilder& b) {
                slice(b.placeholder("x", DType::kF32, {4}), {0, 0}, {1, 1});
              }),
              HasSubstr("for at most 1 axis, got 2"));
  EXPECT_THAT(error([&](GraphBuilder& b, const Value& x) { slice(x, ints(b, 3, 0), ints(b, 2, 1)); }),
              HasSubstr("axis 0: a piece of size 2 at 3 leaves an axis of extent 4"));
  EXPECT_THAT(error([&](GraphBuilder& b, const Value& x) { slice(x, ints(b, -1, 0), ints(b, 2, 1)); }),
              HasSubstr("begin -1 and size 2 must not be negative"));
  EXPECT_THAT(error([&](GraphBuilder& b, const Value& x) {
                b.op1("slice", {x, ints(b, 0, 0)});
              }),
              HasSubstr("takes 1 input, or 3"));
  EXPECT_THAT(error([&](GraphBuilder& b, const Value& x) { b.op1("slice", {x}); }),
              HasSubstr("the attribute 'begin' is missing"));
}

TEST(Unslice, PutsBackWhatSliceReads) {
  const Tensor feed = counting({5, 6});
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, kUnknown});
  const Value piece = slice(x, {-1, 1}, {kOpen, kOpen}, {-2, 2});
  const Value back = unslice(piece, shape_of(x), {-1, 1}, {kOpen, kOpen}, {-2, 2});
  b.result(back);
  const Value begin = b.constant(Tensor::from<std::int64_t>({2}, {1, 2}));
  const Value size = b.constant(Tensor::from<std::int64_t>({2}, {3, 4}));
  b.result(unslice(slice(x, begin, size), shape_of(x), begin));
  const std::vector<Tensor> results = evaluate(b, {feed});
  for (std::int64_t i = 0; i < 30; ++i) {
    const std::int64_t row = i / 6, column = i % 6;
    const bool first = row % 2 == 0 && column % 2 == 1;
    const bool second = row >= 1 && row < 4 && column >= 2;
    const auto at = static_cast<std::size_t>(i);
    EXPECT_EQ(floats(results[0])[at], first ? static_cast<float>(i) : 0.F) << i;
    EXPECT_EQ(floats(results[1])[at], second ? static_cast<float>(i) : 0.F) << i;
  }
  EXPECT_THAT(refusal([](GraphBuilder& g) {
                const Value y = g.placeholder("y", DType::kF32, {3});
                unslice(y, g.constant(Tensor::from<std::int64_t>({1}, {8})), {0}, {4});
              }),
              HasSubstr("a slice of a value of shape [8] is [4], not [3]"));
}

TEST(Pad, PutsAValueAround) {
  for (const DType dtype : kAllDTypes) {
    const Tensor feed = counting({2, 3}, dtype);
    const Tensor padded = apply(feed, false, [](GraphBuilder&, const Value& x) {
      return pad(x, {1, 0}, {2, 3}, 1);
    });
    EXPECT_EQ(padded.shape(), (Shape{5, 6}));
    const Tensor ones = Tensor::full(dtype, {2, 3}, 1);
    for (std::size_t i = 0; i < 30; ++i) {
      const std::size_t row = i / 6, column = i % 6;
      const bool inside = row >= 1 && row < 3 && column < 3;
      const Tensor& from = inside ? feed : ones;
      const std::size_t size = size_of(dtype), at = inside ? (row - 1) * 3 + column : 0;
      EXPECT_EQ(std::memcmp(static_cast<const char*>(padded.raw()) + i * size,
                            static_cast<const char*>(from.raw()) + at * size, size),
                0)
          << dtype << " " << i;
    }
  }
  expect_value(counting({0}), Tensor::zeros({2}),
               [](GraphBuilder&, const Value& x) { return pad(x, {1}, {1}); });
  expect_value(counting({}), counting({}), [](GraphBuilder&, const Value& x) { return pad(x, {}, {}); });
}

TEST(Pad, SaysWhatDoesNotFit) {
  const auto error = [](Ints before, Ints after, double value) {
    return refusal([&](GraphBuilder& b) { pad(b.placeholder("x", DType::kI32, {2}), before, after, value); });
  };
  EXPECT_THAT(error({1, 1}, {1}, 0),
              HasSubstr("needs a number before and after for each axis of [2], got 2 and 1"));
  EXPECT_THAT(error({-1}, {1}, 0), HasSubstr("axis 0: cannot pad by -1 and 1; slice() cuts"));
  EXPECT_THAT(error({1}, {1}, 0.5), HasSubstr("0.5 is no i32; give a whole number"));
}

// --- sources

TEST(Full, IsStoredOnlyWhereItIsSmall) {
  GraphBuilder b;
  const Value small = zeros(b, DType::kF32, {4});
  const Value large = ones(b, DType::kI64, Shape{1000, 1000});
  EXPECT_EQ(b.graph().node(small.id().node).op().name, "constant");
  EXPECT_EQ(b.graph().node(large.id().node).op().name, "full");
  b.result(small);
  b.result(sum(large));
  const Value x = b.placeholder("x", DType::kF32, {kUnknown});
  b.result(full(b, DType::kBF16, shape_of(x), 2.5));
  const std::vector<Tensor> results = evaluate(b, {counting({3})});
  EXPECT_THAT(floats(results[0]), ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(results[1].item(), 1e6);
  EXPECT_TRUE(results[2].bit_equal(Tensor::full(DType::kBF16, {3}, 2.5)));
  EXPECT_THAT(refusal([](GraphBuilder& g) { full(g, DType::kI32, Shape{2}, 0.5); }),
              HasSubstr("0.5 is no i32"));
  EXPECT_THAT(refusal([](GraphBuilder& g) { full(g, DType::kF32, Shape{kUnknown}, 0); }),
              HasSubstr("shape must be known, got [?]"));
}

TEST(Iota, CountsUp) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown});
  b.result(iota(b, DType::kF32, 4));
  b.result(iota(b, DType::kI64, 3, 10, -5));
  b.result(iota(b, DType::kF64, shape_of(x), 0.5, 0.25));
  b.result(iota(b, DType::kF16, 0));
  b.result(iota(b, DType::kI32, 200000));
  const std::vector<Tensor> results = evaluate(b, {counting({3})});
  EXPECT_THAT(floats(results[0]), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(results[1].data<std::int64_t>(), ElementsAre(10, 5, 0));
  EXPECT_THAT(results[2].data<double>(), ElementsAre(0.5, 0.75, 1.0));
  EXPECT_EQ(results[3].num_elements(), 0);
  EXPECT_EQ(results[4].data<std::int32_t>()[199999], 199999);
  EXPECT_THAT(refusal([](GraphBuilder& g) { iota(g, DType::kI32, 2, 0.5); }), HasSubstr("0.5 is no i32"));
  EXPECT_THAT(refusal([](GraphBuilder& g) { iota(g, DType::kBool, 2); }),
              HasSubstr("has no meaning for bool"));
  EXPECT_THAT(refusal([](GraphBuilder& g) { iota(g, DType::kF32, -2); }), HasSubstr("the count is -2"));
}

TEST(Slice, TakesStepsBeyondTheAxis) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {3, 4});
  const Value y = slice(x, {1, kOpen}, {kOpen, kOpen}, {kHuge, -kHuge});
  b.result(y);
  b.result(unslice(y, shape_of(x), {1, kOpen}, {kOpen, kOpen}, {kHuge, -kHuge}));
  const std::vector<Tensor> results = evaluate(b, {counting({3, 4})});
  EXPECT_THAT(floats(results[0]), ElementsAre(7));
  EXPECT_THAT(floats(results[1]), ElementsAre(0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0));
}

}  // namespace
}  // namespace lockstep
