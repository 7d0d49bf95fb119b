#include "support/verdict.h"

#include <algorithm>
#include <cstdio>

namespace lockstep::bench {

void Verdicts::add(const std::string& target, const char* relation, Case measured) {
  auto place =
      std::find_if(targets_.begin(), targets_.end(), [&](const Target& t) { return t.name == target; });
  if (place == targets_.end()) place = targets_.insert(targets_.end(), {target, relation, {}});
  place->cases.push_back(std::move(measured));
}

void Verdicts::at_most(const std::string& target, const std::string& where, double figure, double limit) {
  // A figure below zero is well within. Of a limit of zero, nothing is near.
  add(target, "<=", {where, figure, limit, limit > 0 ? figure / limit : figure > 0 ? 1e9 : 0});
}

void Verdicts::at_least(const std::string& target, const std::string& where, double figure, double limit) {
  add(target, ">=", {where, figure, limit, figure > 0 ? limit / figure : 1e9});
}

std::size_t Verdicts::print() const {
  std::size_t missed = 0;
  std::printf("\nTargets (the worst case first; all that miss are named)\n");
  for (const Target& target : targets_) {
    std::vector<Case> cases = target.cases;
    std::stable_sort(cases.begin(), cases.end(),
                     [](const Case& a, const Case& b) { return a.excess > b.excess; });
    const bool pass = cases.front().excess <= 1;
    missed += pass ? 0 : 1;
    std::printf("  %s  %-58s", pass ? "PASS" : "MISS", target.name.c_str());
    for (std::size_t k = 0; k < cases.size() && (k == 0 || cases[k].excess > 1); ++k) {
      std::printf("%s%.4g%s%s", k == 0 ? " " : ", ", cases[k].figure, cases[k].where.empty() ? "" : " ",
                  cases[k].where.c_str());
    }
    std::printf("  (%s %.4g)\n", target.relation, cases.front().limit);
  }
  return missed;
}

std::string Verdicts::json() const {
  std::string out = "[";
  for (const Target& target : targets_) {
    for (const Case& measured : target.cases) {
      char line[512];
      std::snprintf(line, sizeof line,
                    R"(%s{"target": "%s", "where": "%s", "figure": %.6g, "limit": %.6g, "pass": %s})",
                    out.size() > 1 ? ",\n  " : "\n  ", target.name.c_str(), measured.where.c_str(),
                    measured.figure, measured.limit, measured.excess <= 1 ? "true" : "false");
      out += line;
    }
  }
  return out + "\n]";
}

}  // namespace lockstep::bench
