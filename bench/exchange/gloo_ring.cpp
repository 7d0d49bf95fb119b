// The rival: gloo::allreduce with its ring, over the same connections.
#include <filesystem>

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include "team.h"

namespace lockstep::bench {
namespace {

class GlooRing final : public Exchanger {
 public:
  GlooRing(int rank, int size, const std::string& folder) {
    const std::string own = folder + "/ring";
    std::filesystem::create_directories(own);
    gloo::rendezvous::FileStore store(own);
    gloo::transport::tcp::attr where;
    where.hostname = "127.0.0.1";
    auto device = gloo::transport::tcp::CreateDevice(where);
    context_ = std::make_shared<gloo::rendezvous::Context>(rank, size);
    context_->connectFullMesh(store, device);
  }
  void all_reduce(float* data, std::int64_t floats) override {
    gloo::AllreduceOptions options(context_);
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setOutput(data, static_cast<std::size_t>(floats));
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
    gloo::allreduce(options);
  }

 private:
  std::shared_ptr<gloo::rendezvous::Context> context_;
};

}  // namespace

std::unique_ptr<Exchanger> make_gloo_ring(int rank, int size, const std::string& folder) {
  return std::make_unique<GlooRing>(rank, size, folder);
}

}  // namespace lockstep::bench
