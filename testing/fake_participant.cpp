// testing/fake_participant.cpp - a device of a FakeGpu as a participant of a group.
#include "lockstep/testing/internal/fake_participant.h"

#include <cstddef>
#include <exception>
#include <utility>

#include "lockstep/testing/fake_gpu.h"

namespace lockstep::internal {

namespace {

using Kind = CommunicatorCall::Kind;
using testing::FakeCall;
using testing::FakeGpu;

// What a call on the stream and whoever waits for it share.
struct UnderWay {
  std::shared_ptr<Communicator> inner;
  std::unique_ptr<Event> end;
  std::exception_ptr error;  // of the exchange; written before the end
};

class FakePending final : public PendingState {
 public:
  explicit FakePending(std::shared_ptr<UnderWay> under_way) : under_way_(std::move(under_way)) {}
  ~FakePending() override = default;
  FakePending(const FakePending&) = delete;
  FakePending& operator=(const FakePending&) = delete;

  bool done(int /*rank*/) override { return under_way_->end->is_done(); }
  void wait(int /*rank*/) override {
    under_way_->end->wait();
    if (under_way_->error != nullptr) std::rethrow_exception(under_way_->error);
  }
  void release(int /*rank*/) noexcept override {
    try {
      under_way_->end->wait();
    } catch (const std::exception&) {  // the device is lost: nothing runs there any more
    }
    delete this;  // NOLINT(cppcoreguidelines-owning-memory): as PendingState says
  }

 private:
  std::shared_ptr<UnderWay> under_way_;
};

class FakeParticipant final : public Communicator {
 public:
  FakeParticipant(std::unique_ptr<Communicator> inner, std::shared_ptr<ComputeDevice> device,
                  std::function<void*(const void*)> near)
      : inner_(std::move(inner)), device_(std::move(device)), near_(std::move(near)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  bool takes(DeviceKind memory) const override { return memory == DeviceKind::kGpu; }
  void abort(const Error& why) override { inner_->abort(why); }
  void close() override { inner_->close(); }

 protected:
  Pending start(const CommunicatorCall& call) override {
    auto under_way = std::make_shared<UnderWay>(UnderWay{inner_, device_->make_event(), nullptr});
    auto pending = std::make_unique<FakePending>(under_way);
    const std::size_t bytes = static_cast<std::size_t>(call.count) * size_of(call.dtype);
    const auto all = static_cast<std::size_t>(size());
    FakeCall put{to_string(call), {}, {}, {}};
    if (call.in != nullptr)
      put.reads.push_back({call.in, call.kind == Kind::kReduceScatter ? all * bytes : bytes});
    if (call.out != nullptr)
      put.writes.push_back({call.out, call.kind == Kind::kAllGather ? all * bytes : bytes});
    put.run = [call, under_way, near = near_] {
      CommunicatorCall here = call;
      if (call.in != nullptr) here.in = near(call.in);
      if (call.out != nullptr) here.out = near(call.out);
      try {
        under_way->inner->call(here).wait();
      } catch (...) {
        under_way->error = std::current_exception();
      }
    };
    Stream& stream = *device_->stream(StreamRole::kCommunication);
    FakeGpu::call(stream, std::move(put));
    stream.record(*under_way->end);
    return {pending.release(), rank()};
  }

 private:
  std::shared_ptr<Communicator> inner_;
  std::shared_ptr<ComputeDevice> device_;
  std::function<void*(const void*)> near_;
};

}  // namespace

std::unique_ptr<Communicator> make_fake_participant(std::unique_ptr<Communicator> inner,
                                                    std::shared_ptr<ComputeDevice> device,
                                                    std::function<void*(const void*)> near) {
  return std::make_unique<FakeParticipant>(std::move(inner), std::move(device), std::move(near));
}

}  // namespace lockstep::internal
