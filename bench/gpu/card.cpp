// bench/gpu/card.cpp - the card beside Lockstep: what CUDA alone reaches on it.
#include "card.h"

#include "by_hand.h"
#include "lockstep/core/error.h"

namespace lockstep::bench {

namespace {

constexpr std::size_t kCopied = std::size_t{1} << 30U;
constexpr std::size_t kTiny = 4 * sizeof(float);

}  // namespace

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw Error(ErrorCode::kInternal, str(what, ": ", cudaGetErrorString(status)));
}

bool has_card() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  return status == cudaSuccess && count > 0;
}

std::string card_name() {
  if (!has_card()) return {};
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "the card's properties");
  return properties.name;
}

std::size_t used_card_bytes() {
  std::size_t available = 0, total = 0;
  check(cudaMemGetInfo(&available, &total), "the card's free memory");
  return total - available;
}

CardMemory::CardMemory(std::size_t bytes) {
  check(cudaMalloc(&data_, bytes), "memory of the card");
  cudaError_t status = cudaMemset(data_, 0, bytes);
  // Streams that do not block do not wait for it.
  if (status == cudaSuccess) status = cudaDeviceSynchronize();
  if (status == cudaSuccess) return;
  static_cast<void>(cudaFree(data_));
  check(status, "zeros in memory of the card");
}
CardMemory::~CardMemory() { static_cast<void>(cudaFree(data_)); }

CardStream::CardStream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream"); }
CardStream::~CardStream() { static_cast<void>(cudaStreamDestroy(stream_)); }
void CardStream::synchronize() const { check(cudaStreamSynchronize(stream_), "work on a stream"); }

CapturedGraph::CapturedGraph(const CardStream& stream, const std::function<void(cudaStream_t)>& put)
    : stream_(stream) {
  check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "the begin of a capture");
  put(stream.get());
  cudaGraph_t captured = nullptr;
  check(cudaStreamEndCapture(stream.get(), &captured), "the end of a capture");
  const cudaError_t status = cudaGraphInstantiate(&graph_, captured, 0);
  static_cast<void>(cudaGraphDestroy(captured));
  check(status, "a graph");
}
CapturedGraph::~CapturedGraph() { static_cast<void>(cudaGraphExecDestroy(graph_)); }

void CapturedGraph::run(std::size_t times) const {
  for (std::size_t i = 0; i < times; ++i) check(cudaGraphLaunch(graph_, stream_.get()), "a graph's launch");
  stream_.synchronize();
}

Copy::Copy() : from_(kCopied), to_(kCopied) {}
double Copy::bytes() { return 2.0 * static_cast<double>(kCopied); }
void Copy::run(std::size_t times) const {
  for (std::size_t i = 0; i < times; ++i) {
    check(cudaMemcpyAsync(to_.data(), from_.data(), kCopied, cudaMemcpyDeviceToDevice, stream_.get()),
          "a copy within the card");
  }
  stream_.synchronize();
}
Contender Copy::contender() const {
  return {"copy", [this](std::size_t times) { run(times); }};
}

HandGraph::HandGraph(int kernels) : one_(kTiny), other_(kTiny) {
  graph_ = std::make_unique<CapturedGraph>(stream_, [&](cudaStream_t stream) {
    float* in = static_cast<float*>(one_.data());
    float* out = static_cast<float*>(other_.data());
    for (int i = 0; i < kernels; ++i) {
      launch_add(stream, in, out);
      check(cudaGetLastError(), "the launch of an addition");
      std::swap(in, out);
    }
  });
  graph_->run(1);
}

}  // namespace lockstep::bench
