// The rival: Gloo, a context per thread, over TCP on the loopback device (it has no shared memory transport).
#include "rivals.h"

#if defined(LOCKSTEP_BENCH_GLOO)

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/hash_store.h>
#include <gloo/transport/tcp/device.h>

#include "threads.h"

namespace lockstep::bench {
namespace {

class Gloo final : public Rival {
 public:
  explicit Gloo(const Arrays& arrays)
      : arrays_(arrays),
        contexts_(static_cast<std::size_t>(arrays.participants())),
        threads_(arrays.participants(), false) {
    gloo::rendezvous::HashStore store;
    threads_.run([&](int participant) {
      gloo::transport::tcp::attr where;
      where.hostname = "127.0.0.1";
      auto device = gloo::transport::tcp::CreateDevice(where);
      auto context = std::make_shared<gloo::rendezvous::Context>(participant, arrays_.participants());
      context->connectFullMesh(store, device);
      contexts_[static_cast<std::size_t>(participant)] = std::move(context);
    });
  }

  std::string name() const override { return "Gloo"; }

  void run(std::int64_t floats, std::size_t times) override {
    threads_.run([&](int participant) {
      gloo::AllreduceOptions options(contexts_[static_cast<std::size_t>(participant)]);
      options.setOutput(arrays_[participant], static_cast<std::size_t>(floats));
      options.setReduceFunction(
          static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
      for (std::size_t i = 0; i < times; ++i) gloo::allreduce(options);
    });
  }

 private:
  const Arrays& arrays_;
  std::vector<std::shared_ptr<gloo::Context>> contexts_;
  Threads threads_;
};

}  // namespace

std::unique_ptr<Rival> make_gloo(const Arrays& arrays) { return std::make_unique<Gloo>(arrays); }

}  // namespace lockstep::bench

#else

namespace lockstep::bench {
std::unique_ptr<Rival> make_gloo(const Arrays&) { return nullptr; }
}  // namespace lockstep::bench

#endif
