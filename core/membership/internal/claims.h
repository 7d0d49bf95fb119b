// core/membership/internal/claims.h - whether all members of a job claim the same.
//
// Before members rely on being equal, each claims a hash of what should be: a program's schedule, its constants. Where two hashes
// differ, the texts behind them are asked for, and all are told the first line that differs.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/base/steady_time.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {

class LOCKSTEP_API Claims {
 public:
  explicit Claims(int members) : members_(members) {}

  // What members are to be told.
  struct Outcome {
    std::string subject;
    ErrorCode code = ErrorCode::kInternal;
    std::string why;  // empty: all agree
    std::vector<int> whom;
  };
  struct Question {
    std::string subject;
    int whom = 0;
  };

  // A member claims something about a subject, which no two claims of one member share. No deadline: it waits for as long as it
  // takes.
  void claim(int member, const std::string& subject, const std::string& hash, SteadyTime now,
             std::optional<SteadyTime> deadline);
  void text(int member, const std::string& subject, std::string_view text);
  void tick(SteadyTime now);
  std::optional<SteadyTime> next_tick() const;

  std::vector<Outcome> take_outcomes();
  std::vector<Question> take_questions();
  // How a member is called.
  void name(int member, const std::string& task) { names_[member] = task; }

 private:
  struct Subject {
    std::map<int, std::string> hashes = {};  // by member
    std::set<int> told = {};
    std::optional<SteadyTime> deadline = {};  // the first of any member
    // Two that differ, and their texts, once they have come.
    int one = -1, other = -1;
    std::optional<std::string> text_of_one = {}, text_of_other = {};
    std::optional<SteadyTime> texts_until = {};
    std::string why = {};  // it failed
    ErrorCode code = ErrorCode::kInternal;
  };

  void fail(const std::string& name, Subject& subject, ErrorCode code, std::string why);
  void tell(const std::string& name, Subject& subject);
  std::string called(int member) const;

  const int members_;
  std::map<int, std::string> names_;
  std::map<std::string, Subject, std::less<>> subjects_;
  std::vector<Outcome> outcomes_;
  std::vector<Question> questions_;
};

// "line 3 is 'a' on worker:0 and 'b' on worker:1", or what else differs.
LOCKSTEP_API std::string first_difference(std::string_view one, std::string_view one_text,
                                          std::string_view other, std::string_view other_text);

}  // namespace lockstep::internal
