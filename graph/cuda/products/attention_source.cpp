// graph/cuda/products/attention_source.cpp - the texts of the kernels of attention.
//
// In 16 bits a block of threads has 16 * MT rows for each of its warps, in registers; the rows that they meet go by in tiles of N, of which
// the next is on its way while one is worked on. Scores never leave the chip. Forward, a block has rows of queries. Backward
// there are two kernels: one has rows of queries and gives dq, one has rows of keys and gives dk and dv. Scores are computed
// in both, which costs less than to add up dq in memory, and keeps the order of all sums.
//
// Factors are rounded to 16 bits, as those of the ops that this stands for are; sums and exponentials are f32. Exponentials are
// powers of two, by the card's instruction.
#include "lockstep/graph/cuda/products/internal/attention_source.h"

#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/internal/elementwise.h"
#include "lockstep/graph/cuda/internal/prelude.h"
#include "lockstep/graph/cuda/internal/types.h"

namespace lockstep::internal::cuda {

namespace {

// The arguments of all of them. Steps count elements; those of a row are neighbours.
constexpr const char* kArgs = R"(
typedef unsigned int u32;
typedef unsigned short u16;
struct Args {
  const void *q, *k, *v, *mask, *out, *flow;
  void *first, *second, *logs, *deltas;
  const ls_word* run;
  long long heads, queries, keys, width, value_width;
  long long q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row;
  long long out_batch, out_head, out_row, flow_batch, flow_head, flow_row;
  long long first_batch, first_head, first_row, second_batch, second_head, second_row;
  long long mask_batch, mask_head, mask_row, mask_column;
  ls_word key, replica;
};
)";

// What those for 16 bits begin with. A tile is rows of D elements, in chunks of 8, whose places are mixed so that the 8 rows that are
// loaded together lie in different banks.
constexpr const char* kTiles = R"(
#define WARPS 4
#define THREADS (32 * WARPS)
#define M (16 * MT * WARPS)
#define CHUNKS (D / 8)
#define INF __int_as_float(0x7f800000)
#define ROW_BYTES (CHUNKS * 16)
__device__ inline u32 mixed(int row, int chunk) { return u32(chunk ^ (CHUNKS >= 8 ? row & 7 : (row >> 1) & 3)) * 16; }
// Rows that are not there, and what is beyond the width, become 0. Each thread has one chunk of some rows.
template <int ROWS>
__device__ inline void fetch(u32 tile, const u16* from, long long step, int first, int rows, int width) {
  const int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
  const u16* at = from + (first + row) * step + chunk * 8;
  const u32 to = tile + row * ROW_BYTES + mixed(row, chunk);
  const bool is_wide = D == WIDTH || chunk * 8 < width;
#pragma unroll
  for (int i = 0; i < ROWS * CHUNKS / THREADS; ++i) {
    const u32 place = to + i * (THREADS / CHUNKS) * ROW_BYTES;
    const bool is_there = is_wide && first + row + i * (THREADS / CHUNKS) < rows;
#if IS_ALIGNED
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(is_there ? at : from), "r"(is_there ? 16 : 0)
                 : "memory");
#else
    u32 pair[4] = {0, 0, 0, 0};
    if (is_there) {
      for (int e = 0; e < 4; ++e) pair[e] = u32(at[2 * e]) | u32(at[2 * e + 1]) << 16;
    }
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(place), "r"(pair[0]), "r"(pair[1]), "r"(pair[2]), "r"(pair[3])
                 : "memory");
#endif
    at += THREADS / CHUNKS * step;
  }
}
// For the copies of all threads, and for all threads to be done with what they overwrite next.
__device__ inline void await() {
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
}
__device__ inline void load(u32 (&to)[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}
__device__ inline void load_turned(u32 (&to)[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}
// 16 rows from `row`, a multiple of 16, elements 16 * k on: a left factor.
__device__ inline void load_left(u32 (&to)[4], u32 tile, int row, int k) {
  const int lane = threadIdx.x % 32;
  load(to, tile + row * ROW_BYTES + lane % 16 * ROW_BYTES + (mixed(lane % 16, lane / 16) ^ u32(32 * k)));
}
// The same as 2 x 8 columns of a right factor.
__device__ inline void load_right(u32 (&to)[4], u32 tile, int row, int k) {
  const int lane = threadIdx.x % 32, own = lane % 8 + lane / 16 * 8;
  load(to, tile + row * ROW_BYTES + own * ROW_BYTES + (mixed(own, lane / 8 % 2) ^ u32(32 * k)));
}
// The same as 16 rows of a right factor with 2 x 8 columns.
__device__ inline void load_right_rows(u32 (&to)[4], u32 tile, int row, int k) {
  const int lane = threadIdx.x % 32;
  load_turned(to, tile + row * ROW_BYTES + lane % 16 * ROW_BYTES + (mixed(lane % 16, lane / 16) ^ u32(32 * k)));
}
__device__ inline void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Two numbers rounded, the first one below.
__device__ inline u32 pack(float x, float y) {
  u32 both;
  asm("cvt.rn." TYPE "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
  return both;
}
__device__ inline float from_bits(u16 bits) { return FROM_BITS(bits); }
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
template <class F> __device__ inline float across_four(float x, const F& join) {
  x = join(x, __shfl_xor_sync(~0u, x, 1));
  return join(x, __shfl_xor_sync(~0u, x, 2));
}
// Of a product of rows: element e of column group n, by this lane.
__device__ inline int row_of(int m, int e) { return threadIdx.x / 32 * (16 * MT) + m * 16 + e / 2 * 8 + threadIdx.x % 32 / 4; }
__device__ inline int column_of(int n, int e) { return n * 8 + threadIdx.x % 4 * 2 + e % 2; }

// The product of the rows of two tiles: of `left`, those of this warp.
template <bool IS_LOADED>
__device__ inline void multiply_rows(float (&c)[MT][N / 8][4], const u32 (&loaded)[IS_LOADED ? MT : 1][D / 16][4], u32 left, u32 right) {
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) c[m][n][e] = 0;
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    u32 rows[MT][4];
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      if constexpr (IS_LOADED) {
        for (int i = 0; i < 4; ++i) rows[m][i] = loaded[m][k][i];
      } else {
        load_left(rows[m], left, row_of(m, 0) - threadIdx.x % 32 / 4, k);
      }
    }
#pragma unroll
    for (int n = 0; n < N / 16; ++n) {
      u32 columns[4];
      load_right(columns, right, 16 * n, k);
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        multiply(c[m][2 * n], rows[m], columns[0], columns[1]);
        multiply(c[m][2 * n + 1], rows[m], columns[2], columns[3]);
      }
    }
  }
}
// The rows of this warp, for all products with them.
__device__ inline void load_rows(u32 (&to)[MT][D / 16][4], u32 tile) {
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int k = 0; k < D / 16; ++k) load_left(to[m][k], tile, threadIdx.x / 32 * (16 * MT) + 16 * m, k);
}
// Adds the product of what a warp has with the rows of a tile.
__device__ inline void add_product(float (&c)[MT][D / 8][4], const float (&left)[MT][N / 8][4], u32 right) {
#pragma unroll
  for (int n = 0; n < N / 16; ++n) {
    u32 rows[MT][4];
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      rows[m][0] = pack(left[m][2 * n][0], left[m][2 * n][1]);
      rows[m][1] = pack(left[m][2 * n][2], left[m][2 * n][3]);
      rows[m][2] = pack(left[m][2 * n + 1][0], left[m][2 * n + 1][1]);
      rows[m][3] = pack(left[m][2 * n + 1][2], left[m][2 * n + 1][3]);
    }
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
      u32 columns[4];
      load_right_rows(columns, right, 16 * n, d);
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        multiply(c[m][2 * d], rows[m], columns[0], columns[1]);
        multiply(c[m][2 * d + 1], rows[m], columns[2], columns[3]);
      }
    }
  }
}
__device__ inline void clear(float (&c)[MT][D / 8][4]) {
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int d = 0; d < D / 8; ++d)
#pragma unroll
      for (int e = 0; e < 4; ++e) c[m][d][e] = 0;
}
// The rows of this warp, times a factor for each.
__device__ inline void store(void* to, long long offset, long long step, int first, int rows, int width,
                             const float (&c)[MT][D / 8][4], const float (&factor)[MT][2]) {
  u16* const base = (u16*)to + offset;
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + row_of(m, 2 * half);
      if (row >= rows) continue;
#pragma unroll
      for (int d = 0; d < D / 8; ++d) {
        const int column = column_of(d, 0);
        if (column >= width) continue;
        const u32 both = pack(c[m][d][2 * half] * factor[m][half], c[m][d][2 * half + 1] * factor[m][half]);
        u16* const at = base + row * step + column;
#if IS_ALIGNED
        *(u32*)at = both;
#else
        at[0] = u16(both);
        at[1] = u16(both >> 16);
#endif
      }
    }
}
// What is added to a score, in powers of two.
__device__ inline float mask_at(const u16* mask, const Args& a, int query, int key) {
  return from_bits(mask[query * a.mask_row + key * a.mask_column]) * 1.44269504088896340736f;
}
)";

// Whether a share is kept: its number is that of an element of [batch, heads, queries, keys].
constexpr const char* kDropout = R"(
struct Dropout {
  ls_draw_key draw;
  long long base, keys, last;
  u32 words[4];
  __device__ Dropout(const Args& a, long long pair) : draw(a.run, a.key, a.replica), base(pair * a.queries * a.keys), keys(a.keys), last(-1) {}
  __device__ bool keeps(long long query, long long key) {
    const long long number = base + query * keys + key;
    if (number / 4 != last) {
      last = number / 4;
      ls_draw(words, draw, last);
    }
    const int w = int(number % 4);
    return (w == 0 ? words[0] : w == 1 ? words[1] : w == 2 ? words[2] : words[3]) >= THRESHOLD;
  }
};
)";

constexpr const char* kForward = R"(
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) kernel(const Args a) {
  __shared__ __align__(128) unsigned char memory[(M + 4 * N) * D * 2];
  const u32 q_tile = u32(__cvta_generic_to_shared(memory)), k_tiles = q_tile + M * D * 2, v_tiles = k_tiles + 2 * N * D * 2;
  const int queries = int(a.queries), keys = int(a.keys), width = int(a.width);
  const int parts = (queries + M - 1) / M, first = int(blockIdx.x) % parts * M;
  const long long pair = int(blockIdx.x) / parts, batch = pair / a.heads, head = pair % a.heads;
  const u16* const q = (const u16*)a.q + batch * a.q_batch + head * a.q_head;
  const u16* const k = (const u16*)a.k + batch * a.k_batch + head * a.k_head;
  const u16* const v = (const u16*)a.v + batch * a.v_batch + head * a.v_head;
#if MASK
  const u16* const mask = (const u16*)a.mask + batch * a.mask_batch + head * a.mask_head;
#endif
#if DROPOUT
  Dropout dropout(a, pair);
#endif
  fetch<M>(q_tile, q, a.q_row, first, queries, width);
  fetch<N>(k_tiles, k, a.k_row, 0, keys, width);
  fetch<N>(v_tiles, v, a.v_row, 0, keys, width);
  await();
  u32 rows[MT][D / 16][4];
  load_rows(rows, q_tile);
  float result[MT][D / 8][4], most[MT][2], total[MT][2];
  clear(result);
#pragma unroll
  for (int m = 0; m < MT; ++m) {
    most[m][0] = most[m][1] = -INF;
    total[m][0] = total[m][1] = 0;
  }
  // Scores are compared as they are, unless they are scaled before: then `unit` is 1.
  const float unit = MASK || SCALE <= 0 ? 1.0f : SCALE * 1.44269504088896340736f;
  const int count = (keys + N - 1) / N;
  for (int j = 0; j < count; ++j) {
    const u32 here = u32(j % 2) * (N * D * 2), there = u32((j + 1) % 2) * (N * D * 2);
    if (j > 0) await();
    if (j + 1 < count) {
      fetch<N>(k_tiles + there, k, a.k_row, (j + 1) * N, keys, width);
      fetch<N>(v_tiles + there, v, a.v_row, (j + 1) * N, keys, width);
    }
    float score[MT][N / 8][4];
    multiply_rows<true>(score, rows, 0, k_tiles + here);
#if MASK || SCALE_IS_NOT_ABOVE_0
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int n = 0; n < N / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& x = score[m][n][e];
          x *= SCALE * 1.44269504088896340736f;
#if MASK
          const int row = first + row_of(m, e), column = j * N + column_of(n, e);
          if (row < queries && column < keys) x += mask_at(mask, a, row, column);
#endif
        }
#endif
    if ((j + 1) * N > keys) {
#pragma unroll
      for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int n = 0; n < N / 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            if (j * N + column_of(n, e) >= keys) score[m][n][e] = -INF;
    }
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float largest = most[m][half];
#pragma unroll
        for (int n = 0; n < N / 8; ++n) largest = fmaxf(largest, fmaxf(score[m][n][2 * half], score[m][n][2 * half + 1]));
        largest = across_four(largest, [](float x, float y) { return fmaxf(x, y); });
        const float from = largest == -INF ? 0.0f : largest * unit;
        const float factor = power_of_two(fmaf(most[m][half], unit, -from));
        most[m][half] = largest;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < N / 8; ++n)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            float& x = score[m][n][e];
            x = power_of_two(fmaf(x, unit, -from));
            sum += x;
#if DROPOUT
            if (!KEEPS(first + row_of(m, e), j * N + column_of(n, e))) x = 0;
#endif
          }
        total[m][half] = fmaf(total[m][half], factor, sum);
#pragma unroll
        for (int d = 0; d < D / 8; ++d) {
          result[m][d][2 * half] *= factor;
          result[m][d][2 * half + 1] *= factor;
        }
      }
    add_product(result, score, v_tiles + here);
  }
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = across_four(total[m][half], [](float x, float y) { return x + y; });
      const int row = first + row_of(m, 2 * half);
      if (threadIdx.x % 4 == 0 && row < queries)
        ((float*)a.logs)[pair * queries + row] = fmaf(most[m][half], unit, log2f(sum)) * 0.69314718055994530942f;
      total[m][half] = KEPT / sum;
    }
  store(a.first, batch * a.first_batch + head * a.first_head, a.first_row, first, queries, width, result, total);
}
)";

constexpr const char* kBackwardQueries = R"(
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) kernel(const Args a) {
  __shared__ __align__(128) unsigned char memory[(2 * M + 4 * N) * D * 2];
  const u32 q_tile = u32(__cvta_generic_to_shared(memory)), flow_tile = q_tile + M * D * 2;
  const u32 k_tiles = flow_tile + M * D * 2, v_tiles = k_tiles + 2 * N * D * 2;
  const int queries = int(a.queries), keys = int(a.keys), width = int(a.width);
  const int parts = (queries + M - 1) / M, first = int(blockIdx.x) % parts * M;
  const long long pair = int(blockIdx.x) / parts, batch = pair / a.heads, head = pair % a.heads;
  const u16* const q = (const u16*)a.q + batch * a.q_batch + head * a.q_head;
  const u16* const k = (const u16*)a.k + batch * a.k_batch + head * a.k_head;
  const u16* const v = (const u16*)a.v + batch * a.v_batch + head * a.v_head;
  const u16* const out = (const u16*)a.out + batch * a.out_batch + head * a.out_head;
  const u16* const flow = (const u16*)a.flow + batch * a.flow_batch + head * a.flow_head;
#if MASK
  const u16* const mask = (const u16*)a.mask + batch * a.mask_batch + head * a.mask_head;
#endif
#if DROPOUT
  Dropout dropout(a, pair);
#endif
  fetch<M>(q_tile, q, a.q_row, first, queries, width);
  fetch<M>(flow_tile, flow, a.flow_row, first, queries, width);
  fetch<N>(k_tiles, k, a.k_row, 0, keys, width);
  fetch<N>(v_tiles, v, a.v_row, 0, keys, width);
  float logs[MT][2], deltas[MT][2];  // sums of out * flow, of a row
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + row_of(m, 2 * half);
      float sum = 0;
#pragma unroll
      for (int i = 0; i < D / 4; i += 8) {
        const int column = threadIdx.x % 4 * (D / 4) + i;
        const bool is_there = row < queries && column < width;
        const auto x = ls_load<8>(out + row * a.out_row + column, is_there && IS_ALIGNED, is_there ? 8 : 0);
        const auto y = ls_load<8>(flow + row * a.flow_row + column, is_there && IS_ALIGNED, is_there ? 8 : 0);
        if (is_there)
#pragma unroll
          for (int e = 0; e < 8; ++e) sum = fmaf(from_bits(x.e[e]), from_bits(y.e[e]), sum);
      }
      deltas[m][half] = across_four(sum, [](float x, float y) { return x + y; });
      logs[m][half] = row < queries ? ((const float*)a.logs)[pair * queries + row] * 1.44269504088896340736f : INF;
      if (threadIdx.x % 4 == 0 && row < queries) ((float*)a.deltas)[pair * queries + row] = deltas[m][half];
    }
  float result[MT][D / 8][4];
  clear(result);
  u32 q_rows[KEEPS_ROWS ? MT : 1][D / 16][4], flow_rows[KEEPS_ROWS ? MT : 1][D / 16][4];
#if KEEPS_ROWS
  await();
  load_rows(q_rows, q_tile);
  load_rows(flow_rows, flow_tile);
#endif
  const int count = (keys + N - 1) / N;
  for (int j = 0; j < count; ++j) {
    const u32 here = u32(j % 2) * (N * D * 2), there = u32((j + 1) % 2) * (N * D * 2);
    if (!KEEPS_ROWS || j > 0) await();
    if (j + 1 < count) {
      fetch<N>(k_tiles + there, k, a.k_row, (j + 1) * N, keys, width);
      fetch<N>(v_tiles + there, v, a.v_row, (j + 1) * N, keys, width);
    }
      float score[MT][N / 8][4], back[MT][N / 8][4];
    multiply_rows<KEEPS_ROWS>(score, q_rows, q_tile, k_tiles + here);
    multiply_rows<KEEPS_ROWS>(back, flow_rows, flow_tile, v_tiles + here);
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int n = 0; n < N / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = first + row_of(m, e), column = j * N + column_of(n, e);
          float x = fmaf(score[m][n][e], SCALE * 1.44269504088896340736f, -logs[m][e / 2]);
#if MASK
          if (row < queries && column < keys) x += mask_at(mask, a, row, column);
#endif
          const float share = column < keys ? power_of_two(x) : 0.0f;
          float g = back[m][n][e];
#if DROPOUT
          g = KEEPS(row, column) ? g * KEPT : 0.0f;
#endif
          score[m][n][e] = share * (g - deltas[m][e / 2]);
        }
    add_product(result, score, k_tiles + here);
  }
  float factor[MT][2];
#pragma unroll
  for (int m = 0; m < MT; ++m) factor[m][0] = factor[m][1] = SCALE;
  store(a.first, batch * a.first_batch + head * a.first_head, a.first_row, first, queries, width, result, factor);
}
)";

constexpr const char* kBackwardKeys = R"(
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) kernel(const Args a) {
  __shared__ __align__(128) unsigned char memory[(2 * M + 4 * N) * D * 2];
  const u32 k_tile = u32(__cvta_generic_to_shared(memory)), v_tile = k_tile + M * D * 2;
  const u32 q_tiles = v_tile + M * D * 2, flow_tiles = q_tiles + 2 * N * D * 2;
  const int queries = int(a.queries), keys = int(a.keys), width = int(a.width);
  const int parts = (keys + M - 1) / M, first = int(blockIdx.x) % parts * M;
  const long long pair = int(blockIdx.x) / parts, batch = pair / a.heads, head = pair % a.heads;
  const u16* const q = (const u16*)a.q + batch * a.q_batch + head * a.q_head;
  const u16* const k = (const u16*)a.k + batch * a.k_batch + head * a.k_head;
  const u16* const v = (const u16*)a.v + batch * a.v_batch + head * a.v_head;
  const u16* const flow = (const u16*)a.flow + batch * a.flow_batch + head * a.flow_head;
  const float *const all_logs = (const float*)a.logs + pair * queries, *const all_deltas = (const float*)a.deltas + pair * queries;
#if MASK
  const u16* const mask = (const u16*)a.mask + batch * a.mask_batch + head * a.mask_head;
#endif
#if DROPOUT
  Dropout dropout(a, pair);
#endif
  fetch<M>(k_tile, k, a.k_row, first, keys, width);
  fetch<M>(v_tile, v, a.v_row, first, keys, width);
  fetch<N>(q_tiles, q, a.q_row, 0, queries, width);
  fetch<N>(flow_tiles, flow, a.flow_row, 0, queries, width);
  float dk[MT][D / 8][4], dv[MT][D / 8][4];
  clear(dk);
  clear(dv);
  u32 k_rows[KEEPS_ROWS ? MT : 1][D / 16][4], v_rows[KEEPS_ROWS ? MT : 1][D / 16][4];
#if KEEPS_ROWS
  await();
  load_rows(k_rows, k_tile);
  load_rows(v_rows, v_tile);
#endif
  const int count = (queries + N - 1) / N;
  for (int j = 0; j < count; ++j) {
    const u32 here = u32(j % 2) * (N * D * 2), there = u32((j + 1) % 2) * (N * D * 2);
    if (!KEEPS_ROWS || j > 0) await();
    if (j + 1 < count) {
      fetch<N>(q_tiles + there, q, a.q_row, (j + 1) * N, queries, width);
      fetch<N>(flow_tiles + there, flow, a.flow_row, (j + 1) * N, queries, width);
    }
      float logs[N / 8][2], deltas[N / 8][2];
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int query = j * N + column_of(n, e);
        logs[n][e] = query < queries ? all_logs[query] * 1.44269504088896340736f : INF;
        deltas[n][e] = query < queries ? all_deltas[query] : 0.0f;
      }
    float share[MT][N / 8][4], back[MT][N / 8][4];
    multiply_rows<KEEPS_ROWS>(share, k_rows, k_tile, q_tiles + here);
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int n = 0; n < N / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float x = fmaf(share[m][n][e], SCALE * 1.44269504088896340736f, -logs[n][e % 2]);
#if MASK
          const int key = first + row_of(m, e), query = j * N + column_of(n, e);
          if (key < keys && query < queries) x += mask_at(mask, a, query, key);
#endif
          share[m][n][e] = power_of_two(x);
        }
#if DROPOUT
    u32 kept[MT][N / 32 + 1] = {};
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int n = 0; n < N / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const bool keeps = KEEPS(j * N + column_of(n, e), first + row_of(m, e));
          kept[m][n / 8] |= u32(keeps) << (n % 8 * 4 + e);
          back[m][n][e] = keeps ? share[m][n][e] : 0.0f;
        }
    add_product(dv, back, flow_tiles + here);
#else
    add_product(dv, share, flow_tiles + here);
#endif
    multiply_rows<KEEPS_ROWS>(back, v_rows, v_tile, flow_tiles + here);
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int n = 0; n < N / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float g = back[m][n][e];
#if DROPOUT
          g = (kept[m][n / 8] >> (n % 8 * 4 + e) & 1) != 0 ? g * KEPT : 0.0f;
#endif
          back[m][n][e] = share[m][n][e] * (g - deltas[n][e % 2]);
        }
    add_product(dk, back, q_tiles + here);
  }
  float factor[MT][2];
#pragma unroll
  for (int m = 0; m < MT; ++m) factor[m][0] = factor[m][1] = SCALE;
  store(a.first, batch * a.first_batch + head * a.first_head, a.first_row, first, keys, width, dk, factor);
#pragma unroll
  for (int m = 0; m < MT; ++m) factor[m][0] = factor[m][1] = KEPT;
  store(a.second, batch * a.second_batch + head * a.second_head, a.second_row, first, keys, width, dv, factor);
}
)";

// Any dtype and width: a block of threads for each row, which goes through the others as often as there are parts of
// kThreads elements in a row, and once more.
constexpr const char* kPlain = R"(
#define THREADS 256
struct Place {
  long long pair, batch, head, row;
  __device__ Place(const Args& a, long long rows)
      : pair(blockIdx.x / rows), batch(pair / a.heads), head(pair % a.heads), row(blockIdx.x % rows) {}
};
#define BASE(name) at.batch * a.name##_batch + at.head * a.name##_head
__device__ inline T score_of(const Args& a, const Place& at, long long query, long long key) {
  const long long q = BASE(q) + query * a.q_row, k = BASE(k) + key * a.k_row;
  T sum = 0;
  for (long long e = 0; e < a.width; ++e) sum += LOAD(a.q, q + e) * LOAD(a.k, k + e);
  sum *= T(SCALE);
#if MASK
  sum += LOAD(a.mask, BASE(mask) + query * a.mask_row + key * a.mask_column);
#endif
  return sum;
}
__device__ inline T back_of(const Args& a, const Place& at, long long query, long long key) {
  const long long v = BASE(v) + key * a.v_row, flow = BASE(flow) + query * a.flow_row;
  T sum = 0;
  for (long long e = 0; e < a.value_width; ++e) sum += LOAD(a.flow, flow + e) * LOAD(a.v, v + e);
  return sum;
}
)";

constexpr const char* kPlainForward = R"(
extern "C" __global__ void kernel(const Args a) {
  __shared__ T shared[THREADS], shares[THREADS];
  const Place at(a, a.queries);
#if DROPOUT
  Dropout dropout(a, at.pair);
#endif
  T most = ls_lowest<T>();
  for (long long key = threadIdx.x; key < a.keys; key += THREADS) most = ls_max(most, score_of(a, at, at.row, key));
  most = ls_block_max(most, shared);
  T total = 0;
  for (long long key = threadIdx.x; key < a.keys; key += THREADS) total += exp(score_of(a, at, at.row, key) - most);
  total = ls_block_sum(total, shared);
  if (threadIdx.x == 0) ((T*)a.logs)[at.pair * a.queries + at.row] = most + log(total);
  for (long long part = 0; part < a.value_width; part += THREADS) {
    const long long column = part + threadIdx.x;
    T sum = 0;
    for (long long first = 0; first < a.keys; first += THREADS) {
      const long long key = first + threadIdx.x;
      T share = 0;
      if (key < a.keys && KEEPS(at.row, key)) share = exp(score_of(a, at, at.row, key) - most) / total * T(KEPT);
      shares[threadIdx.x] = share;
      __syncthreads();
      if (column < a.value_width)
        for (long long j = 0; j < THREADS && first + j < a.keys; ++j)
          sum += shares[j] * LOAD(a.v, BASE(v) + (first + j) * a.v_row + column);
      __syncthreads();
    }
    if (column < a.value_width) STORE(a.first, BASE(first) + at.row * a.first_row + column, sum);
  }
}
)";

constexpr const char* kPlainQueries = R"(
extern "C" __global__ void kernel(const Args a) {
  __shared__ T shared[THREADS], shares[THREADS];
  const Place at(a, a.queries);
#if DROPOUT
  Dropout dropout(a, at.pair);
#endif
  T delta = 0;
  for (long long e = threadIdx.x; e < a.value_width; e += THREADS)
    delta += LOAD(a.out, BASE(out) + at.row * a.out_row + e) * LOAD(a.flow, BASE(flow) + at.row * a.flow_row + e);
  delta = ls_block_sum(delta, shared);
  if (threadIdx.x == 0) ((T*)a.deltas)[at.pair * a.queries + at.row] = delta;
  const T logs = ((const T*)a.logs)[at.pair * a.queries + at.row];
  for (long long part = 0; part < a.width; part += THREADS) {
    const long long column = part + threadIdx.x;
    T sum = 0;
    for (long long first = 0; first < a.keys; first += THREADS) {
      const long long key = first + threadIdx.x;
      T share = 0;
      if (key < a.keys) {
        share = exp(score_of(a, at, at.row, key) - logs);
        share *= (KEEPS(at.row, key) ? back_of(a, at, at.row, key) * T(KEPT) : T(0)) - delta;
      }
      shares[threadIdx.x] = share;
      __syncthreads();
      if (column < a.width)
        for (long long j = 0; j < THREADS && first + j < a.keys; ++j)
          sum += shares[j] * LOAD(a.k, BASE(k) + (first + j) * a.k_row + column);
      __syncthreads();
    }
    if (column < a.width) STORE(a.first, BASE(first) + at.row * a.first_row + column, sum * T(SCALE));
  }
}
)";

constexpr const char* kPlainKeys = R"(
extern "C" __global__ void kernel(const Args a) {
  __shared__ T kept[THREADS], back[THREADS];
  const Place at(a, a.keys);
#if DROPOUT
  Dropout dropout(a, at.pair);
#endif
  const long long widest = a.width > a.value_width ? a.width : a.value_width;
  for (long long part = 0; part < widest; part += THREADS) {
    const long long column = part + threadIdx.x;
    T dk = 0, dv = 0;
    for (long long first = 0; first < a.queries; first += THREADS) {
      const long long query = first + threadIdx.x;
      T share = 0, flowing = 0;
      if (query < a.queries) {
        share = exp(score_of(a, at, query, at.row) - ((const T*)a.logs)[at.pair * a.queries + query]);
        const T factor = KEEPS(query, at.row) ? T(KEPT) : T(0);
        flowing = share * (back_of(a, at, query, at.row) * factor - ((const T*)a.deltas)[at.pair * a.queries + query]);
        share *= factor;
      }
      kept[threadIdx.x] = share;
      back[threadIdx.x] = flowing;
      __syncthreads();
      for (long long j = 0; j < THREADS && first + j < a.queries; ++j) {
        if (column < a.width) dk += back[j] * LOAD(a.q, BASE(q) + (first + j) * a.q_row + column);
        if (column < a.value_width) dv += kept[j] * LOAD(a.flow, BASE(flow) + (first + j) * a.flow_row + column);
      }
      __syncthreads();
    }
    if (column < a.width) STORE(a.first, BASE(first) + at.row * a.first_row + column, dk * T(SCALE));
    if (column < a.value_width) STORE(a.second, BASE(second) + at.row * a.second_row + column, dv);
  }
}
)";

std::string float_of(double value) { return str("float(", literal_of(value), ")"); }

}  // namespace

// Measured on an H200, heads of 64: more rows a warp save loads of what they meet; fewer leave room for more blocks.
AttentionTiles tiles_of(AttentionPass pass, std::int64_t width) {
  if (width > 64) return {.padded = 128, .row_groups = 1, .met = pass == AttentionPass::kForward ? 32 : 16};
  AttentionTiles tiles{.padded = width > 32 ? 64 : 32, .row_groups = 2};
  if (pass == AttentionPass::kQueries)
    tiles = {.padded = tiles.padded, .row_groups = 1, .blocks = 3, .keeps_rows = true};
  tiles.met = pass == AttentionPass::kKeys ? 32 : 64;
  return tiles;
}

bool fits_tiles(const AttentionText& what) {
  return size_of(what.dtype) == 2 && what.width == what.value_width && what.width % 8 == 0 &&
         what.width <= kMostWidth && what.rate < 1 && what.has_keys;
}

std::string attention_source(AttentionPass pass, const AttentionText& what) {
  const bool in_tiles = fits_tiles(what);
  std::string text = str(kPrelude, kArgs, "#define MASK ", what.has_mask ? 1 : 0, "\n#define DROPOUT ",
                         what.rate > 0 && what.rate < 1 ? 1 : 0, "\n");
  const auto add_dropout = [&] {
    if (what.rate <= 0) {
      text += "#define KEEPS(query, key) true\n";
    } else if (what.rate < 1) {
      text += str("#define THRESHOLD ", static_cast<std::uint32_t>(what.rate * 0x1p32),
                  "U\n#define KEEPS(query, key) dropout.keeps(query, key)\n", kDraw, kDropout);
    } else {
      text += "#define KEEPS(query, key) false\n";
    }
  };
  const double kept = what.rate < 1 ? 1 / (1 - what.rate) : 0;
  if (!in_tiles) {
    const TypeNames names = names_of(what.dtype);
    text += str("typedef ", names.computed, " T;\n#define SCALE ", literal_of(what.scale), "\n#define KEPT ",
                literal_of(kept), "\n#define LOAD(from, i) ", load_text(what.dtype, "from", "i"),
                "\n#define STORE(to, i, value) ", store_text(what.dtype, "to", "i", "value"), "\n", kPlain);
    add_dropout();
    switch (pass) {
      case AttentionPass::kForward: return text + kPlainForward;
      case AttentionPass::kQueries: return text + kPlainQueries;
      case AttentionPass::kKeys: return text + kPlainKeys;
    }
  }
  const AttentionTiles tiles = tiles_of(pass, what.width);
  const bool is_bf16 = what.dtype == DType::kBF16;
  text += str("#define TYPE \"", is_bf16 ? "bf16" : "f16", "\"\n#define FROM_BITS ",
              is_bf16 ? "ls_from_bf16" : "ls_from_f16", "\n#define IS_ALIGNED ", what.is_aligned ? 1 : 0,
              "\n#define D ", tiles.padded, "\n#define WIDTH ", what.width, "\n#define MT ", tiles.row_groups,
              "\n#define N ", tiles.met, "\n#define BLOCKS ", tiles.blocks, "\n#define KEEPS_ROWS ",
              tiles.keeps_rows ? 1 : 0, "\n#define SCALE ", float_of(what.scale),
              "\n#define SCALE_IS_NOT_ABOVE_0 ", what.scale > 0 ? 0 : 1, "\n#define KEPT ", float_of(kept),
              "\n", kTiles);
  add_dropout();
  switch (pass) {
    case AttentionPass::kForward: return text + kForward;
    case AttentionPass::kQueries: return text + kBackwardQueries;
    case AttentionPass::kKeys: return text + kBackwardKeys;
  }
  return text;
}

}  // namespace lockstep::internal::cuda
