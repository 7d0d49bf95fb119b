// tests/support/far_memory.h - memory that the host must not touch, as that of a GPU: an access ends the process.
//
// Each block is mapped twice: at the address that tensors hold nothing may be read or written; read() and
// write() go through the other one.
#pragma once

#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>

#include <sys/mman.h>
#include <unistd.h>

#include "lockstep/core/memory.h"

namespace lockstep::testing {

class FarPool : public MemoryPool {
 public:
  explicit FarPool(MemoryId memory) : MemoryPool(DeviceKind::kGpu, memory) {}
  ~FarPool() override {
    for (const auto& [block, mapped] : blocks_) unmap(block, mapped);
  }

  void read(void* host, const void* block, std::size_t bytes) override {
    std::memcpy(host, near(block), bytes);
  }
  void write(void* block, const void* host, std::size_t bytes) override {
    std::memcpy(near(block), host, bytes);
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(near(to), near(from), bytes);
  }
  // Where a kernel of this memory finds what is at the address. Throws if that is in another memory.
  char* near(const void* far) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto* address = static_cast<char*>(const_cast<void*>(far));
    auto found = blocks_.upper_bound(address);
    if (found == blocks_.begin()) throw std::logic_error("an address of another memory");
    --found;
    if (address >= found->first + found->second.bytes) throw std::logic_error("an address of another memory");
    return found->second.near + (address - found->first);
  }

 private:
  struct Mapped {
    char* near;
    std::size_t bytes;
  };
  static void unmap(char* far, const Mapped& mapped) {
    munmap(far, mapped.bytes);
    munmap(mapped.near, mapped.bytes);
  }

  void* take(std::size_t bytes) override {
    const std::size_t rounded = (bytes / 65536 + 1) * 65536;
    const int file = memfd_create("far", 0);
    if (file < 0 || ftruncate(file, static_cast<off_t>(rounded)) != 0) return nullptr;
    void* far = mmap(nullptr, rounded, PROT_NONE, MAP_SHARED, file, 0);
    void* near = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (far == MAP_FAILED || near == MAP_FAILED) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_[static_cast<char*>(far)] = {static_cast<char*>(near), rounded};
    return far;
  }
  void give(void* block, std::size_t) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(static_cast<char*>(block));
    unmap(found->first, found->second);
    blocks_.erase(found);
  }

  std::mutex mutex_;
  std::map<char*, Mapped> blocks_;
};

}  // namespace lockstep::testing
