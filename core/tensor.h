// core/tensor.h - typed, shaped, reference-counted data on one device.
//
// A Tensor is a cheap handle: copies share the data. Contents are dense, row-major, and 64-byte aligned if
// Lockstep allocated them. Slices along the first axis and reshapes share memory with their origin (zero
// copy).
//
//   Tensor a = Tensor::from({2, 2}, {1.f, 2.f, 3.f, 4.f});
//   Tensor row = a.slice(1, 2);                     // shape [1,2], shares memory
//   std::span<const float> values = a.data<float>();
//   Tensor view = Tensor::view(DType::kF32, {n}, pointer, [=] { release(pointer); });   // the caller's memory
//
// A tensor may lie in another memory than the host's, such as a GPU's. Printing, item(), comparing, cloning
// and assigning work from anywhere, by a copy where necessary; data() and raw() are for memory that the host
// reads: host() gives such a tensor.
//
// Thread safety: handles like any value; data like a plain array: concurrent readers, or one writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <ostream>
#include <span>

#include "lockstep/core/base/export.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/error.h"
#include "lockstep/core/memory.h"
#include "lockstep/core/shape.h"

namespace lockstep {

class MemoryUses;
class Runtime;

class LOCKSTEP_API Tensor {
 public:
  // An empty handle: holds nothing; defined() is false.
  Tensor() = default;

  // Uninitialised contents. The shape must be known.
  static Tensor empty(DType dtype, const Shape& shape);
  static Tensor empty(DType dtype, const Shape& shape, std::shared_ptr<MemoryPool> pool);
  static Tensor zeros(DType dtype, const Shape& shape);
  static Tensor zeros(const Shape& shape) { return zeros(DType::kF32, shape); }
  // Every element is `value`, converted to dtype; for an integer dtype it is truncated, and refused if it
  // does not fit (InvalidArgument).
  static Tensor full(DType dtype, const Shape& shape, double value);

  // Copies; the number of values must match the shape (InvalidArgument).
  template <class T>
  static Tensor from(const Shape& shape, std::span<const T> values) {
    Tensor result = empty(dtype_of<T>, shape);
    result.copy_from(values.data(), values.size());
    return result;
  }
  template <class T>
  static Tensor from(const Shape& shape, std::initializer_list<T> values) {
    return from(shape, std::span<const T>(values.begin(), values.size()));
  }
  template <class T>
  static Tensor scalar(T value) {
    return from(Shape{}, std::span<const T>(&value, 1));
  }

  // The caller's memory, not copied; it must be aligned for the dtype. `release` runs once, when the last
  // tensor that shares it goes (on that thread), and must not throw. If view() itself throws, `release` does
  // not run: the memory stays the caller's.
  static Tensor view(DType dtype, const Shape& shape, void* data, std::function<void()> release = {});

  bool defined() const { return buffer_ != nullptr; }
  DType dtype() const { return spec_.dtype; }
  const Shape& shape() const { return spec_.shape; }
  const TensorSpec& spec() const { return spec_; }
  std::int64_t num_elements() const { return spec_.shape.num_elements(); }
  std::size_t num_bytes() const { return static_cast<std::size_t>(lockstep::num_bytes(spec_)); }

  // Where the contents are.
  MemoryId memory() const { return buffer_ == nullptr ? kHostMemory : buffer_->memory; }
  // This tensor, if the host reads its memory; else a copy that it reads.
  Tensor host() const;
  // This tensor, if it lies in the memory of the pool; else a copy there.
  Tensor to(const std::shared_ptr<MemoryPool>& pool) const;
  // The same for the memory of a device (Runtime::pool). Throws NotFound if the runtime has no such device.
  Tensor to(const Device& device, const Runtime& runtime) const;

  // A tensor that a run on devices gave may still be on its way; what reads it waits. Sleeps until nothing
  // writes it any more, and throws what went wrong in the run (any Error). At once for memory of the host.
  void wait() const;
  bool is_ready() const;

  // The address, whatever memory it is in: for kernels of that memory. It does not wait.
  const void* raw() const { return data_; }
  void* raw() { return data_; }
  // Typed contents; throws InvalidArgument if T is not the dtype, FailedPrecondition if the host does not read
  // the memory. They live as long as a tensor that shares them: name the result of a function before you keep
  // its data beyond the statement.
  template <class T>
  std::span<const T> data() const {
    check_dtype(dtype_of<T>);
    return {static_cast<const T*>(data_), static_cast<std::size_t>(num_elements())};
  }
  template <class T>
  std::span<T> data() {
    check_dtype(dtype_of<T>);
    return {static_cast<T*>(data_), static_cast<std::size_t>(num_elements())};
  }
  // The only element, of any dtype, as double (InvalidArgument unless there is exactly one).
  double item() const;

  // Rows [begin, end) of the first axis; shares memory. InvalidArgument outside 0 <= begin <= end <= dim 0,
  // or rank 0.
  Tensor slice(std::int64_t begin, std::int64_t end) const;
  // Same elements, other shape; shares memory.
  Tensor reshape(const Shape& shape) const;
  // A deep copy, in the same memory.
  Tensor clone() const;
  // Copies the contents of a tensor of equal dtype and shape, from any memory, into this one's.
  void assign(const Tensor& source);
  bool shares_memory_with(const Tensor& other) const {
    return buffer_ != nullptr && buffer_ == other.buffer_;
  }
  // How many handles share the data, as std::shared_ptr counts.
  long use_count() const { return buffer_.use_count(); }

  // Same spec and same bytes.
  bool bit_equal(const Tensor& other) const;

  // The runs in flight that use its memory (core/work_in_flight.h); null for memory of the host.
  MemoryUses* uses() const;

 private:
  // What tensors share: it gives the memory back.
  struct LOCKSTEP_API Buffer {
    explicit Buffer(MemoryId where) noexcept : memory(where) {}
    virtual ~Buffer();
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    MemoryId memory;
  };
  struct PoolBuffer;
  struct DeviceBuffer;
  struct ViewBuffer;

  Tensor(TensorSpec spec, std::shared_ptr<Buffer> buffer, void* data);
  bool is_host() const { return memory() == kHostMemory; }
  const std::shared_ptr<MemoryPool>& pool() const;  // of a tensor that is not on the host
  void check_dtype(DType wanted) const;
  void copy_from(const void* values, std::size_t count);

  TensorSpec spec_;
  std::shared_ptr<Buffer> buffer_;
  void* data_ = nullptr;
};

// "f32[2,2] {1, 2, 3, 4}"; long contents are cut with "...".
LOCKSTEP_API std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

}  // namespace lockstep
