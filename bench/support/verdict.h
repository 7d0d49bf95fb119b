// bench/support/verdict.h - targets, what was measured, and whether they were met.
#pragma once

#include <string>
#include <vector>

namespace lockstep::bench {

class Verdicts {
 public:
  // One measurement against a limit of a target; several of one target are printed as one line, the worst
  // first.
  void at_most(const std::string& target, const std::string& where, double figure, double limit);
  void at_least(const std::string& target, const std::string& where, double figure, double limit);
  // Prints the block; returns the number of targets missed.
  std::size_t print() const;
  std::string json() const;

 private:
  struct Case {
    std::string where;
    double figure;
    double limit;
    double excess;  // above 1: missed
  };
  struct Target {
    std::string name;
    const char* relation;
    std::vector<Case> cases;
  };
  void add(const std::string& target, const char* relation, Case measured);
  std::vector<Target> targets_;
};

}  // namespace lockstep::bench
