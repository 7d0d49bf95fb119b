// core/variable_store.cpp - named state that outlives a step.
#include "lockstep/core/variable_store.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <utility>

#include "lockstep/core/process_mark.h"

namespace lockstep {
namespace {

// Holds one variable, or several together.
class VariableLock {
 public:
  VariableLock(VariableStore& store, std::span<StoredVariable* const> variables, bool exclusive) {
    for (StoredVariable* variable : variables) locks_.add(*variable, exclusive);
    LockTurn(store, locks_).lock();
  }
  VariableLock(VariableStore& store, StoredVariable& variable, bool exclusive) {
    locks_.add(variable, exclusive);
    LockTurn(store, locks_).lock();
  }
  ~VariableLock() { locks_.unlock(); }
  VariableLock(const VariableLock&) = delete;
  VariableLock& operator=(const VariableLock&) = delete;

 private:
  RunLockSet locks_;
};

// How long the line holds back waiters that it alone keeps waiting: this long after its first became first,
// and then twice as long each time.
constexpr std::chrono::milliseconds kPatience(100);

// How long the first in line tolerates being overtaken by runs inside nodes before it holds back all other
// runs, including the runs that they come from.
constexpr std::chrono::milliseconds kLate(20);

struct Openings {
  SteadyTime last, next;
};

Openings openings_of_line(SteadyTime since, SteadyTime now) {
  Openings result{since, since + kPatience};
  for (auto patience = kPatience; result.next <= now;) {
    patience *= 2;
    result = {result.next, result.next + patience};
  }
  return result;
}

[[noreturn]] void throw_missing(std::string_view name, std::size_t others) {
  throw NotFound(str("variable '", name, "' does not exist in this store: names() lists the ",
                     counted(others, "variable"),
                     " that it has; variables are made when a program that uses them is compiled"));
}

StoredVariable& must_find(VariableStore& store, std::string_view name) {
  StoredVariable* variable = store.find(name);
  if (variable == nullptr) throw_missing(name, store.names().size());
  return *variable;
}

// Call with its lock held: it may have been erased since it was found.
const Tensor& value_of(StoredVariable& variable) {
  if (!variable.storage().defined()) throw_missing(variable.name(), 0);
  return variable.storage();
}

std::string line_of(std::string_view made_at) { return made_at.empty() ? "" : str(" (", made_at, ")"); }

void check_same_spec(const StoredVariable& variable, const TensorSpec& wanted, std::string_view made_at) {
  if (variable.spec() == wanted) return;
  throw InvalidArgument(
      str("variable '", variable.name(), "' is ", variable.spec(), " in this store",
          line_of(variable.made_at()), ", and is used as ", wanted, line_of(made_at),
          ": give one of them another name, use another store, or VariableStore::erase() the "
          "one that is there"));
}

std::string_view words_for(const VariableHome& home) {
  return home.device.empty() ? std::string_view("the host") : std::string_view(home.device);
}

void check_same_home(const StoredVariable& variable, const VariableHome& wanted, std::string_view made_at) {
  if (wanted.pool == nullptr || wanted.pool->memory() == variable.memory()) return;
  throw InvalidArgument(str("variable '", variable.name(), "' lies in the memory of ",
                            words_for(variable.home()), " in this store", line_of(variable.made_at()),
                            ", and is declared for ", words_for(wanted), line_of(made_at),
                            ": declare it for ", words_for(variable.home()),
                            ", use another store, or VariableStore::erase() the one that is there"));
}

std::string_view words_for(CopyRule rule) {
  switch (rule) {
    case CopyRule::kEqual: return "copies that are equal";
    case CopyRule::kSum: return "copies that are summed";
    case CopyRule::kMean: return "copies that are averaged";
    case CopyRule::kFirst: return "copies of which the first is the value";
    case CopyRule::kOwn: return "copies that are each replica's own";
    case CopyRule::kSlices: return "copies that are slices";
  }
  return "?";
}

// Of a tensor on the host.
bool is_zero(const Tensor& tensor) {
  const auto* bytes = static_cast<const unsigned char*>(tensor.raw());
  return std::all_of(bytes, bytes + tensor.num_bytes(), [](unsigned char byte) { return byte == 0; });
}

Tensor copied(const Tensor& value, const std::shared_ptr<MemoryPool>& pool = default_host_pool()) {
  Tensor copy = Tensor::empty(value.dtype(), value.shape(), pool);
  copy.assign(value);
  return copy;
}

}  // namespace

StoredVariable::StoredVariable(VariableStore& store, std::string name, const Tensor& value, VariableHome home)
    : RunLock(store),
      name_(std::move(name)),
      home_(std::move(home)),
      value_(copied(value, home_.pool != nullptr ? home_.pool : default_host_pool())),
      spec_(value_.spec()),
      memory_(value_.memory()) {}

bool RunLock::is_reserved(bool exclusive) const {
  const std::uint32_t waiting = reserved_.load(std::memory_order_relaxed);
  return (exclusive ? waiting != 0 : waiting >= kOneWriter) ||
         store_.first_is_late_.load(std::memory_order_relaxed);
}

bool RunLock::try_lock_shared() {
  std::int32_t users = users_.load(std::memory_order_relaxed);
  while (users >= 0) {
    if (users_.compare_exchange_weak(users, users + 1, std::memory_order_acquire,
                                     std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

bool RunLock::try_lock_exclusive() {
  std::int32_t free = 0;
  return users_.compare_exchange_strong(free, -1, std::memory_order_acquire, std::memory_order_relaxed);
}

void RunLock::unlock_shared() {
  // Nobody waits for one of several readers to go.
  if (users_.fetch_sub(1, std::memory_order_release) == 1) store_.announce();
}

void RunLock::unlock_exclusive() {
  users_.store(0, std::memory_order_release);
  store_.announce();
}

RunLockSet::RunLockSet() = default;
RunLockSet::~RunLockSet() = default;

void RunLockSet::add(RunLock& lock, bool exclusive) {
  locks_.push_back(&lock);
  exclusive_.push_back(exclusive);
  any_exclusive_ = any_exclusive_ || exclusive;
}

void RunLockSet::clear() {
  locks_.clear();
  exclusive_.clear();
  any_exclusive_ = false;
}

std::span<RunLock* const> RunLockSet::all() const { return locks_; }

bool RunLockSet::try_lock(bool ahead) const {
  if (take(false)) return true;
  if (!ahead || !take(true)) return false;
  locks_.front()->store_.first_was_overtaken_.store(true, std::memory_order_relaxed);
  return true;
}

bool RunLockSet::take(bool reserved_too) const {
  for (std::size_t i = 0; i < locks_.size(); ++i) {
    if (is_blocked_by(i) || (!reserved_too && is_reserved(i))) return false;
  }
  for (std::size_t i = 0; i < locks_.size(); ++i) {
    if (exclusive_[i] ? locks_[i]->try_lock_exclusive() : locks_[i]->try_lock_shared()) continue;
    unlock_first(i);
    return false;
  }
  return true;
}

void RunLockSet::unlock() const { unlock_first(locks_.size()); }

void RunLockSet::unlock_first(std::size_t count) const {
  for (std::size_t i = 0; i < count; ++i) {
    if (exclusive_[i]) {
      locks_[i]->unlock_exclusive();
    } else {
      locks_[i]->unlock_shared();
    }
  }
}

struct VariableStore::State {
  const ProcessMark process;
  std::mutex mutex;  // guards the names
  std::map<std::string, std::unique_ptr<StoredVariable>, std::less<>> variables;
  std::map<const StoredVariable*, VariableRole> roles;  // only roles that are not the default
  std::map<std::string, StoredVariable*, std::less<>> aliases;
  std::vector<std::unique_ptr<StoredVariable>> erased;  // references to them stay valid
  // Used only by waiters, and by unlockers while there are waiters.
  std::mutex wait_mutex;
  std::condition_variable changed;
  LockTurn *first = nullptr, *last = nullptr;  // the line, under the wait mutex

  // Call under the mutex. A copy has the rule of its original.
  VariableRole role_of(const StoredVariable& variable) const {
    const auto found = roles.find(&variable);
    if (found == roles.end() || found->second.copy_of.empty())
      return found == roles.end() ? VariableRole() : found->second;
    const auto original = variables.find(found->second.copy_of);
    VariableRole role = original == variables.end() ? found->second : role_of(*original->second);
    role.copy_of = found->second.copy_of;
    return role;
  }
  // A program that was compiled by the old rule would go on by it.
  void check_rule(const StoredVariable& variable, const VariableRole& role, std::string_view made_at) const {
    const CopyRule now = role_of(variable).copies;
    if (role.copies == CopyRule::kEqual || role.copies == now || variable.programs_ == 0) return;
    throw FailedPrecondition(
        str("variable '", variable.name(), "' is declared with ", words_for(role.copies), line_of(made_at),
            ", and a program that uses it was compiled for ", words_for(now),
            ": let that program end first, or declare the variable so before the first one is compiled"));
  }
  void give_role(const StoredVariable& variable, const VariableRole& role) {
    if (role == VariableRole()) return;
    roles[&variable] = role;
    const auto original = variables.find(role.copy_of);
    VariableRole rule = role;
    rule.copy_of.clear();
    if (original != variables.end() && rule != VariableRole()) roles[original->second.get()] = rule;
  }
};

VariableStore::VariableStore() : state_(std::make_unique<State>()) {}
// In a forked child the waiters exist in the parent only, but the destructor of a condition variable waits
// for them: the state stays in memory instead.
VariableStore::~VariableStore() {
  if (!state_->process.is_of_this_process() && waiters_.load() != 0) static_cast<void>(state_.release());
}

StoredVariable& VariableStore::find_or_create(std::string_view name, const TensorSpec& spec,
                                              const std::function<Tensor()>& initial,
                                              const VariableRole& role, std::string_view made_at,
                                              SameStart same_start, const VariableHome& home) {
  StoredVariable* variable = find(name);
  const bool reshapes = variable != nullptr && variable->spec() != spec && give_way(*variable, made_at);
  if (variable != nullptr && !reshapes) {
    check_same_spec(*variable, spec, made_at);
    check_same_home(*variable, home, made_at);
    if (same_start == SameStart::kRequired && role.copy_of.empty()) {
      const Tensor start = initial().host();
      if (variable->start_.defined() ? !variable->start_.bit_equal(start) : !is_zero(start)) {
        throw InvalidArgument(str("variable '", name, "' is in this store with another initial value",
                                  line_of(variable->made_at()), " than it is declared with", line_of(made_at),
                                  ": it would keep the value that it has; use another store, or "
                                  "VariableStore::erase() the one that is there"));
      }
    }
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->check_rule(*variable, role, made_at);
    state_->give_role(*variable, role);
    return *variable;
  }
  // Without the lock: the function is the caller's and may use this store. If two threads make the variable,
  // the first to come wins.
  const Tensor made = initial ? initial().host() : Tensor();
  if (!made.defined()) throw InvalidArgument(str("variable '", name, "': its initial value is empty"));
  if (made.spec() != spec) {
    throw InvalidArgument(
        str("variable '", name, "': declared as ", spec, ", but its initial value is ", made.spec()));
  }
  auto fresh = std::make_unique<StoredVariable>(*this, std::string(name), made, home);
  fresh->made_at_ = made_at;
  fresh->reshaped_ = reshapes;
  // Zeros need not be kept, nor a value that a copy got from its original.
  if (!is_zero(made) && (role.copy_of.empty() || made.use_count() > 1)) fresh->start_ = made;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  StoredVariable& stored = *state_->variables.try_emplace(std::string(name), std::move(fresh)).first->second;
  check_same_spec(stored, spec, made_at);
  check_same_home(stored, home, made_at);
  state_->give_role(stored, role);
  return stored;
}

VariableRole VariableStore::find_role(std::string_view name) const {
  const StoredVariable& variable = must_find(const_cast<VariableStore&>(*this), name);
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->role_of(variable);
}

VariableRole VariableStore::role(std::string_view name, SourceSite site) const {
  return named_call("VariableStore::role()", site, [&] { return find_role(name); });
}

std::vector<std::pair<StoredVariable*, VariableRole>> VariableStore::originals() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  std::vector<std::pair<StoredVariable*, VariableRole>> result;
  for (const auto& [name, variable] : state_->variables)
    result.emplace_back(variable.get(), state_->role_of(*variable));
  return result;
}

StoredVariable& VariableStore::alias(std::string_view name, std::string_view target, SourceSite site) {
  return named_call("VariableStore::alias()", site, [&]() -> StoredVariable& {
    StoredVariable& variable = must_find(*this, target);
    const std::lock_guard<std::mutex> lock(state_->mutex);
    const bool taken = state_->variables.find(name) != state_->variables.end();
    if (taken || state_->aliases.try_emplace(std::string(name), &variable).first->second != &variable) {
      throw InvalidArgument(str("variable '", name, "' cannot become another name for '", target,
                                "': ", taken ? "it has a value of its own" : "it is one for another variable",
                                "; use another store"));
    }
    return variable;
  });
}

bool VariableStore::is_alias(std::string_view name) const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->aliases.find(name) != state_->aliases.end();
}

StoredVariable* VariableStore::find(std::string_view name) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const auto it = state_->variables.find(name);
  if (it != state_->variables.end()) return it->second.get();
  const auto other = state_->aliases.find(name);
  return other == state_->aliases.end() ? nullptr : other->second;
}

bool VariableStore::contains(std::string_view name) const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->variables.find(name) != state_->variables.end() ||
         state_->aliases.find(name) != state_->aliases.end();
}

std::vector<std::string> VariableStore::names() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  std::vector<std::string> result;
  result.reserve(state_->variables.size());
  for (const auto& [name, variable] : state_->variables) result.push_back(name);
  for (const auto& [name, variable] : state_->aliases) result.push_back(name);
  std::ranges::sort(result);
  return result;
}

Tensor VariableStore::value(std::string_view name, SourceSite site) {
  return named_call("VariableStore::value()", site, [&] {
    StoredVariable& variable = must_find(*this, name);
    const VariableLock lock(*this, variable, false);
    return copied(value_of(variable));
  });
}

Tensor VariableStore::value(std::string_view name, SteadyTime deadline, SourceSite site) {
  return named_call("VariableStore::value()", site, [&] {
    StoredVariable& variable = must_find(*this, name);
    Tensor copy = Tensor::empty(variable.spec().dtype, variable.spec().shape);
    RunLockSet locks;
    locks.add(variable, false);
    LockTurn turn(*this, locks);
    while (!turn.try_lock()) {
      if (std::chrono::steady_clock::now() >= deadline) {
        throw Error(ErrorCode::kDeadlineExceeded,
                    str("variable '", name,
                        "' was not free before the deadline: runs that write it hold it; "
                        "committed() waits for none"));
      }
      turn.wait(deadline);
    }
    const bool there = variable.storage().defined();
    if (there) copy.assign(variable.storage());
    locks.unlock();
    if (!there) throw_missing(name, 0);
    return copy;
  });
}

Tensor VariableStore::committed(std::string_view name, SourceSite site) {
  return named_call("VariableStore::committed()", site, [&] {
    StoredVariable& variable = must_find(*this, name);
    Tensor copy = Tensor::empty(variable.spec().dtype, variable.spec().shape);
    if (!commits_.read(variable, copy)) throw_missing(name, 0);
    return copy;
  });
}

// --- taking back

std::vector<StoredVariable*> VariableStore::group_of(std::string_view name) {
  StoredVariable& variable = must_find(*this, name);
  std::vector<StoredVariable*> group{&variable};
  const std::lock_guard<std::mutex> lock(state_->mutex);
  for (const auto& [stored, role] : state_->roles) {
    if (role.copy_of == variable.name()) group.push_back(const_cast<StoredVariable*>(stored));
  }
  return group;
}

// Holds all locks of the group, so that code that found a variable before sees it whole or empty. Checks for
// bound programs before it locks, too: called from a node of such a program, it would wait for itself.
bool VariableStore::forget(std::string_view name, const std::vector<StoredVariable*>& group,
                           std::string_view action, const std::function<bool()>& condition) {
  const auto check = [&] {  // under the mutex
    std::size_t programs = 0;
    for (const StoredVariable* variable : group) {
      const auto found = state_->variables.find(variable->name());
      if (found == state_->variables.end() || found->second.get() != variable)
        throw_missing(name, state_->variables.size());
      programs = std::max(programs, variable->programs_);
    }
    if (programs == 0) return;
    throw FailedPrecondition(str("variable '", name, "' cannot be ", action, ": ", programs,
                                 programs == 1 ? " program is" : " programs are", " bound to it; let ",
                                 programs == 1 ? "it" : "them", " end first, or use another store"));
  };
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    check();
  }
  const VariableLock held(*this, group, true);
  const CommitScope scope(commits_, group);
  const std::lock_guard<std::mutex> lock(state_->mutex);
  check();
  if (condition && !condition()) return false;
  state_->erased.reserve(state_->erased.size() + group.size());
  for (StoredVariable* variable : group) {
    std::erase_if(state_->aliases, [&](const auto& alias) { return alias.second == variable; });
    state_->roles.erase(variable);
    state_->erased.push_back(std::move(state_->variables.extract(variable->name()).mapped()));
    variable->value_ = Tensor();
    variable->start_ = Tensor();
  }
  return true;
}

bool VariableStore::give_way(StoredVariable& variable, std::string_view made_at) {
  if (made_at.empty() || made_at != variable.made_at()) return false;
  const std::vector<StoredVariable*> group = group_of(variable.name());
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (std::ranges::any_of(group, &StoredVariable::was_bound_)) return false;
  }
  return forget(variable.name(), group, "reshaped", [&] {
    return std::ranges::all_of(group, [&](const StoredVariable* copy) {
      const Tensor& start = copy->start_.defined() ? copy->start_ : group[0]->start_;
      const Tensor value = copy->value_.host();
      return !copy->was_bound_ && (start.defined() ? value.bit_equal(start.host()) : is_zero(value));
    });
  });
}

void VariableStore::erase(std::string_view name, SourceSite site) {
  named_call("VariableStore::erase()", site, [&] { forget(name, group_of(name), "erased"); });
}

void VariableStore::reset(std::string_view name, SourceSite site) {
  named_call("VariableStore::reset()", site, [&] {
    const std::vector<StoredVariable*> group = group_of(name);
    const VariableLock held(*this, group, true);
    const CommitScope scope(commits_, group);
    for (StoredVariable* variable : group) {
      if (!variable->value_.defined()) continue;  // erased meanwhile
      const Tensor& start = variable->start_.defined() ? variable->start_ : group[0]->start_;
      if (start.defined()) {
        variable->value_.assign(start);
      } else if (variable->memory_ != kHostMemory) {
        variable->value_.assign(Tensor::zeros(variable->spec_.dtype, variable->spec_.shape));
      } else if (variable->value_.num_bytes() > 0) {
        std::memset(variable->value_.raw(), 0, variable->value_.num_bytes());
      }
    }
  });
}

void VariableStore::replace(std::string_view name, const Tensor& value, SourceSite site) {
  named_call("VariableStore::replace()", site, [&] {
    if (!value.defined()) throw InvalidArgument(str("variable '", name, "': the new value is empty"));
    const std::vector<StoredVariable*> group = group_of(name);
    const std::string own = group[0]->name();
    auto fresh = std::make_unique<StoredVariable>(*this, own, value, group[0]->home_);
    fresh->start_ = copied(value);
    fresh->made_at_ = group[0]->made_at_;
    const VariableRole role = find_role(name);
    forget(name, group, "replaced");
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->give_role(*fresh, role);
    state_->variables.insert_or_assign(own, std::move(fresh));
  });
}

StoredVariable& VariableStore::bind(std::string_view name) {
  StoredVariable& variable = must_find(*this, name);
  const std::lock_guard<std::mutex> lock(state_->mutex);
  ++variable.programs_;
  variable.was_bound_ = true;
  return variable;
}

void VariableStore::unbind(StoredVariable& variable) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  --variable.programs_;
}

void VariableStore::set(std::string_view name, const Tensor& value, SourceSite site) {
  named_call("VariableStore::set()", site, [&] {
    StoredVariable& variable = must_find(*this, name);
    if (!value.defined()) throw InvalidArgument(str("variable '", name, "': the new value is empty"));
    if (variable.spec() != value.spec()) {
      throw InvalidArgument(str("variable '", name, "' is ", variable.spec(), ", but the new value is ",
                                value.spec(), ": replace() takes one of another dtype or shape"));
    }
    // Copies that are one value stay one value.
    const VariableRole role = find_role(name);
    const bool alone = role.copies != CopyRule::kEqual || !role.copy_of.empty();
    const std::vector<StoredVariable*> written =
        alone ? std::vector<StoredVariable*>{&variable} : group_of(variable.name());
    const VariableLock lock(*this, written, true);
    const CommitScope scope(commits_, written);
    value_of(variable);
    for (StoredVariable* copy : written) {
      if (copy->storage().defined()) copy->storage().assign(value);
    }
  });
}

// A waiter counts itself before it looks at the epoch, and an unlocker raises the epoch before it looks at
// the count, all in one total order (seq_cst): so either the waiter sees the new epoch, or the unlocker sees
// the waiter and takes the mutex, which it gets only once the waiter sleeps.
void VariableStore::wait_for_change(std::uint32_t seen,
                                    std::optional<std::chrono::steady_clock::time_point> deadline) const {
  if (epoch() != seen) return;
  std::unique_lock<std::mutex> lock(state_->wait_mutex);
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  const auto changed = [this, seen] { return epoch_.load(std::memory_order_seq_cst) != seen; };
  if (deadline) {
    state_->changed.wait_until(lock, *deadline, changed);
  } else {
    state_->changed.wait(lock, changed);
  }
  waiters_.fetch_sub(1, std::memory_order_relaxed);
}

void VariableStore::announce() {
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_seq_cst) == 0) return;
  { const std::lock_guard<std::mutex> lock(state_->wait_mutex); }
  state_->changed.notify_all();
}

// --- the line

LockTurn::LockTurn(VariableStore& store, const RunLockSet& locks, Kind kind)
    : store_(store), locks_(locks), kind_(kind) {}

LockTurn::~LockTurn() {
  if (!joined_) return;
  leave();
  store_.announce();  // wakes the waiters that its reservation held back
}

bool LockTurn::try_lock() {
  seen_ = store_.epoch();
  passing_ = may_pass();
  if (kind_ == Kind::kAhead ? locks_.try_lock(true) : locks_.take(passing_)) {
    // No need to announce it: its locks now hold back the waiters that its reservation held back.
    if (joined_) leave();
    return true;
  }
  if (!joined_) join();
  if (is_first() && store_.first_was_overtaken_.load(std::memory_order_relaxed) &&
      std::chrono::steady_clock::now() >= store_.first_since() + kLate) {
    store_.first_is_late_.store(true, std::memory_order_relaxed);
  }
  return false;
}

void LockTurn::wait(std::optional<SteadyTime> deadline) {
  const bool passes = may_pass();
  if (passes && !passing_) return;  // since the try: nobody else would say so
  if (!passes) {
    const SteadyTime next = openings_of_line(store_.first_since(), std::chrono::steady_clock::now()).next;
    deadline = deadline ? std::min(*deadline, next) : next;
  } else if (is_first() && !store_.first_is_late_.load(std::memory_order_relaxed)) {
    const SteadyTime later = std::chrono::steady_clock::now() + kLate;
    deadline = deadline ? std::min(*deadline, later) : later;
  }
  store_.wait_for_change(seen_, deadline);
}

void LockTurn::lock() {
  while (!try_lock()) wait();
}

bool LockTurn::waits_for_rest() const {
  if (may_pass() || !store_.first_is_rest_.load(std::memory_order_relaxed)) return false;
  for (std::size_t i = 0; i < locks_.locks_.size(); ++i) {
    if (locks_.is_reserved(i)) return true;
  }
  return false;
}

bool LockTurn::is_first() const { return store_.first_.load(std::memory_order_relaxed) == this; }

bool LockTurn::may_pass() const {
  if (kind_ == Kind::kAhead) return true;
  if (!joined_) return false;
  if (is_first()) return true;
  const SteadyTime since = store_.first_since();
  const Openings openings = openings_of_line(since, std::chrono::steady_clock::now());
  return openings.last > since && since_ <= openings.last;
}

// Turns that go ahead do not stand in line, but the locks they wait for are kept from newcomers, too. Since
// they ignore reservations themselves, nobody who holds locks ever waits for a reservation.
void LockTurn::join() {
  since_ = std::chrono::steady_clock::now();
  const std::lock_guard<std::mutex> lock(store_.state_->wait_mutex);
  joined_ = true;
  if (kind_ == Kind::kAhead) {
    reserve();
    return;
  }
  VariableStore::State& line = *store_.state_;
  before_ = line.last;
  after_ = nullptr;
  (before_ == nullptr ? line.first : before_->after_) = this;
  line.last = this;
  if (line.first == this) store_.set_first(this);
}

void LockTurn::leave() {
  std::unique_lock<std::mutex> lock(store_.state_->wait_mutex);
  joined_ = false;
  if (kind_ == Kind::kAhead) {
    release();
    return;
  }
  VariableStore::State& line = *store_.state_;
  (before_ == nullptr ? line.first : before_->after_) = after_;
  (after_ == nullptr ? line.last : after_->before_) = before_;
  if (before_ == nullptr) {
    release();
    const bool late = store_.first_is_late_.load(std::memory_order_relaxed);
    store_.set_first(after_);
    lock.unlock();
    if (late) store_.announce();  // wakes the waiters that want none of the locks it holds now
  }
}

void LockTurn::reserve() const {
  for (std::size_t i = 0; i < locks_.locks_.size(); ++i) {
    locks_.locks_[i]->reserved_.fetch_add(locks_.exclusive_[i] ? RunLock::kOneWriter : RunLock::kOneReader,
                                          std::memory_order_relaxed);
  }
}

void LockTurn::release() const {
  for (std::size_t i = 0; i < locks_.locks_.size(); ++i) {
    locks_.locks_[i]->reserved_.fetch_sub(locks_.exclusive_[i] ? RunLock::kOneWriter : RunLock::kOneReader,
                                          std::memory_order_relaxed);
  }
}

SteadyTime VariableStore::first_since() const {
  return SteadyTime(SteadyTime::duration(first_since_.load(std::memory_order_relaxed)));
}

void VariableStore::set_first(const LockTurn* turn) {
  first_since_.store(std::chrono::steady_clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  first_is_late_.store(false, std::memory_order_relaxed);
  first_was_overtaken_.store(false, std::memory_order_relaxed);
  first_is_rest_.store(turn != nullptr && turn->kind_ == LockTurn::Kind::kRest, std::memory_order_relaxed);
  first_.store(turn, std::memory_order_relaxed);
  if (turn != nullptr) turn->reserve();
}

}  // namespace lockstep
