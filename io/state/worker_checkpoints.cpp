// io/state/worker_checkpoints.cpp - checkpoints of a model that several workers train: all save, one writes.
//
// The first worker has a store with the variables of all replicas, as one process with all of them would have. It is what
// is saved and restored; workers exchange what they have of it.
#include "lockstep/io/state/worker_checkpoints.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/communicators/group_round.h"
#include "lockstep/core/error.h"
#include "lockstep/core/store_at_rest.h"
#include "lockstep/io/files/crc32c.h"
#include "lockstep/io/state/internal/logical_variables.h"
#include "lockstep/strategies/strategy.h"

namespace lockstep {

namespace {

using internal::LogicalVariable;

constexpr std::int64_t kSaves = 0x73'61'76'65'73, kRestores = 0x72'65'73'74'6F'72'65;

// A variable of this worker; `is_own`: each replica has its own value.
struct OfWorker {
  LogicalVariable local;
  VariableRole role;
  bool is_own = false;

  std::size_t bytes() const { return static_cast<std::size_t>(num_bytes(local.copy_spec())); }
};

std::vector<OfWorker> variables_of(const StoreAtRest& rest) {
  std::map<std::string_view, VariableRole> roles;
  for (const StoreAtRest::Item& item : rest.variables()) roles.emplace(item.variable->name(), item.role);
  std::vector<OfWorker> variables;
  std::string slices;
  for (LogicalVariable& variable : internal::logical_variables(rest)) {
    const VariableRole& role = roles.at(variable.name());
    if (role.copies == CopyRule::kSlices) slices += str(slices.empty() ? "'" : ", '", variable.name(), "'");
    variables.push_back({std::move(variable), role, role.copies != CopyRule::kEqual});
  }
  if (!slices.empty())
    throw Error(
        ErrorCode::kUnimplemented,
        str("checkpoints of several workers do not hold variables whose copies are slices: ", slices));
  return variables;
}

std::string name_of_copy(const std::string& name, std::int64_t replica) {
  return replica == 0 ? name : str(name, "/replica_", replica);
}

// Makes what a process with so many replicas has of the variables, unless it is there.
void make_like(const std::vector<OfWorker>& variables, std::int64_t replicas, VariableStore& store) {
  for (const OfWorker& variable : variables) {
    const TensorSpec& spec = variable.local.copy_spec();
    const auto zeros = [&] { return Tensor::zeros(spec.dtype, spec.shape); };
    for (std::int64_t r = 0; r < (variable.is_own ? replicas : 1); ++r) {
      VariableRole role = variable.role;
      if (r > 0) role.copy_of = variable.local.name();
      store.find_or_create(name_of_copy(variable.local.name(), r), spec, zeros, role);
    }
  }
}

// Texts and numbers, one behind the other.
class Record {
 public:
  Record() = default;
  explicit Record(std::string bytes) : bytes_(std::move(bytes)) {}
  const std::string& bytes() const { return bytes_; }

  void put(std::uint64_t number) {
    for (int i = 0; i < 8; ++i) bytes_.push_back(static_cast<char>(number >> (8 * i) & 0xFFU));
  }
  void put(std::string_view text) {
    put(text.size());
    bytes_ += text;
  }
  std::uint64_t number() {
    const std::string_view digits = take(8);
    std::uint64_t number = 0;
    for (std::size_t i = 0; i < 8; ++i)
      number |= static_cast<std::uint64_t>(static_cast<unsigned char>(digits[i])) << (8 * i);
    return number;
  }
  std::string text() { return std::string(take(number())); }

 private:
  std::string_view take(std::uint64_t bytes) {
    if (bytes > bytes_.size() - at_)
      throw Error(ErrorCode::kDataLoss, "what the first worker says about the checkpoint ends early");
    const std::string_view taken = std::string_view(bytes_).substr(at_, bytes);
    at_ += bytes;
    return taken;
  }

  std::string bytes_;
  std::size_t at_ = 0;
};

// Of header and index, which have the checksums of all tensors.
std::uint64_t digest_of(const std::filesystem::path& path, const ReadLimits& limits) {
  const CheckpointInfo info = inspect_checkpoint(path, limits);
  Record record;
  record.put(info.version);
  record.put(info.step);
  for (const CheckpointInfo::Entry& entry : info.entries) {
    record.put(entry.name);
    record.put(to_string(entry.spec));
    record.put(entry.bytes);
    record.put(entry.crc);
  }
  return crc32c(record.bytes()) | record.bytes().size() << 32U;
}

Record to_record(const SeriesRestore& restored) {
  Record record;
  record.put(restored.path.string());
  record.put(restored.report.step);
  for (const std::vector<std::string>* const names : {&restored.report.missing, &restored.report.extra}) {
    record.put(names->size());
    for (const std::string& name : *names) record.put(name);
  }
  record.put(restored.report.states.size());
  for (const auto& [name, bytes] : restored.report.states) {
    record.put(name);
    record.put(
        std::string_view(static_cast<const char*>(bytes.raw()), static_cast<std::size_t>(bytes.num_bytes())));
  }
  record.put(restored.damaged.size());
  for (const auto& [path, why] : restored.damaged) {
    record.put(path.string());
    record.put(why);
  }
  return record;
}

SeriesRestore from_record(Record& record) {
  SeriesRestore restored;
  restored.path = record.text();
  restored.report.step = record.number();
  for (std::vector<std::string>* const names : {&restored.report.missing, &restored.report.extra}) {
    for (std::uint64_t left = record.number(); left > 0; --left) names->push_back(record.text());
  }
  for (std::uint64_t left = record.number(); left > 0; --left) {
    std::string name = record.text();
    const std::string bytes = record.text();
    Tensor state = Tensor::empty(DType::kU8, {static_cast<std::int64_t>(bytes.size())});
    if (!bytes.empty()) std::memcpy(state.raw(), bytes.data(), bytes.size());
    restored.report.states.emplace_back(std::move(name), std::move(state));
  }
  for (std::uint64_t left = record.number(); left > 0; --left) {
    std::string path = record.text();
    restored.damaged.emplace_back(std::move(path), record.text());
  }
  return restored;
}

// The first worker's, on all.
void share(GroupRound& round, std::string& text) {
  auto size = static_cast<std::int64_t>(text.size());
  round.broadcast(DType::kI64, &size, 1, 0);
  if (size < 0) throw Error(ErrorCode::kDataLoss, "the first worker sent a text of negative length");
  text.resize(static_cast<std::size_t>(size));
  if (size > 0) round.broadcast(DType::kU8, text.data(), size, 0);
}

// That all workers have called the same, at the same step, with variables of the same size.
void meet(GroupRound& round, std::int64_t method, std::uint64_t step, std::size_t bytes) {
  using Call = std::array<std::int64_t, 3>;
  const Call mine{method, static_cast<std::int64_t>(step), static_cast<std::int64_t>(bytes)};
  std::vector<Call> all(static_cast<std::size_t>(round.size()));
  round.all_gather(DType::kI64, mine.data(), all.data(), static_cast<std::int64_t>(mine.size()));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const char* const called = mine[0] == kSaves ? "save()" : "restore_latest()";
    if (all[rank][0] != mine[0])
      throw FailedPrecondition(str("worker ", round.rank(), " called ", called, ", and worker ", rank,
                                   " something else: all workers have to call the same"));
    if (method == kSaves && all[rank][1] != mine[1])
      throw FailedPrecondition(str("worker ", round.rank(), " saves step ", step, ", and worker ", rank,
                                   " saves step ", all[rank][1], ": all workers have to save the same"));
    if (all[rank][2] != mine[2])
      throw FailedPrecondition(str("worker ", round.rank(), " has ", bytes,
                                   " bytes of variables that are each replica's own, and worker ", rank,
                                   " has ", all[rank][2],
                                   ": all workers make the same variables and functions"));
  }
}

}  // namespace

struct WorkerCheckpoints::State {
  State(Strategy& given, std::filesystem::path folder, CheckpointSeriesOptions options)
      : strategy(given), limits(options.limits) {
    options.generation = given.worker().generation;
    if (is_alone() || is_first()) series.emplace(std::move(folder), std::move(options));
  }

  bool is_alone() const { return strategy.worker().count == 1; }
  bool is_first() const { return strategy.worker().is_chief(); }
  VariableStore& store() const { return strategy.variables(); }
  void save(GroupRound& round);
  std::optional<SeriesRestore> read(GroupRound& round, const std::vector<OfWorker>& variables,
                                    VariableStore& world, const RestoreOptions& options,
                                    const SourceSite& site);
  void assign(const std::vector<OfWorker>& variables, VariableStore& world,
              const SeriesRestore& restored) const;

  Strategy& strategy;
  ReadLimits limits;
  std::optional<CheckpointSeries> series;  // of the worker that writes
  std::unique_ptr<VariableStore> saved;    // there: what is saved
};

void WorkerCheckpoints::State::save(GroupRound& round) {
  const StoreAtRest rest(store(), StoreAtRest::Access::kRead);
  const std::vector<OfWorker> variables = variables_of(rest);
  std::vector<std::byte> mine;
  for (const OfWorker& variable : variables) {
    for (StoredVariable* const copy : variable.local.copies()) {
      if (!variable.is_own) break;
      const Tensor value = copy->storage().host();
      const auto* const bytes = static_cast<const std::byte*>(value.raw());
      mine.insert(mine.end(), bytes, bytes + variable.bytes());
    }
  }
  meet(round, kSaves, store().step(), mine.size());
  std::vector<std::byte> all(mine.size() * static_cast<std::size_t>(round.size()));
  if (!mine.empty())
    round.all_gather(DType::kU8, mine.data(), all.data(), static_cast<std::int64_t>(mine.size()));
  if (!series) return;

  std::size_t known = 0;
  for (const OfWorker& variable : variables)
    known += variable.is_own ? static_cast<std::size_t>(strategy.num_replicas_in_sync()) : 1;
  if (saved == nullptr || saved->names().size() != known) saved = std::make_unique<VariableStore>();
  make_like(variables, strategy.num_replicas_in_sync(), *saved);
  std::size_t at = 0;  // in the part of a worker
  for (const OfWorker& variable : variables) {
    const std::string& name = variable.local.name();
    if (!variable.is_own) {
      saved->find(name)->storage() =
          variable.local.copies()[0]->storage();  // nothing is copied but by the series
      continue;
    }
    const std::int64_t local = strategy.num_local_replicas();
    for (std::int64_t r = 0; r < strategy.num_replicas_in_sync(); ++r) {
      const std::size_t from = static_cast<std::size_t>(r / local) * mine.size() + at +
                               static_cast<std::size_t>(r % local) * variable.bytes();
      Tensor& to = saved->find(name_of_copy(name, r))->storage();
      if (variable.bytes() > 0) std::memcpy(to.raw(), all.data() + from, variable.bytes());
    }
    at += static_cast<std::size_t>(local) * variable.bytes();
  }
  saved->set_step(store().step());
  series->save(*saved);
  for (const OfWorker& variable : variables) {
    if (!variable.is_own) saved->find(variable.local.name())->storage() = Tensor();
  }
}

// Fills `world` with what was saved.
std::optional<SeriesRestore> WorkerCheckpoints::State::read(GroupRound& round,
                                                            const std::vector<OfWorker>& variables,
                                                            VariableStore& world,
                                                            const RestoreOptions& options,
                                                            const SourceSite& site) {
  meet(round, kRestores, 0, 0);
  make_like(variables, strategy.num_replicas_in_sync(), world);
  std::string said;
  if (series) {
    if (const std::optional<SeriesRestore> found = series->restore_latest(world, options, site)) {
      Record record = to_record(*found);
      record.put(digest_of(found->path, limits));
      said = record.bytes();
    }
  }
  share(round, said);
  if (said.empty()) return std::nullopt;
  Record record(said);
  SeriesRestore restored = from_record(record);
  const std::uint64_t digest = record.number();
  std::int64_t has = is_first() ? 1 : 0;
  if (has == 0) {
    try {
      if (digest_of(restored.path, limits) == digest) {
        restore_checkpoint(world, restored.path, options, limits, site);
        has = 1;
      }
    } catch (const Error&) {  // it does not see what the first worker sees
    }
  }
  std::vector<std::int64_t> all(static_cast<std::size_t>(round.size()));
  round.all_gather(DType::kI64, &has, all.data(), 1);
  if (std::ranges::find(all, 0) == all.end()) return restored;
  for (const std::string& name : world.names()) {
    Tensor& value = world.find(name)->storage();
    if (value.num_bytes() > 0)
      round.broadcast(DType::kU8, value.raw(), static_cast<std::int64_t>(value.num_bytes()), 0);
  }
  return restored;
}

void WorkerCheckpoints::State::assign(const std::vector<OfWorker>& variables, VariableStore& world,
                                      const SeriesRestore& restored) const {
  std::vector<StoredVariable*> written;
  for (const OfWorker& variable : variables)
    written.insert(written.end(), variable.local.copies().begin(), variable.local.copies().end());
  const CommitScope scope(store().commits(), written);
  for (const OfWorker& variable : variables) {
    const std::string& name = variable.local.name();
    if (std::ranges::find(restored.report.missing, name) != restored.report.missing.end()) continue;
    std::int64_t replica = variable.is_own ? strategy.first_replica() : 0;
    for (StoredVariable* const copy : variable.local.copies()) {
      copy->storage().assign(world.find(name_of_copy(name, replica))->storage());
      if (variable.is_own) ++replica;
    }
  }
  store().set_step(restored.report.step);
}

WorkerCheckpoints::WorkerCheckpoints(Strategy& strategy, std::filesystem::path folder,
                                     CheckpointSeriesOptions options)
    : state_(std::make_unique<State>(strategy, std::move(folder), std::move(options))) {}
WorkerCheckpoints::~WorkerCheckpoints() = default;

void WorkerCheckpoints::save() {
  if (state_->is_alone()) return state_->series->save(state_->store());
  state_->strategy.run_round([this](GroupRound& round) { state_->save(round); });
}

void WorkerCheckpoints::wait() {
  if (state_->is_alone()) return state_->series->wait();
  state_->strategy.run_round([this](GroupRound&) {
    if (state_->series) state_->series->wait();
  });
}

std::optional<SeriesRestore> WorkerCheckpoints::restore_latest(const RestoreOptions& options,
                                                               SourceSite site) {
  if (state_->is_alone()) return state_->series->restore_latest(state_->store(), options, site);
  const StoreAtRest rest(state_->store(), StoreAtRest::Access::kWrite);
  std::vector<OfWorker> variables;
  VariableStore world;
  std::optional<SeriesRestore> restored;
  state_->strategy.run_round([&](GroupRound& round) {
    variables = variables_of(rest);
    restored = state_->read(round, variables, world, options, site);
  });
  if (restored) state_->assign(variables, world, *restored);
  return restored;
}

}  // namespace lockstep
