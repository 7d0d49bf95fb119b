// bench/all_reduce/threads.h - participants on threads that sleep until they are needed.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace lockstep::bench {

class Threads {
 public:
  // `pinned`: participant p runs on processor p, or p modulo their number.
  Threads(int count, bool pinned);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  // body(participant) on every thread; returns when all have returned.
  void run(const std::function<void(int)>& body);

 private:
  void work(int participant);

  std::mutex mutex_;
  std::condition_variable called_, finished_;
  const std::function<void(int)>* body_ = nullptr;
  std::size_t call_ = 0;
  int running_ = 0;
  bool stops_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::bench
