// bench/all_reduce/rivals.h - who reduces N arrays of floats into their sum, in place, on every participant.
//
// A rival is made once for a number of participants; run() does so many all-reduces one after another on the
// first `floats` of each array, with every participant on a thread (MPI: in a process) of its own, and
// returns when all are done. Between two runs its participants sleep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::bench {

// The arrays of all participants that are threads of this process.
class Arrays {
 public:
  Arrays(int participants, std::int64_t floats);
  int participants() const { return static_cast<int>(arrays_.size()); }
  float* operator[](int participant) const { return arrays_[static_cast<std::size_t>(participant)].get(); }
  void fill(std::int64_t floats) const;  // participant p: p + 1
  bool are_all(std::int64_t floats, float value) const;

 private:
  struct Free {
    void operator()(float* memory) const;
  };
  std::vector<std::unique_ptr<float, Free>> arrays_;
};

class Rival {
 public:
  virtual ~Rival() = default;
  virtual std::string name() const = 0;
  virtual void run(std::int64_t floats, std::size_t times) = 0;
  // Whether it works on the arrays of all, in place, so that they can be looked at.
  virtual bool in_place() const { return true; }
};

// Null where the rival was not found when this was built, or cannot run here.
std::unique_ptr<Rival> make_by_hand(const Arrays& arrays);
std::unique_ptr<Rival> make_communicator(const Arrays& arrays);
std::unique_ptr<Rival> make_gloo(const Arrays& arrays);
// Has arrays of its own, and checks its first sum of every size.
std::unique_ptr<Rival> make_mpi(int participants);

// A compiled program in which a node sums the arrays of all replicas; it has arrays of its own, and checks
// its first sum of every size. kWithout: the same program without that node.
enum class ProgramKind { kCopied, kShared, kWithout };
std::unique_ptr<Rival> make_program(int participants, ProgramKind kind);
// The sum alone, by one thread that waits for nobody: what no node can do without.
std::unique_ptr<Rival> make_sum_alone(const Arrays& arrays, ProgramKind kind);

}  // namespace lockstep::bench
