// Tests: strategies/trace/variable.cpp
// What a Variable does, for every synchronization, aggregation, context, action, dtype and kind of value: all
// cells of the table in strategies/trace/variable_rules.h through the handle itself, held to a plain model of
// N numbers.
#include <cmath>
#include <memory>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/strategies/mirrored.h"
#include "lockstep/strategies/trace/variable.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

enum class Where { kReplica, kCross, kUpdate, kOutside };
enum class Does { kRead, kAssign, kAdd, kSubtract };

struct Case {
  Synchronization synchronization;
  Aggregation aggregation;
  Where where;
  Does does;
  bool same;  // the replicas' values are one
  DType dtype;
  std::size_t replicas;
  bool share;
};

std::string to_string(const Case& c) {
  constexpr const char* kWhere[] = {"in a replica", "across replicas", "in an update", "outside"};
  constexpr const char* kDoes[] = {"read", "assign", "assign_add", "assign_sub"};
  return str(to_string(c.synchronization), ", ", to_string(c.aggregation), ": ",
             kDoes[static_cast<int>(c.does)], " ", kWhere[static_cast<int>(c.where)],
             c.same ? " the same " : " ", c.dtype, ", ", c.replicas, " replicas", c.share ? ", shared" : "");
}

// What is there before, and what replicas write.
constexpr double kMirrored = 3, kSame = 7;
constexpr double kOwn[] = {2, 5, 11}, kWritten[] = {1, 4, 10};

struct Expected {
  std::string error;           // what it says; empty: none
  std::vector<double> copies;  // afterwards
  std::optional<double> read;  // one value for all
};

// The table of the reference, in numbers.
Expected expected_of(const Case& c) {
  const bool on_read = c.synchronization == Synchronization::kOnRead, integer = !is_floating(c.dtype);
  const std::size_t n = c.replicas;
  Expected e;
  for (std::size_t r = 0; r < n; ++r) e.copies.push_back(on_read ? kOwn[r] : kMirrored);
  const bool own_copy = c.where == Where::kUpdate || (c.where == Where::kReplica && (on_read || n == 1));
  if (c.does == Does::kRead) {
    if (c.where == Where::kReplica || c.where == Where::kUpdate) return e;
    double total = 0;
    for (const double copy : e.copies) total += copy;
    e.read = e.copies[0];
    if (!on_read) return e;
    if (c.aggregation == Aggregation::kNone) e.error = "Could not convert";
    if (c.aggregation == Aggregation::kSum) e.read = total;
    if (c.aggregation == Aggregation::kMean) {
      e.read = total / static_cast<double>(n);
      if (integer && n > 1) e.error = "mean of integers";
    }
    return e;
  }
  std::vector<double> operands(n, kSame);
  if (c.where == Where::kReplica && !c.same) operands.assign(kWritten, kWritten + n);
  if (c.where == Where::kReplica && !own_copy) {
    double total = 0;
    for (const double operand : operands) total += operand;
    switch (c.aggregation) {
      case Aggregation::kNone: e.error = "You must specify an aggregation method"; break;
      case Aggregation::kSum:
        if (c.same) e.error = "the value is the same on all replicas";
        operands.assign(n, total);
        break;
      case Aggregation::kMean:
        if (!c.same && integer) e.error = "the mean of integers";
        operands.assign(n, total / static_cast<double>(n));
        break;
      case Aggregation::kSlices: break;  // none of this table
      case Aggregation::kOnlyFirstReplica: operands.assign(n, operands[0]); break;
    }
  }
  if (!own_copy && c.where != Where::kReplica && on_read && c.aggregation == Aggregation::kSum) {
    if (c.does == Does::kAssign) {
      const double share = kSame / static_cast<double>(n);
      operands.assign(n, integer ? std::trunc(share) : share);
      // Of integers the first copies get the remainder.
      for (std::size_t r = 0; integer && static_cast<double>(r) < std::fmod(kSame, static_cast<double>(n));
           ++r)
        operands[r] += 1;
    } else {
      e.error = "do not support assign_add";
    }
  }
  if (!e.error.empty()) return e;
  for (std::size_t r = 0; r < n; ++r) {
    if (c.does == Does::kAssign) e.copies[r] = operands[r];
    if (c.does == Does::kAdd) e.copies[r] += operands[r];
    if (c.does == Does::kSubtract) e.copies[r] -= operands[r];
  }
  return e;
}

Tensor number(DType dtype, double value) { return Tensor::full(dtype, Shape{}, value); }

class VariableTable : public ::testing::Test {
 protected:
  MirroredStrategy& strategy(std::size_t replicas, bool share) {
    std::unique_ptr<MirroredStrategy>& one = strategies_[{replicas, share}];
    if (one == nullptr) {
      std::vector<std::string> devices;
      for (std::size_t r = 0; r < replicas; ++r) devices.push_back("cpu:" + std::to_string(r));
      one = std::make_unique<MirroredStrategy>(
          MirroredOptions{.devices = devices, .share_mirrored = share, .optimize = false});
    }
    return *one;
  }

  static Value done(const Variable& v, Does does, const Operand& operand) {
    switch (does) {
      case Does::kRead: return identity(v.read());
      case Does::kAssign: return v.assign(operand);
      case Does::kAdd: return v.assign_add(operand);
      case Does::kSubtract: return v.assign_sub(operand);
    }
    return {};
  }

  // What the action gives: by replica, or one value.
  static PerReplica<Tensor> act(MirroredStrategy& s, const Variable& v, const Case& c) {
    const InputSpec input(c.dtype, Shape{}, "x");
    switch (c.where) {
      case Where::kReplica: {
        std::vector<Tensor> fed;
        for (std::size_t r = 0; r < c.replicas; ++r) fed.push_back(number(c.dtype, kWritten[r]));
        const auto f = s.function(
            {input}, [&](Value x) { return done(v, c.does, c.same ? Operand(kSame) : Operand(x)); });
        return f(PerReplica<Tensor>(fed));
      }
      case Where::kCross: {
        const auto f =
            s.cross_function({}, [&] { return PerReplica<Value>(done(v, c.does, Operand(kSame))); });
        return f();
      }
      case Where::kUpdate: {
        const auto f = s.cross_function({}, [&] {
          return s.update(v,
                          [&](const Variable& copy, std::span<const Value>) {
                            return done(copy, c.does, Operand(kSame));
                          },
                          {});
        });
        return f();
      }
      case Where::kOutside: break;
    }
    const Tensor operand = number(c.dtype, kSame);
    if (c.does == Does::kAssign) v.assign(operand);
    if (c.does == Does::kAdd) v.assign_add(operand);
    if (c.does == Does::kSubtract) v.assign_sub(operand);
    return c.does == Does::kRead ? PerReplica<Tensor>(v.value()) : PerReplica<Tensor>(v.copies()[0]);
  }

  void check(const Case& c) {
    MirroredStrategy& s = strategy(c.replicas, c.share);
    auto scope = s.scope();
    const std::string name = "v" + std::to_string(made_++);
    const Variable v(name, number(c.dtype, kMirrored),
                     {.synchronization = c.synchronization, .aggregation = c.aggregation});
    if (c.synchronization == Synchronization::kOnRead) {
      for (std::size_t r = 0; r < c.replicas; ++r)
        s.variables().set(copy_name(name, static_cast<std::int64_t>(r)), number(c.dtype, kOwn[r]));
    }
    const Expected e = expected_of(c);
    PerReplica<Tensor> given;
    std::string error;
    try {
      given = act(s, v, c);
    } catch (const InvalidArgument& refused) {
      error = refused.what();
    }
    EXPECT_THAT(error,
                e.error.empty() ? ::testing::Eq("") : ::testing::Matcher<std::string>(HasSubstr(e.error)));
    if (!error.empty()) {
      EXPECT_THAT(error, HasSubstr(name));
      return;
    }
    const double near = c.dtype == DType::kBF16 ? 0.02 : 1e-6;
    const PerReplica<Tensor> copies = v.copies();
    ASSERT_EQ(copies.size(), c.replicas);
    for (std::size_t r = 0; r < c.replicas; ++r) {
      EXPECT_NEAR(copies[r].item(), e.copies[r], near) << "copy " << r;
      EXPECT_EQ(copies[r].dtype(), c.dtype);
    }
    if (c.does == Does::kRead && e.read) {
      EXPECT_NEAR(given[0].item(), *e.read, near);
      EXPECT_EQ(given[0].dtype(), c.dtype);
      return;
    }
    // In a replica and in an update it is the value of that copy.
    for (std::size_t r = 0; r < c.replicas; ++r) {
      const bool own = c.where == Where::kReplica || c.where == Where::kUpdate;
      EXPECT_NEAR(given[own && !given.is_single() ? r : 0].item(), e.copies[own ? r : 0], near)
          << "given " << r;
    }
  }

  int made_ = 0;
  std::map<std::pair<std::size_t, bool>, std::unique_ptr<MirroredStrategy>> strategies_;
};

TEST_F(VariableTable, HoldsForEveryCell) {
  int cells = 0;
  for (const Synchronization s :
       {Synchronization::kAuto, Synchronization::kOnWrite, Synchronization::kOnRead})
    for (const Aggregation a :
         {Aggregation::kNone, Aggregation::kSum, Aggregation::kMean, Aggregation::kOnlyFirstReplica})
      for (const Where where : {Where::kReplica, Where::kCross, Where::kUpdate, Where::kOutside})
        for (const Does does : {Does::kRead, Does::kAssign, Does::kAdd, Does::kSubtract})
          for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI32})
            for (const std::size_t replicas : {1U, 3U})
              for (const bool same : {false, true}) {
                if (same && (where != Where::kReplica || does == Does::kRead)) continue;
                // Neither kAuto nor a second dtype has a graph of its own to be shared.
                const Case c{s,        a,
                             where,    does,
                             same,     dtype,
                             replicas, (++cells + static_cast<int>(s == Synchronization::kAuto)) % 2 == 0};
                SCOPED_TRACE(to_string(c));
                check(c);
                if (HasFatalFailure()) return;
              }
  EXPECT_EQ(cells, 3 * 4 * (4 * 4 + 3) * 3 * 2);
}

TEST_F(VariableTable, NoSynchronizationNeedsOneReplica) {
  for (const Aggregation a :
       {Aggregation::kNone, Aggregation::kSum, Aggregation::kMean, Aggregation::kOnlyFirstReplica}) {
    {
      auto scope = strategy(3, true).scope();
      EXPECT_THROW(Variable("none", number(DType::kF32, 0),
                            {.synchronization = Synchronization::kNone, .aggregation = a}),
                   InvalidArgument);
      EXPECT_FALSE(strategy(3, true).variables().contains("none"));
    }
    // With one there is nothing to synchronize: it is a variable like others.
    for (const Where where : {Where::kReplica, Where::kCross, Where::kUpdate, Where::kOutside}) {
      for (const Does does : {Does::kRead, Does::kAssign, Does::kAdd}) {
        const Case c{Synchronization::kNone, a, where, does, false, DType::kF32, 1, true};
        SCOPED_TRACE(to_string(c));
        check(c);
      }
    }
  }
}

// Nothing is the same on all replicas, and adds up to itself: what resets a counter inside of replicas.
TEST_F(VariableTable, TheNumberZeroMayBeSummed) {
  MirroredStrategy& s = strategy(3, true);
  auto scope = s.scope();
  const Variable v("reset", number(DType::kF32, 3), {.aggregation = Aggregation::kSum});
  s.function({}, [&] { v.assign_add(0.0); })();
  EXPECT_EQ(v.value().item(), 3);
  s.function({}, [&] { v.assign(0.0); })();
  for (const Tensor& copy : v.copies()) EXPECT_EQ(copy.item(), 0);
}

}  // namespace
}  // namespace lockstep
