// graph/run/plan_cache.cpp - the plans of a program, and who uses them.
#include "lockstep/graph/run/internal/plan_cache.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "lockstep/graph/run/internal/drain.h"

namespace lockstep::internal {

namespace {

// A device that is lost counts as over here: the next run says so.
bool is_over(const RunContext& context) {
  try {
    return context.is_over();
  } catch (const std::exception&) {
    return true;
  }
}

// Is the plan for these feeds, and for results in these places, if there are any?
bool matches(const Plan& plan, std::span<const Tensor> feeds, std::span<const Tensor> results) {
  for (std::size_t i = 0; i < feeds.size(); ++i) {
    const PlacedSpec& expected = plan.feeds[i];
    if (!feeds[i].defined() || feeds[i].spec() != expected.spec || feeds[i].memory() != expected.memory)
      return false;
  }
  if (results.empty()) return plan.results_where_made;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].memory() != plan.results[i].memory) return false;
  }
  return true;
}

}  // namespace

// --- a plan

PlannedProgram::PlannedProgram(const Runtime& runtime, VariableStore& store, std::unique_ptr<const Plan> plan,
                               std::size_t ahead)
    : runtime_(runtime),
      gate_(store.commits()),
      plan_(std::move(plan)),
      ahead_(plan_->runs_ahead ? std::max<std::size_t>(ahead, 1) : 1) {
  for (const PlannedVariable& variable : plan_->variables) {
    StoredVariable* stored = store.find(variable.name);
    LOCKSTEP_CHECK(stored != nullptr, "variable '", variable.name, "' is not in the store");
    variables_.push_back(stored);
    if (variable.written) written_.push_back(stored);
    locks_.add(*stored, variable.written);
  }
  if (plan_->draws_random) locks_.add(store.step_lock(), true);
  const auto is_far = [](const auto& placed) { return placed.memory != kHostMemory; };
  uses_devices_ = !plan_->streams.empty() || std::ranges::any_of(plan_->feeds, is_far) ||
                  std::ranges::any_of(plan_->results, is_far) ||
                  std::ranges::any_of(plan_->variables, is_far);
}

std::shared_ptr<StreamRun::Decision> PlannedProgram::decision() const {
  const std::lock_guard<std::mutex> lock(deciding_);
  return decision_;
}

RunContext* PlannedProgram::take_free() {
  if (free_.empty()) return nullptr;
  const auto taken = ahead_ > 1 ? free_.begin() : free_.end() - 1;
  RunContext* const context = *taken;
  if (contexts_.size() < ahead_ && !is_over(*context)) return nullptr;
  free_.erase(taken);
  return context;
}

RunContext* PlannedProgram::adopt(std::unique_ptr<RunContext> fresh) {
  free_.reserve(contexts_.size() + 1);
  contexts_.push_back(std::move(fresh));
  return contexts_.back().get();
}

std::unique_ptr<RunContext> PlannedProgram::take_out(const RunContext& context) {
  const auto found = std::ranges::find(contexts_, &context, &std::unique_ptr<RunContext>::get);
  std::unique_ptr<RunContext> taken = std::move(*found);
  contexts_.erase(found);
  return taken;
}

std::unique_ptr<RunContext> PlannedProgram::make_context() const {
  const std::lock_guard<std::mutex> lock(making_);
  auto context = std::make_unique<RunContext>(*plan_, runtime_, &shared_arenas_);
  context->set_commit(gate_, written_);
  if (ahead_ > 1) {
    const std::lock_guard<std::mutex> deciding(deciding_);
    context->run_ahead(decision_);
  }
  return context;
}

std::vector<std::shared_ptr<WorkInFlight>> PlannedProgram::work_ahead() const {
  std::vector<std::shared_ptr<WorkInFlight>> found;
  for (const std::unique_ptr<RunContext>& context : contexts_) {
    if (context->runs_ahead()) found.push_back(context->work());
  }
  return found;
}

// --- the cache

std::shared_ptr<PlannedProgram> PlanCache::find(std::span<const PlacedSpec> feeds,
                                                std::span<const MemoryId> results) {
  const auto fits = [&](const Plan& plan) {
    if (!std::ranges::equal(plan.feeds, feeds)) return false;
    if (results.empty()) return plan.results_where_made;
    return std::ranges::equal(plan.results, results, {}, &PlacedSpec::memory);
  };
  const auto look = [&]() -> std::shared_ptr<PlannedProgram> {
    for (auto entry = plans_.begin(); entry != plans_.end(); ++entry) {
      if (!fits((*entry)->plan())) continue;
      plans_.splice(plans_.begin(), plans_, entry);
      return plans_.front();
    }
    return nullptr;
  };
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (auto found = look()) return found;
  }
  PlanRequest request;
  request.feeds = feeds;
  request.results = results;
  request.variable_specs = variable_specs(graph_);
  request.variable_memory = [&](const std::string& name) { return store_.find(name)->memory(); };
  auto fresh = std::make_shared<PlannedProgram>(
      runtime_, store_, make_plan(graph_, runtime_, request, options_), options_.runs_ahead);
  std::shared_ptr<PlannedProgram> dropped;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (auto found = look()) return found;
    plans_.push_front(fresh);
    if (plans_.size() > options_.max_plans) {
      if (plans_.back()->leases_ > 0) dropped_.push_back(plans_.back());
      dropped = std::move(plans_.back());
      dropped->dropped_ = true;
      plans_.pop_back();
    }
  }
  return fresh;
}

std::size_t PlanCache::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return plans_.size();
}

std::vector<std::shared_ptr<PlannedProgram>> PlanCache::all() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<PlannedProgram>> found(plans_.begin(), plans_.end());
  found.insert(found.end(), dropped_.begin(), dropped_.end());
  return found;
}

std::vector<std::shared_ptr<WorkInFlight>> PlanCache::work_ahead(const PlannedProgram& planned) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return planned.work_ahead();
}

// Under the mutex: takes a plan out that the cache dropped while it was leased.
std::shared_ptr<PlannedProgram> PlanCache::take_dropped(const PlannedProgram& plan) {
  const auto found = std::ranges::find(dropped_, &plan, &std::shared_ptr<PlannedProgram>::get);
  std::shared_ptr<PlannedProgram> taken = std::move(*found);
  dropped_.erase(found);
  return taken;
}

// --- a lease

PlanCache::Lease::Lease(PlanCache& cache, std::span<const Tensor> feeds, std::span<const Tensor> results)
    : cache_(cache) {
  FeedCheck(cache.graph_).count(feeds.size());
  if (results.size() != cache.graph_.results().size()) results = {};
  {
    const std::lock_guard<std::mutex> lock(cache.mutex_);
    if (!cache.plans_.empty() && matches(cache.plans_.front()->plan(), feeds, results)) {
      planned_ = cache.plans_.front().get();
      ++planned_->leases_;
      context_ = planned_->take_free();
    }
  }
  if (planned_ == nullptr) find_plan(feeds, results);
  if (context_ == nullptr) make_context();
}

void PlanCache::Lease::find_plan(std::span<const Tensor> feeds, std::span<const Tensor> results) {
  FeedCheck(cache_.graph_).all(feeds);
  std::vector<PlacedSpec> placed;
  for (const Tensor& feed : feeds) placed.push_back({feed.spec(), feed.memory()});
  std::vector<MemoryId> wanted;
  for (const Tensor& result : results) wanted.push_back(result.memory());
  const std::shared_ptr<PlannedProgram> found = cache_.find(placed, wanted);
  const std::lock_guard<std::mutex> lock(cache_.mutex_);
  if (found->dropped_ && found->leases_ == 0) cache_.dropped_.push_back(found);
  planned_ = found.get();
  ++planned_->leases_;
  context_ = planned_->take_free();
}

void PlanCache::Lease::make_context() {
  try {
    std::unique_ptr<RunContext> fresh = planned_->make_context();
    const std::lock_guard<std::mutex> lock(cache_.mutex_);
    context_ = planned_->adopt(std::move(fresh));
  } catch (...) {
    end();
    throw;
  }
}

void PlanCache::Lease::end() noexcept {
  std::shared_ptr<PlannedProgram> unused;  // destroyed without the mutex
  const std::lock_guard<std::mutex> lock(cache_.mutex_);
  if (context_ != nullptr) planned_->give_back(*context_);
  if (--planned_->leases_ == 0 && planned_->dropped_) unused = cache_.take_dropped(*planned_);
}

void PlanCache::Lease::leave_behind(std::shared_ptr<const void> keeper, std::span<const Tensor> feeds,
                                    std::span<const Tensor> results, bool given) noexcept {
  RunContext& context = *std::exchange(context_, nullptr);
  // The keeper has the plan, the variables and the runtime.
  const auto end = [keeper = std::move(keeper), &cache = cache_, planned = planned_->shared_from_this(),
                    &context] {
    planned->locks().unlock();
    std::unique_ptr<RunContext> over;
    const std::lock_guard<std::mutex> lock(cache.mutex_);
    over = planned->take_out(context);
  };
  const bool on_streams = !planned_->plan().streams.empty();
  try {
    std::vector<Tensor> kept(feeds.begin(), on_streams ? feeds.end() : feeds.begin());
    if (on_streams) kept.insert(kept.end(), results.begin(), results.end());
    const bool waits = given && on_streams;
    if (!waits && drain(context.flights(), [end, kept] { end(); })) return;
  } catch (const std::bad_alloc&) {  // wait here, as without a thread
  }
  while (context.flights().any()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  end();
}

}  // namespace lockstep::internal
