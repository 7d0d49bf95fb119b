#include "lockstep/core/variable_store.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <utility>

namespace lockstep {
namespace {

// Waits for a lock that can only be tried. The epoch is read before the try: an unlock after a failed try
// then changes it, and no wake-up is lost.
template <class Try>
void lock_patiently(const VariableStore& store, Try try_lock) {
  for (;;) {
    const std::uint32_t seen = store.epoch();
    if (try_lock()) return;
    store.wait_for_change(seen, std::nullopt);
  }
}

struct SharedLock {
  explicit SharedLock(const VariableStore& store, StoredVariable& v) : variable(v) {
    lock_patiently(store, [&v] { return v.try_lock_shared(); });
  }
  SharedLock(const SharedLock&) = delete;
  SharedLock& operator=(const SharedLock&) = delete;
  ~SharedLock() { variable.unlock_shared(); }
  StoredVariable& variable;
};

struct ExclusiveLock {
  explicit ExclusiveLock(const VariableStore& store, StoredVariable& v) : variable(v) {
    lock_patiently(store, [&v] { return v.try_lock_exclusive(); });
  }
  ExclusiveLock(const ExclusiveLock&) = delete;
  ExclusiveLock& operator=(const ExclusiveLock&) = delete;
  ~ExclusiveLock() { variable.unlock_exclusive(); }
  StoredVariable& variable;
};

StoredVariable& must_find(VariableStore& store, std::string_view name) {
  StoredVariable* variable = store.find(name);
  if (variable == nullptr) {
    throw NotFound(str("variable '", name, "' does not exist in this store: names() lists the ",
                       store.names().size(),
                       " that do; variables are made when a program that uses them is compiled"));
  }
  return *variable;
}

void check_same_spec(std::string_view name, const TensorSpec& have, const TensorSpec& wanted,
                     const char* source) {
  if (have == wanted) return;
  throw InvalidArgument(str("variable '", name, "' is ", have, ", but ", source, " ", wanted));
}

}  // namespace

StoredVariable::StoredVariable(VariableStore& store, std::string name, Tensor value)
    : RunLock(store), name_(std::move(name)), value_(std::move(value)) {}

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
  users_.fetch_sub(1, std::memory_order_release);
  store_.announce_unlock();
}

void RunLock::unlock_exclusive() {
  users_.store(0, std::memory_order_release);
  store_.announce_unlock();
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

bool RunLockSet::try_lock() const {
  for (std::size_t i = 0; i < locks_.size(); ++i) {
    if (is_blocked_by(i)) return false;
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
  std::mutex mutex;  // of the names
  std::map<std::string, std::unique_ptr<StoredVariable>, std::less<>> variables;
  std::map<const StoredVariable*, VariableRole> roles;  // of those that say something
  std::map<std::string, StoredVariable*, std::less<>> aliases;
  // Nobody touches these but waiters, and unlockers while there are waiters.
  std::mutex wait_mutex;
  std::condition_variable changed;

  VariableRole role_of(const StoredVariable& variable) const {  // under the mutex
    const auto found = roles.find(&variable);
    return found == roles.end() ? VariableRole() : found->second;
  }
};

VariableStore::VariableStore() : state_(std::make_unique<State>()) {}
VariableStore::~VariableStore() = default;

StoredVariable& VariableStore::find_or_create(std::string_view name, const TensorSpec& spec,
                                              const std::function<Tensor()>& initial,
                                              const VariableRole& role) {
  const auto give_role = [&](const StoredVariable& variable) {  // under the lock
    if (role != VariableRole()) state_->roles[&variable] = role;
  };
  if (StoredVariable* variable = find(name)) {
    check_same_spec(name, variable->spec(), spec, "it is used as");
    const std::lock_guard<std::mutex> lock(state_->mutex);
    give_role(*variable);
    return *variable;
  }
  // Without the lock: the function is the caller's and may use this store. Of two threads the first to come
  // wins.
  const Tensor made = initial ? initial() : Tensor();
  if (!made.defined()) throw InvalidArgument(str("variable '", name, "': its initial value is empty"));
  if (made.spec() != spec) {
    throw InvalidArgument(
        str("variable '", name, "': declared as ", spec, ", but its initial value is ", made.spec()));
  }
  auto fresh = std::make_unique<StoredVariable>(*this, std::string(name), made.clone());
  const std::lock_guard<std::mutex> lock(state_->mutex);
  StoredVariable& variable =
      *state_->variables.try_emplace(std::string(name), std::move(fresh)).first->second;
  check_same_spec(name, variable.spec(), spec, "it is used as");
  give_role(variable);
  return variable;
}

VariableRole VariableStore::role(std::string_view name) const {
  const StoredVariable& variable = must_find(const_cast<VariableStore&>(*this), name);
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->role_of(variable);
}

std::vector<std::pair<StoredVariable*, VariableRole>> VariableStore::originals() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  std::vector<std::pair<StoredVariable*, VariableRole>> result;
  for (const auto& [name, variable] : state_->variables)
    result.emplace_back(variable.get(), state_->role_of(*variable));
  return result;
}

StoredVariable& VariableStore::alias(std::string_view name, std::string_view target) {
  StoredVariable& variable = must_find(*this, target);
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const bool taken = state_->variables.find(name) != state_->variables.end();
  if (taken || state_->aliases.try_emplace(std::string(name), &variable).first->second != &variable) {
    throw InvalidArgument(str("variable '", name, "' cannot become another name for '", target,
                              "': ", taken ? "it has a value of its own" : "it is one for another variable",
                              "; use another store"));
  }
  return variable;
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

Tensor VariableStore::value(std::string_view name) {
  StoredVariable& variable = must_find(*this, name);
  const SharedLock lock(*this, variable);
  return variable.storage().clone();
}

void VariableStore::set(std::string_view name, const Tensor& value) {
  StoredVariable& variable = must_find(*this, name);
  if (!value.defined()) throw InvalidArgument(str("variable '", name, "': the new value is empty"));
  check_same_spec(name, variable.spec(), value.spec(), "the new value is");
  const ExclusiveLock lock(*this, variable);
  variable.storage().assign(value);
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

void VariableStore::announce_unlock() {
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_seq_cst) == 0) return;
  { const std::lock_guard<std::mutex> lock(state_->wait_mutex); }
  state_->changed.notify_all();
}

}  // namespace lockstep
