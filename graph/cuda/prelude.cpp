// graph/cuda/prelude.cpp - what the sources of generated kernels begin with: types, and functions that expressions of ops use.
#include "lockstep/graph/cuda/internal/prelude.h"

namespace lockstep::internal::cuda {

// 16-bit floating values are float while they are computed with; ls_f16 and ls_bf16 only say how a result is rounded.
const char* const kPrelude = R"(
typedef unsigned long long ls_word;
struct ls_f16 {};
struct ls_bf16 {};
template <class R> struct ls_computed { typedef R type; };
template <> struct ls_computed<ls_f16> { typedef float type; };
template <> struct ls_computed<ls_bf16> { typedef float type; };

__device__ inline float ls_from_f16(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
__device__ inline unsigned short ls_to_f16(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
__device__ inline float ls_from_bf16(unsigned short bits) { return __uint_as_float(unsigned(bits) << 16); }
__device__ inline unsigned short ls_to_bf16(float value) {
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

// Neighbours that are read and written together, if all of them are there and at a good address.
template <class T, int N> struct alignas(sizeof(T) * N) ls_pack { T e[N]; };
template <int N, class T> __device__ inline ls_pack<T, N> ls_load(const T* from, bool is_whole, long long left) {
  ls_pack<T, N> pack;
  if (is_whole) {
    pack = *(const ls_pack<T, N>*)from;
  } else {
#pragma unroll
    for (int e = 0; e < N; ++e) if (e < left) pack.e[e] = from[e];
  }
  return pack;
}
template <int N, class T> __device__ inline void ls_store(T* to, const ls_pack<T, N>& pack, bool is_whole, long long left) {
  if (is_whole) {
    *(ls_pack<T, N>*)to = pack;
  } else {
#pragma unroll
    for (int e = 0; e < N; ++e) if (e < left) to[e] = pack.e[e];
  }
}

// A result, rounded as its type is.
template <class R, class X> __device__ inline typename ls_computed<R>::type ls_round(X x, R*) { return R(x); }
template <class X> __device__ inline float ls_round(X x, ls_f16*) { return ls_from_f16(ls_to_f16(float(x))); }
template <class X> __device__ inline float ls_round(X x, ls_bf16*) { return ls_from_bf16(ls_to_bf16(float(x))); }

__device__ inline void ls_refuse(ls_word* refusal, ls_word number, long long position) {
  const ls_word place = position < 0xffffffffLL ? ls_word(position) : 0xffffffffULL;
  if (refusal != nullptr) atomicMin(refusal, (number << 32) | place);
}

// --- numbers

template <class T> __device__ inline T ls_abs(T x) { return x < T(0) ? T(-x) : x; }
template <> __device__ inline float ls_abs(float x) { return fabsf(x); }
template <> __device__ inline double ls_abs(double x) { return fabs(x); }
template <> __device__ inline unsigned char ls_abs(unsigned char x) { return x; }
template <class T> __device__ inline T ls_sign(T x) { return x != x ? x : T((x > T(0)) - (x < T(0))); }
template <class T> __device__ inline T ls_max(T a, T b) { return a != a || a > b ? a : b; }
template <class T> __device__ inline T ls_min(T a, T b) { return a != a || a < b ? a : b; }
template <class T> __device__ inline T ls_clip(T x, double low, double high) {
  if (!isinf(low)) x = ls_max(x, T(low));
  if (!isinf(high)) x = ls_min(x, T(high));
  return x;
}
template <class T> __device__ inline T ls_sigmoid(T x) {
  if (x >= T(0)) return T(1) / (T(1) + exp(-x));
  const T e = exp(x);
  return e / (T(1) + e);
}
template <class T> __device__ inline T ls_gelu(T x) {
  const T part = T(0.5) * (T(1) + erf(x * T(0.70710678118654752440)));
  return part == T(0) ? T(-0.0) : x * part;  // also for -infinity
}
template <class T> __device__ inline T ls_gelu_slope(T x) {
  const T near = x < T(-40) ? T(-40) : x > T(40) ? T(40) : x;  // beyond, the density is 0, also times x
  const T density = exp(near * near * T(-0.5)) * T(0.39894228040143267794);
  return T(0.5) * (T(1) + erf(x * T(0.70710678118654752440))) + near * density;
}
template <class T> __device__ inline T ls_softplus(T x) { return ls_max(x, T(0)) + log1p(exp(-ls_abs(x))); }

template <class T> struct ls_is_floating { static const bool value = false; };
template <> struct ls_is_floating<float> { static const bool value = true; };
template <> struct ls_is_floating<double> { static const bool value = true; };

template <class T, bool F = ls_is_floating<T>::value> struct ls_divider;
template <class T> struct ls_divider<T, true> {
  template <class Refuse> static __device__ T div(T a, T b, const Refuse&) { return a / b; }
  template <class Refuse> static __device__ T mod(T a, T b, const Refuse&) {
    T rest = fmod(a, b);
    if (rest == 0) return copysign(T(0), b);
    if ((rest < 0) != (b < 0)) rest += b;
    return rest;
  }
  template <class Refuse> static __device__ T floor_div(T a, T b, const Refuse&) {
    if (b == 0) return a / b;
    const T rest = fmod(a, b);
    T quotient = (a - rest) / b;
    if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
    if (quotient == 0) return copysign(T(0), a / b);
    const T down = floor(quotient);
    return quotient - down > T(0.5) ? down + 1 : down;
  }
  template <class Refuse> static __device__ T power(T a, T b, const Refuse&) { return pow(a, b); }
};
template <class T> struct ls_divider<T, false> {
  template <class Refuse> static __device__ bool bad(T b, const Refuse& refuse) {
    if (b == T(0)) refuse();
    return b == T(0);
  }
  template <class Refuse> static __device__ T div(T a, T b, const Refuse& refuse) {
    if (bad(b, refuse)) return T(0);
    return T(-1) < T(0) && b == T(-1) ? T(0ULL - ls_word(a)) : T(a / b);
  }
  template <class Refuse> static __device__ T mod(T a, T b, const Refuse& refuse) {
    if (bad(b, refuse) || (T(-1) < T(0) && b == T(-1))) return T(0);
    const T rest = T(a % b);
    return rest != 0 && (rest < 0) != (b < 0) ? T(rest + b) : rest;
  }
  template <class Refuse> static __device__ T floor_div(T a, T b, const Refuse& refuse) {
    if (bad(b, refuse)) return T(0);
    if (T(-1) < T(0) && b == T(-1)) return T(0ULL - ls_word(a));
    const T rest = T(a % b);
    return T(a / b - (rest != 0 && (rest < 0) != (b < 0) ? 1 : 0));
  }
  template <class Refuse> static __device__ T power(T base, T exponent, const Refuse& refuse) {
    if (exponent < T(0)) {
      refuse();
      return T(0);
    }
    ls_word result = 1, factor = ls_word(base);
    for (ls_word left = ls_word(exponent); left != 0; left >>= 1) {
      if (left & 1) result *= factor;
      factor *= factor;
    }
    return T(result);
  }
};
template <class T, class F> __device__ inline T ls_div(T a, T b, const F& refuse) { return ls_divider<T>::div(a, b, refuse); }
template <class T, class F> __device__ inline T ls_mod(T a, T b, const F& refuse) { return ls_divider<T>::mod(a, b, refuse); }
template <class T, class F> __device__ inline T ls_floor_div(T a, T b, const F& refuse) {
  return ls_divider<T>::floor_div(a, b, refuse);
}
template <class T, class F> __device__ inline T ls_pow(T a, T b, const F& refuse) { return ls_divider<T>::power(a, b, refuse); }

// --- reductions

template <class T> __device__ inline T ls_lowest();
template <> __device__ inline float ls_lowest() { return -__int_as_float(0x7f800000); }
template <> __device__ inline double ls_lowest() { return -__longlong_as_double(0x7ff0000000000000LL); }
template <> __device__ inline int ls_lowest() { return -2147483647 - 1; }
template <> __device__ inline long long ls_lowest() { return -9223372036854775807LL - 1; }
template <> __device__ inline unsigned char ls_lowest() { return 0; }
template <> __device__ inline bool ls_lowest() { return false; }
template <class T> __device__ inline T ls_highest();
template <> __device__ inline float ls_highest() { return __int_as_float(0x7f800000); }
template <> __device__ inline double ls_highest() { return __longlong_as_double(0x7ff0000000000000LL); }
template <> __device__ inline int ls_highest() { return 2147483647; }
template <> __device__ inline long long ls_highest() { return 9223372036854775807LL; }
template <> __device__ inline unsigned char ls_highest() { return 255; }
template <> __device__ inline bool ls_highest() { return true; }

// log(sum(exp(x))): the largest so far, and the sum of the exponentials of the distances from it.
template <class T> struct ls_logsum {
  T most, sum;
  __device__ ls_logsum() : most(ls_lowest<T>()), sum(0) {}
  __device__ void take(T x) {
    if (x <= most) {
      if (!isinf(most)) sum += exp(x - most);
      else if (most > T(0)) sum = T(1);
      return;
    }
    sum = isinf(most) ? T(1) : sum * exp(most - x) + T(1);
    most = x;
  }
  __device__ void join(const ls_logsum& other) {
    if (other.most != other.most || most != most) {
      most = most + other.most;
      return;
    }
    if (other.sum == T(0)) return;
    if (sum == T(0)) { *this = other; return; }
    const T larger = most > other.most ? most : other.most;
    if (isinf(larger)) { sum = T(1); most = larger; return; }
    sum = sum * exp(most - larger) + other.sum * exp(other.most - larger);
    most = larger;
  }
  __device__ T finish() const { return most != most ? most : sum == T(0) ? ls_lowest<T>() : most + log(sum); }
};

// Mean, and the sum of the squares of the distances from it, however far from 0 it is.
template <class T> struct ls_moments {
  T count, mean, squares;
  __device__ ls_moments() : count(0), mean(0), squares(0) {}
  __device__ void take(T x) {
    count += T(1);
    const T distance = x - mean;
    mean += distance / count;
    squares += distance * (x - mean);
  }
  __device__ void join(const ls_moments& other) {
    if (other.count == T(0)) return;
    const T all = count + other.count, distance = other.mean - mean, share = other.count / all;
    mean += distance * share;
    squares += other.squares + distance * distance * count * share;
    count = all;
  }
};

// Over all threads of the block, of which there are a power of two; all of them get it.
template <class T> __device__ inline T ls_block_sum(T x, T* shared) {
  __syncthreads();
  shared[threadIdx.x] = x;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
  }
  return shared[0];
}
template <class T> __device__ inline T ls_block_max(T x, T* shared) {
  __syncthreads();
  shared[threadIdx.x] = x;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] = ls_max(shared[threadIdx.x], shared[threadIdx.x + half]);
    __syncthreads();
  }
  return shared[0];
}

// Over N threads, a power of two of them from 32 on, whose numbers follow each other; all of them get the same. `shared` has room
// for one number of each 32 threads.
template <int N, class T, class F> __device__ inline T ls_across(T x, T* shared, const F& join) {
#pragma unroll
  for (int half = 16; half > 0; half /= 2) x = join(x, __shfl_xor_sync(0xffffffffu, x, half));
  if (N == 32) return x;
  constexpr int kParts = N / 32;
  const int part = threadIdx.x / 32, lane = threadIdx.x % 32;
  __syncthreads();
  if (lane == 0) shared[part] = x;
  __syncthreads();
  x = shared[part / kParts * kParts + lane % kParts];
#pragma unroll
  for (int half = kParts / 2; half > 0; half /= 2) x = join(x, __shfl_xor_sync(0xffffffffu, x, half));
  return x;
}
// Two sums at once; `shared` has room for two numbers of each 32 threads.
template <int N, class T> __device__ inline void ls_sums_across(T& x, T& y, T* shared) {
#pragma unroll
  for (int half = 16; half > 0; half /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, half);
    y += __shfl_xor_sync(0xffffffffu, y, half);
  }
  if (N == 32) return;
  constexpr int kParts = N / 32;
  const int part = threadIdx.x / 32, lane = threadIdx.x % 32;
  __syncthreads();
  if (lane == 0) {
    shared[2 * part] = x;
    shared[2 * part + 1] = y;
  }
  __syncthreads();
  x = shared[2 * (part / kParts * kParts + lane % kParts)];
  y = shared[2 * (part / kParts * kParts + lane % kParts) + 1];
#pragma unroll
  for (int half = kParts / 2; half > 0; half /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, half);
    y += __shfl_xor_sync(0xffffffffu, y, half);
  }
}

// --- casts

// Rounded to odd: what is rounded to 16 bits afterwards is rounded once in total.
__device__ inline float ls_odd(double x) {
  const float down = __double2float_rz(x);
  return double(down) == x || x != x || isinf(down) ? down : __uint_as_float(__float_as_uint(down) | 1u);
}
__device__ inline float ls_odd(long long x) {
  const float down = __ll2float_rz(x);
  return __float2ll_rz(down) == x ? down : __uint_as_float(__float_as_uint(down) | 1u);
}
__device__ inline float ls_odd(int x) { return ls_odd((long long)x); }
__device__ inline float ls_odd(float x) { return x; }
__device__ inline float ls_odd(unsigned char x) { return float(x); }
__device__ inline float ls_odd(bool x) { return x ? 1.0f : 0.0f; }

// From floating values CUDA's conversions to int and long long do what ours say, but for NaN as long long.
template <class R> struct ls_caster {
  template <class X> static __device__ R from(X x) { return R(x); }
};
template <> struct ls_caster<ls_f16> { template <class X> static __device__ float from(X x) { return ls_odd(x); } };
template <> struct ls_caster<ls_bf16> { template <class X> static __device__ float from(X x) { return ls_odd(x); } };
template <> struct ls_caster<bool> { template <class X> static __device__ bool from(X x) { return x != X(0); } };
template <> struct ls_caster<int> {
  template <class X> static __device__ int from(X x) { return int(x); }
  static __device__ int from(float x) { return x != x ? 0 : __float2int_rz(x); }
  static __device__ int from(double x) { return x != x ? 0 : __double2int_rz(x); }
};
template <> struct ls_caster<long long> {
  template <class X> static __device__ long long from(X x) { return (long long)x; }
  static __device__ long long from(float x) { return x != x ? 0 : __float2ll_rz(x); }
  static __device__ long long from(double x) { return x != x ? 0 : __double2ll_rz(x); }
};
template <> struct ls_caster<unsigned char> {
  template <class X> static __device__ unsigned char from(X x) { return (unsigned char)x; }
  static __device__ unsigned char from(float x) { return x != x || x <= 0 ? 0 : x >= 255 ? 255 : (unsigned char)x; }
  static __device__ unsigned char from(double x) { return x != x || x <= 0 ? 0 : x >= 255 ? 255 : (unsigned char)x; }
};
template <class R, class X> __device__ inline typename ls_computed<R>::type ls_cast(X x) { return ls_caster<R>::from(x); }
)";

// Philox, with the words of the CPU: see core/kernels/random.cpp. Seed and step of the run lie in the memory of the card, since a
// recorded call keeps its arguments.
const char* const kDraw = R"(
__device__ inline ls_word ls_mix(ls_word x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}
struct ls_draw_key {
  ls_word mixed, where;
  __device__ ls_draw_key(const ls_word* run, ls_word key, ls_word replica)
      : mixed(ls_mix(run[0] ^ ls_mix(key))), where(ls_mix((run[1] << 1) ^ (replica << 40) ^ ls_mix(mixed))) {}
};
// The four words of a block.
__device__ inline void ls_draw(unsigned int (&w)[4], const ls_draw_key& key, long long block) {
  typedef unsigned int u32;
  w[0] = u32(block); w[1] = u32(ls_word(block) >> 32); w[2] = u32(key.where); w[3] = u32(key.where >> 32);
  u32 k0 = u32(key.mixed), k1 = u32(key.mixed >> 32);
  for (int round = 0; round < 10; ++round) {
    const ls_word p = 0xD2511F53ULL * w[0], q = 0xCD9E8D57ULL * w[2];
    const u32 w0 = u32(q >> 32) ^ w[1] ^ k0, w2 = u32(p >> 32) ^ w[3] ^ k1;
    w[1] = u32(q); w[3] = u32(p); w[0] = w0; w[2] = w2;
    k0 += 0x9E3779B9U; k1 += 0xBB67AE85U;
  }
}
)";

}  // namespace lockstep::internal::cuda
