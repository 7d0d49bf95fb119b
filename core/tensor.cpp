// core/tensor.cpp - typed, shaped, reference-counted data on one device.
#include "lockstep/core/tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "lockstep/core/work_in_flight.h"

namespace lockstep {
namespace {

constexpr std::int64_t kPrintedElements = 32;

template <class T>
T convert(double value, DType dtype) {
  if constexpr (std::is_same_v<T, bool>) {
    return value != 0;
  } else if constexpr (std::is_integral_v<T>) {
    // 2^digits is a double exactly, unlike the largest i64.
    const double limit = std::ldexp(1.0, std::numeric_limits<T>::digits);
    const double truncated = std::trunc(value);
    if (!(truncated >= static_cast<double>(std::numeric_limits<T>::min()) && truncated < limit)) {
      throw InvalidArgument(str("full: ", value, " does not fit into ", dtype));
    }
    return static_cast<T>(truncated);
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(value);
  } else {
    return T(internal::to_odd_f32(value));  // so that the value is rounded once in total
  }
}

template <class T>
void print_element(std::ostream& out, const T& value) {
  if constexpr (std::is_same_v<T, F16> || std::is_same_v<T, BF16>) {
    out << static_cast<float>(value);
  } else if constexpr (std::is_same_v<T, bool>) {
    out << (value ? "true" : "false");
  } else if constexpr (std::is_same_v<T, std::uint8_t>) {
    out << static_cast<int>(value);
  } else {
    out << value;
  }
}

void check_defined(const Tensor& tensor, const char* what) {
  if (!tensor.defined())
    throw FailedPrecondition(str(what, ": the tensor is empty: it was never given a value"));
}

}  // namespace

Tensor::Buffer::~Buffer() = default;

// A block of a pool, which it keeps alive.
struct Tensor::PoolBuffer : Buffer {
  PoolBuffer(std::shared_ptr<MemoryPool> from, std::size_t size)
      : Buffer(from->memory()), pool(std::move(from)), bytes(size), block(pool->allocate(size)) {}
  ~PoolBuffer() override { pool->deallocate(block, bytes); }
  std::shared_ptr<MemoryPool> pool;
  std::size_t bytes;
  void* block;
};

// The same, not on the host: runs in flight may use it.
struct Tensor::DeviceBuffer final : PoolBuffer {
  using PoolBuffer::PoolBuffer;
  ~DeviceBuffer() override {
    try {
      uses.wait(true);
    } catch (...) {  // the device is lost: nothing uses it any more
      return;
    }
  }
  MemoryUses uses;
};

// The caller's memory, on the host.
struct Tensor::ViewBuffer final : Buffer {
  explicit ViewBuffer(std::function<void()> callback) noexcept
      : Buffer(kHostMemory), release(std::move(callback)) {}
  ~ViewBuffer() override {
    if (release) release();
  }
  std::function<void()> release;
};

Tensor::Tensor(TensorSpec spec, std::shared_ptr<Buffer> buffer, void* data)
    : spec_(std::move(spec)), buffer_(std::move(buffer)), data_(data) {}

const std::shared_ptr<MemoryPool>& Tensor::pool() const {
  return static_cast<const PoolBuffer&>(*buffer_).pool;
}

Tensor Tensor::empty(DType dtype, const Shape& shape) { return empty(dtype, shape, default_host_pool()); }

Tensor Tensor::empty(DType dtype, const Shape& shape, std::shared_ptr<MemoryPool> pool) {
  if (pool == nullptr) throw InvalidArgument("Tensor::empty: the pool is null");
  TensorSpec spec{dtype, shape};
  const auto bytes = static_cast<std::size_t>(lockstep::num_bytes(spec));
  std::shared_ptr<PoolBuffer> buffer;
  if (pool->is_host()) {
    buffer = std::make_shared<PoolBuffer>(std::move(pool), bytes);
  } else {
    buffer = std::make_shared<DeviceBuffer>(std::move(pool), bytes);
  }
  void* const block = buffer->block;
  return Tensor(std::move(spec), std::move(buffer), block);
}

Tensor Tensor::zeros(DType dtype, const Shape& shape) {
  Tensor result = empty(dtype, shape);
  std::memset(result.data_, 0, result.num_bytes());
  return result;
}

Tensor Tensor::full(DType dtype, const Shape& shape, double value) {
  Tensor result = empty(dtype, shape);
  visit_dtype(dtype, [&]<class T>(T) {
    const T element = convert<T>(value, dtype);
    std::fill_n(static_cast<T*>(result.data_), result.num_elements(), element);
  });
  return result;
}

Tensor Tensor::view(DType dtype, const Shape& shape, void* data, std::function<void()> release) {
  TensorSpec spec{dtype, shape};
  const std::int64_t bytes = lockstep::num_bytes(spec);
  if (data == nullptr && bytes > 0) throw InvalidArgument(str("Tensor::view: null memory for ", spec));
  if (reinterpret_cast<std::uintptr_t>(data) % size_of(dtype) != 0) {
    throw InvalidArgument(
        str("Tensor::view: memory for ", spec, " must be aligned to ", size_of(dtype), " bytes"));
  }
  auto owner = std::make_shared<ViewBuffer>(std::move(release));  // the last step that can throw
  return Tensor(std::move(spec), std::move(owner), data);
}

MemoryUses* Tensor::uses() const { return is_host() ? nullptr : &static_cast<DeviceBuffer&>(*buffer_).uses; }

void Tensor::wait() const {
  if (!is_host()) uses()->wait(false);
}

bool Tensor::is_ready() const { return is_host() || uses()->is_free(false); }

Tensor Tensor::host() const {
  if (!defined() || is_host()) return *this;
  wait();
  Tensor result = empty(dtype(), shape());
  pool()->read(result.data_, data_, num_bytes());
  return result;
}

Tensor Tensor::to(const std::shared_ptr<MemoryPool>& pool) const {
  check_defined(*this, "to");
  if (pool == nullptr) throw InvalidArgument("Tensor::to: the pool is null");
  if (memory() == pool->memory()) return *this;
  Tensor result = empty(dtype(), shape(), pool);
  result.assign(*this);
  return result;
}

double Tensor::item() const {
  check_defined(*this, "item");
  if (num_elements() != 1) throw InvalidArgument(str("item: expected exactly one element, have ", spec_));
  if (!is_host()) return host().item();
  return visit_dtype(spec_.dtype, [this]<class T>(T) -> double {
    const T value = *static_cast<const T*>(data_);
    if constexpr (std::is_same_v<T, F16> || std::is_same_v<T, BF16>) {
      return static_cast<double>(static_cast<float>(value));
    } else {
      return static_cast<double>(value);
    }
  });
}

Tensor Tensor::slice(std::int64_t begin, std::int64_t end) const {
  check_defined(*this, "slice");
  if (shape().rank() == 0)
    throw InvalidArgument(str("slice: ", spec_, " is a scalar: there is no first axis to cut"));
  const std::int64_t rows = shape()[0];
  if (begin < 0 || begin > end || end > rows) {
    throw InvalidArgument(
        str("slice: rows [", begin, ", ", end, ") of ", spec_, ": expected 0 <= begin <= end <= ", rows));
  }
  const std::size_t row_bytes = rows == 0 ? 0 : num_bytes() / static_cast<std::size_t>(rows);
  const std::size_t offset = static_cast<std::size_t>(begin) * row_bytes;
  void* data = offset == 0 ? data_ : static_cast<std::byte*>(data_) + offset;
  return Tensor(TensorSpec{dtype(), shape().with_dim(0, end - begin)}, buffer_, data);
}

Tensor Tensor::reshape(const Shape& shape) const {
  check_defined(*this, "reshape");
  if (!shape.is_known()) throw InvalidArgument(str("reshape: the new shape ", shape, " must be known"));
  if (shape.num_elements() != num_elements()) {
    throw InvalidArgument(str("reshape: ", spec_, " has ", counted(num_elements(), "element"), ", ", shape,
                              " has ", shape.num_elements()));
  }
  return Tensor(TensorSpec{dtype(), shape}, buffer_, data_);
}

Tensor Tensor::clone() const {
  if (!defined()) return {};
  Tensor result = is_host() ? empty(dtype(), shape()) : empty(dtype(), shape(), pool());
  result.assign(*this);
  return result;
}

void Tensor::assign(const Tensor& source) {
  check_defined(*this, "assign");
  check_defined(source, "assign");
  if (spec_ != source.spec_) throw InvalidArgument(str("assign: expected ", spec_, ", got ", source.spec_));
  const std::size_t bytes = num_bytes();
  if (!is_host()) {
    const Tensor from = source.host();
    uses()->wait(true);
    pool()->write(data_, from.data_, bytes);
  } else if (!source.is_host()) {
    source.wait();
    source.pool()->read(data_, source.data_, bytes);
  } else if (bytes > 0) {
    std::memmove(data_, source.data_, bytes);  // slices of one buffer may overlap
  }
}

bool Tensor::bit_equal(const Tensor& other) const {
  if (defined() != other.defined() || spec_ != other.spec_) return false;
  if (!defined()) return true;
  const std::size_t bytes = num_bytes();
  if (bytes == 0) return true;
  if (!is_host() || !other.is_host()) return host().bit_equal(other.host());
  return std::memcmp(data_, other.data_, bytes) == 0;
}

void Tensor::check_dtype(DType wanted) const {
  if (!defined()) throw FailedPrecondition("data: the tensor is empty: it was never given a value");
  if (wanted != spec_.dtype) {
    throw InvalidArgument(str("data: asked for elements of ", wanted, ", but the tensor is ", spec_));
  }
  if (!is_host()) {
    throw FailedPrecondition(str("data: ", spec_, " lies in memory ", memory().value,
                                 ", which the host does not read: ask host() for a copy that it reads"));
  }
}

void Tensor::copy_from(const void* values, std::size_t count) {
  if (count != static_cast<std::size_t>(num_elements())) {
    throw InvalidArgument(str("Tensor::from: ", spec_, " needs ", num_elements(),
                              num_elements() == 1 ? " value" : " values", ", got ", count));
  }
  if (count > 0) std::memcpy(data_, values, num_bytes());
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  if (!tensor.defined()) return out << "(no tensor)";
  out << tensor.spec() << " {";
  visit_dtype(tensor.dtype(), [&]<class T>(T) {
    const Tensor here = tensor.host();
    const auto* values = static_cast<const T*>(here.raw());
    const std::int64_t count = tensor.num_elements();
    for (std::int64_t i = 0; i < std::min(count, kPrintedElements); ++i) {
      if (i > 0) out << ", ";
      print_element(out, values[i]);
    }
    if (count > kPrintedElements) out << ", ...";
  });
  return out << "}";
}

}  // namespace lockstep
