// core/built_in_backends.cpp - the backends that Lockstep was built with. The only source that asks which those are.
#include "lockstep/core/internal/built_in_backends.h"

namespace lockstep::internal {

std::vector<std::shared_ptr<DeviceBackend>> built_in_backends() {
  std::vector<std::shared_ptr<DeviceBackend>> found;
#ifdef LOCKSTEP_CUDA
#ifdef LOCKSTEP_NCCL
  constexpr auto collectives = &find_nccl;
#else
  constexpr auto collectives = +[] { return CardCollectives(); };
#endif
  if (std::shared_ptr<DeviceBackend> cards = find_cuda_backend(collectives))
    found.push_back(std::move(cards));
#endif
  return found;
}

}  // namespace lockstep::internal
