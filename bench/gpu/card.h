// bench/gpu/card.h - the card beside Lockstep: what CUDA alone reaches on it.
//
//   if (!has_card()) return;
//   Copy copy;                              // its copy rate, as a contender
//   HandGraph hand(1000);                   // tiny kernels in a CUDA graph
//
// Everything here works on streams of its own. Throws Error with the name of the call that failed.
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include <cuda_runtime_api.h>

#include "support/measure.h"

namespace lockstep::bench {

// A card that CUDA can use; its name, empty without one.
bool has_card();
std::string card_name();
// Of the memory of card 0, in use by all processes.
std::size_t used_card_bytes();

void check(cudaError_t status, const char* what);

// Memory of the card.
class CardMemory {
 public:
  explicit CardMemory(std::size_t bytes);
  ~CardMemory();
  CardMemory(const CardMemory&) = delete;
  CardMemory& operator=(const CardMemory&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

class CardStream {
 public:
  CardStream();
  ~CardStream();
  CardStream(const CardStream&) = delete;
  CardStream& operator=(const CardStream&) = delete;
  cudaStream_t get() const { return stream_; }
  void synchronize() const;

 private:
  cudaStream_t stream_ = nullptr;
};

// What `put` puts on a stream, as a graph.
class CapturedGraph {
 public:
  CapturedGraph(const CardStream& stream, const std::function<void(cudaStream_t)>& put);
  ~CapturedGraph();
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;
  // So many times, and waits for them.
  void run(std::size_t times) const;

 private:
  const CardStream& stream_;
  cudaGraphExec_t graph_ = nullptr;
};

// Copies of 1 GiB within the card.
class Copy {
 public:
  Copy();
  static double bytes();  // read and written by one copy
  // So many copies, and waits for them.
  void run(std::size_t times) const;
  Contender contender() const;

 private:
  CardMemory from_, to_;
  CardStream stream_;
};

// A chain of kernels that each add 4 floats, captured from a stream.
class HandGraph {
 public:
  explicit HandGraph(int kernels);
  void run(std::size_t times) const { graph_->run(times); }

 private:
  CardMemory one_, other_;
  CardStream stream_;
  std::unique_ptr<CapturedGraph> graph_;
};

}  // namespace lockstep::bench
