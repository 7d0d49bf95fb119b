// scripts/compare_steps.cpp - one line for each of many steps: what its graphs, its schedule and its results are, as hashes.
// scripts/compare_steps builds it against two trees and compares the lines.
#include <cstdint>
#include <iomanip>
#include <iostream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/lockstep.h"
#include "support/models.h"          // of bench
#include "support/replica_models.h"  // of tests

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program, not a header

namespace {

class Hash {
 public:
  Hash& add(std::string_view bytes) {
    for (const char c : bytes) value_ = (value_ ^ static_cast<unsigned char>(c)) * 1099511628211U;
    return *this;
  }
  Hash& add(const Tensor& tensor) {
    add(str(tensor.spec()));
    return add(std::string_view(static_cast<const char*>(tensor.raw()), tensor.num_bytes()));
  }
  friend std::ostream& operator<<(std::ostream& out, const Hash& hash) {
    return out << std::hex << std::setw(16) << std::setfill('0') << hash.value_ << std::dec;
  }

 private:
  std::uint64_t value_ = 14695981039346656037U;
};

// Runs three steps and prints the line.
template <class F>
void report(const std::string& name, Strategy& strategy, std::vector<InputSpec> inputs, const F& fn,
            const std::vector<PerReplica<Tensor>>& feeds) {
  const auto step = strategy.function(std::move(inputs), fn);
  Hash results, variables, digest;
  for (int i = 0; i < 3; ++i) {
    const PerReplica<Tensor> loss = step.call(feeds);
    for (const Tensor& slot : loss.values()) results.add(slot);
  }
  for (const std::string& variable : strategy.variables().names())
    variables.add(variable).add(strategy.variables().value(variable));
  digest.add(std::to_string(step.collective_digest()));
  std::cout << name << ": step " << Hash().add(print(step.step_graph())) << " replicated "
            << Hash().add(print(step.replicated_graph())) << " nodes " << step.replicated_graph().size()
            << " schedule " << digest << " results " << results << " variables " << variables << '\n';
}

std::vector<std::string> cpus(std::int64_t count) {
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < count; ++i) names.push_back(str("cpu:", i));
  return names;
}

}  // namespace

int main() {
  using testing::ReplicaModel;
  const std::map<std::string, ReplicaModel (*)()> models = {
      {"mlp", testing::mlp_model},
      {"cnn", testing::cnn_model},
      {"transformer", testing::transformer_model},
      {"k_means", testing::k_means_model},
      {"random_1", [] { return testing::random_model(1); }},
      {"random_2", [] { return testing::random_model(2); }},
  };
  for (const auto& [name, make] : models) {
    for (const std::int64_t replicas : {1, 2, 3}) {
      MirroredStrategy strategy({.devices = cpus(replicas)});
      const auto scope = strategy.scope();
      const ReplicaModel model = make();
      std::vector<PerReplica<Tensor>> feeds;
      for (std::size_t i = 0; i < model.rows.size(); ++i) {
        std::vector<Tensor> slots;
        for (std::int64_t r = 0; r < replicas; ++r) {
          std::vector<std::int64_t> dims = {4 + r};
          for (std::size_t d = 0; d < model.rows[i].shape.rank(); ++d) dims.push_back(model.rows[i].shape[d]);
          slots.push_back(testing::random_f64(Shape(std::span<const std::int64_t>(dims)),
                                              100 * i + static_cast<std::uint64_t>(r)));
        }
        feeds.emplace_back(std::move(slots));
      }
      report(
          str("tests/", name, " on ", replicas), strategy, model.inputs,
          [&](std::span<const Value> values) {
            const Value loss = model.loss(values);
            if (!model.updates_itself) {
              std::vector<VariableRef> variables(model.variables.begin(), model.variables.end());
              Adam(0.01).minimize(loss, variables);
            }
            return loss;
          },
          feeds);
    }
  }
  for (const std::string name : {"mlp", "cnn", "transformer"}) {
    for (const std::int64_t replicas : {1, 2}) {
      MirroredStrategy strategy({.devices = cpus(replicas)});
      const auto scope = strategy.scope();
      const bench::Batch batch = bench::batch_of(name, 2);
      const PerReplica<Tensor> x(std::vector<Tensor>(static_cast<std::size_t>(replicas), batch.inputs));
      const PerReplica<Tensor> y(std::vector<Tensor>(static_cast<std::size_t>(replicas), batch.targets));
      report(str("bench/", name, " on ", replicas), strategy,
             {InputSpec(batch.inputs.spec(), "x"), InputSpec(batch.targets.spec(), "y")},
             [&](Value in, Value out) { return bench::train(name, in, out); }, {x, y});
    }
  }
}
