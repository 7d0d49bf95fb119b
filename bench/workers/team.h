// bench/workers/team.h - workers as processes, of which this one is the first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/participant.h"

namespace lockstep::bench {

// A worker's part in the steps of a model.
using MakeWorker = std::function<std::unique_ptr<Participant>(
    const std::string& model, std::int64_t batch, int rank, int size, const std::filesystem::path& folder)>;

class Team {
 public:
  // Makes the other processes: before this one has threads.
  Team(int size, MakeWorker make);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }
  // The first worker's part; the others make theirs at the same time, and do what it does.
  std::unique_ptr<Participant> make(const std::string& model, std::int64_t batch);

 private:
  friend class Leader;
  void tell(const std::string& line) const;
  void follow(int rank, int commands) const;

  int size_;
  MakeWorker make_;
  std::filesystem::path folder_;
  std::vector<int> pipes_, children_;
  int made_ = 0;
};

}  // namespace lockstep::bench
