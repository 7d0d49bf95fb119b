// core/membership/claims.cpp - whether all members of a job claim the same.
#include "lockstep/core/membership/internal/claims.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/base/printable.h"

namespace lockstep::internal {
namespace {

constexpr std::chrono::milliseconds kForTexts{500};
constexpr std::size_t kMostOfALine = 400;

std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

std::string quoted(std::string_view line) {
  const bool is_long = line.size() > kMostOfALine;
  return str("'", printable(line.substr(0, kMostOfALine)), is_long ? "...'" : "'");
}

}  // namespace

std::string first_difference(std::string_view one, std::string_view one_text, std::string_view other,
                             std::string_view other_text) {
  for (int line = 1; !one_text.empty() || !other_text.empty(); ++line) {
    const std::string_view a = first_line(one_text), b = first_line(other_text);
    if (one_text.empty())
      return str("line ", line, " is missing on ", one, "; on ", other, " it is ", quoted(b));
    if (other_text.empty())
      return str("line ", line, " is missing on ", other, "; on ", one, " it is ", quoted(a));
    if (a != b) return str("line ", line, " is ", quoted(a), " on ", one, " and ", quoted(b), " on ", other);
    one_text.remove_prefix(std::min(a.size() + 1, one_text.size()));
    other_text.remove_prefix(std::min(b.size() + 1, other_text.size()));
  }
  return str(one, " and ", other, " have different hashes of the same text");
}

std::string Claims::called(int member) const {
  const auto found = names_.find(member);
  return found == names_.end() ? str("member ", member) : found->second;
}

void Claims::claim(int member, const std::string& name, const std::string& hash, SteadyTime now,
                   std::optional<SteadyTime> deadline) {
  Subject& subject = subjects_[name];
  subject.hashes[member] = hash;
  if (!subject.why.empty()) {
    tell(name, subject);
    return;
  }
  if (deadline && (!subject.deadline || *deadline < *subject.deadline)) subject.deadline = deadline;
  if (subject.one >= 0) return;  // it is known that they differ
  const auto [first, its_hash] = *subject.hashes.begin();
  for (const auto& [another, its] : subject.hashes) {
    if (its == its_hash) continue;
    subject.one = first;
    subject.other = another;
    subject.texts_until = now + kForTexts;
    questions_.push_back({name, first});
    questions_.push_back({name, another});
    return;
  }
  if (static_cast<int>(subject.hashes.size()) == members_) {
    tell(name, subject);
    subjects_.erase(name);
  }
}

void Claims::text(int member, const std::string& name, std::string_view text) {
  const auto found = subjects_.find(name);
  if (found == subjects_.end() || !found->second.why.empty()) return;
  Subject& subject = found->second;
  if (member == subject.one) subject.text_of_one = text;
  if (member == subject.other) subject.text_of_other = text;
  if (subject.text_of_one && subject.text_of_other)
    fail(name, subject, ErrorCode::kInvalidArgument,
         first_difference(called(subject.one), *subject.text_of_one, called(subject.other),
                          *subject.text_of_other));
}

void Claims::tick(SteadyTime now) {
  for (auto& [name, subject] : subjects_) {
    if (!subject.why.empty()) continue;
    if (subject.one >= 0) {
      if (now >= *subject.texts_until)
        fail(name, subject, ErrorCode::kInvalidArgument,
             str(called(subject.one), " and ", called(subject.other), " differ"));
    } else if (subject.deadline && now >= *subject.deadline) {
      std::string missing;
      for (int member = 0; member < members_; ++member) {
        if (!subject.hashes.contains(member)) missing += str(missing.empty() ? "" : ", ", called(member));
      }
      fail(name, subject, ErrorCode::kDeadlineExceeded,
           str("the deadline passed before it was reached by ", missing));
    }
  }
}

std::optional<SteadyTime> Claims::next_tick() const {
  std::optional<SteadyTime> next;
  for (const auto& [name, subject] : subjects_) {
    if (!subject.why.empty()) continue;
    const std::optional<SteadyTime>& its = subject.one >= 0 ? subject.texts_until : subject.deadline;
    if (its && (!next || *its < *next)) next = its;
  }
  return next;
}

void Claims::fail(const std::string& name, Subject& subject, ErrorCode code, std::string why) {
  subject.why = std::move(why);
  subject.code = code;
  subject.text_of_one = subject.text_of_other = std::nullopt;
  tell(name, subject);
}

// Those that have claimed it and do not know yet.
void Claims::tell(const std::string& name, Subject& subject) {
  Outcome outcome{.subject = name, .code = subject.code, .why = subject.why, .whom = {}};
  for (const auto& [member, hash] : subject.hashes) {
    if (subject.told.insert(member).second) outcome.whom.push_back(member);
  }
  outcomes_.push_back(std::move(outcome));
}

std::vector<Claims::Outcome> Claims::take_outcomes() { return std::exchange(outcomes_, {}); }
std::vector<Claims::Question> Claims::take_questions() { return std::exchange(questions_, {}); }

}  // namespace lockstep::internal
