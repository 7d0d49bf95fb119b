// io/datasets/iterator_checkpoints.cpp - iterators are prepared before variables change, and moved after.
#include "lockstep/io/datasets/iterator_checkpoints.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/io/datasets/internal/node.h"
#include "lockstep/io/files/internal/raw_blocks.h"

namespace lockstep {

namespace {

using States = std::vector<std::pair<std::string, Tensor>>;

Tensor bytes_tensor(const std::string& text) {
  Tensor bytes = Tensor::empty(DType::kU8, {static_cast<std::int64_t>(text.size())});
  std::memcpy(bytes.raw(), text.data(), text.size());
  return bytes;
}

// Restores iterators together with variables.
class Positions {
 public:
  explicit Positions(IteratorList iterators) : iterators_(iterators) {}

  // `allow_missing`: an iterator whose position was not saved stays where it is.
  void prepare(const States& states, bool allow_missing) {
    prepared_.clear();
    for (const IteratorRef& iterator : iterators_) {
      const auto found = std::ranges::find(states, iterator->name(), &States::value_type::first);
      if (found == states.end() && allow_missing) {
        prepared_.push_back(nullptr);
        continue;
      }
      if (found == states.end())
        throw FailedPrecondition(str("the position of the iterator '", iterator->name(), "' was not saved; ",
                                     "RestoreOptions::allow_missing leaves it where it is"));
      try {
        prepared_.push_back(internal::IteratorAccess::prepare(*iterator, internal::bytes_of(found->second)));
      } catch (const Error& error) {
        throw_error(error.code(),
                    str("the position of the iterator '", iterator->name(), "': ", error.message()),
                    error.place());
      }
    }
  }
  void commit() noexcept {
    for (std::size_t i = 0; i < prepared_.size(); ++i) {
      if (prepared_[i] != nullptr) internal::IteratorAccess::commit(*iterators_[i], std::move(prepared_[i]));
    }
  }
  void remove_own(RestoreReport& report) const {
    for (const IteratorRef& iterator : iterators_)
      std::erase_if(report.states, [&](const auto& state) { return state.first == iterator->name(); });
  }
  // Options under which these positions are prepared as well.
  RestoreOptions with_positions(const RestoreOptions& options) {
    RestoreOptions extended = options;
    extended.check_states = [this, options](const States& states) {
      if (options.check_states) options.check_states(states);
      prepare(states, options.allow_missing);
    };
    return extended;
  }

 private:
  const std::vector<IteratorRef> iterators_;
  std::vector<std::unique_ptr<internal::Cursor>> prepared_;
};

}  // namespace

std::vector<Snapshot::State> states_of(IteratorList iterators) {
  std::vector<Snapshot::State> states;
  for (const IteratorRef& iterator : iterators) {
    const bool twice =
        std::ranges::any_of(states, [&](const auto& state) { return state.name == iterator->name(); });
    if (twice) {
      throw InvalidArgument(str("two iterators are called '", iterator->name(),
                                "'; give each a name of its own (IteratorOptions::name)"));
    }
    states.push_back({iterator->name(), bytes_tensor(iterator->save())});
  }
  return states;
}

void take_positions(Snapshot& snapshot, IteratorList iterators) {
  for (Snapshot::State& state : states_of(iterators)) snapshot.set_state(state.name, std::move(state.bytes));
}

void save_checkpoint(VariableStore& store, const std::filesystem::path& path, IteratorList iterators,
                     const ReadLimits& limits, SourceSite site) {
  named_call("save_checkpoint()", site, [&] {
    Snapshot snapshot;
    snapshot.take(store);
    take_positions(snapshot, iterators);
    write_checkpoint(snapshot, path, limits);
  });
}

RestoreReport restore_checkpoint(VariableStore& store, const std::filesystem::path& path,
                                 IteratorList iterators, const RestoreOptions& options,
                                 const ReadLimits& limits, SourceSite site) {
  Positions positions(iterators);
  RestoreReport report = restore_checkpoint(store, path, positions.with_positions(options), limits, site);
  positions.commit();
  positions.remove_own(report);
  return report;
}

RestoreReport restore(const Snapshot& snapshot, VariableStore& store, IteratorList iterators,
                      const RestoreOptions& options, SourceSite site) {
  Positions positions(iterators);
  RestoreReport report = snapshot.restore(store, positions.with_positions(options), site);
  positions.commit();
  positions.remove_own(report);
  return report;
}

std::optional<SeriesRestore> restore_latest(CheckpointSeries& series, VariableStore& store,
                                            IteratorList iterators, const RestoreOptions& options,
                                            SourceSite site) {
  Positions positions(iterators);
  std::optional<SeriesRestore> restored =
      series.restore_latest(store, positions.with_positions(options), site);
  if (!restored) return restored;
  positions.commit();
  positions.remove_own(restored->report);
  return restored;
}

}  // namespace lockstep
