// bench/exchange/team.h - processes that make the same exchanges at the same time.
//
// The first one measures. It makes the others by fork(), before it has any thread, and tells them through pipes what to do; they
// sleep on these in between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sys/types.h>

namespace lockstep::bench {

// Who sums arrays of floats over all processes, in place: one participant of a group.
class Exchanger {
 public:
  virtual ~Exchanger() = default;
  virtual void all_reduce(float* data, std::int64_t floats) = 0;
};

// Makes the exchanger of a rank in a group of `size` processes that meet in a folder.
using MakeExchanger =
    std::function<std::unique_ptr<Exchanger>(int rank, int size, const std::string& folder)>;
std::unique_ptr<Exchanger> make_lockstep(int rank, int size, const std::string& folder);
std::unique_ptr<Exchanger> make_connected(int rank, int size, const std::string& folder);
std::unique_ptr<Exchanger> make_gloo_ring(int rank, int size, const std::string& folder);

class Team {
 public:
  Team(int size, std::int64_t most_floats, std::vector<MakeExchanger> makers);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }
  // Makes the groups; to be called once, before what follows.
  void connect();
  // Whether the sum of arrays is right in every process. Afterwards they hold zeros.
  bool check(std::size_t exchanger, std::int64_t floats);
  void run(std::size_t exchanger, std::int64_t floats, std::size_t times);

 private:
  struct Order;
  struct Process;
  class Member;
  void tell(const Order& order) const;
  bool all_answer() const;

  int size_;
  std::string folder_;
  std::vector<Process> others_;
  std::unique_ptr<Member> self_;
};

}  // namespace lockstep::bench
