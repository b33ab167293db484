// The small operations between a transformer's matrix products, one pass each over 16-byte vectors.
//
// add_norm  adds a bias to the residual stream in place, then LayerNorm or RMSNorm of it. Grid (num_tokens).
// rotate    RoPE on q and k in place; a head's first and second half are the coordinates that turn. Grid (num_tokens).
// silu_mul  SwiGLU: silu(gate) * up. Grid (splits, num_tokens).
//
// Compile-time: BF16; HIDDEN, NUM_THREADS, SHIFT, CARRY (add_norm); HEAD_SIZE (rotate). Sums and angles are fp32.
#include "common.cuh"

struct Eight {
  float x[8];
};

DEVICE Eight unpack(uint4 v) {
  unsigned words[4] = {v.x, v.y, v.z, v.w};
  Eight y;
#pragma unroll
  for (int i = 0; i < 4; i++) y.x[2 * i] = low_float(words[i]), y.x[2 * i + 1] = high_float(words[i]);
  return y;
}

DEVICE uint4 packed(const Eight& y) {
  return make_uint4(pack(y.x[0], y.x[1]), pack(y.x[2], y.x[3]), pack(y.x[4], y.x[5]), pack(y.x[6], y.x[7]));
}

#ifdef HIDDEN
#define VECTORS (HIDDEN / 8)
#define PER_THREAD ((VECTORS + NUM_THREADS - 1) / NUM_THREADS)

// The sum over the thread block, known to every thread.
DEVICE float block_sum(float x, float* shared) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int i = 0; i < NUM_THREADS / 32; i++) total += shared[i];
  __syncthreads();
  return total;
}

extern "C" __global__ void __launch_bounds__(NUM_THREADS)
add_norm(uint4* y,        // [num_tokens, HIDDEN]
         uint4* x,            // [num_tokens, HIDDEN]; CARRY: x += carried
         const uint4* carry,  // [HIDDEN]
         const uint4* gain,   // [HIDDEN]
         const uint4* shift,  // [HIDDEN], with SHIFT: LayerNorm
         float eps) {
  __shared__ float shared[NUM_THREADS / 32];
  long long row = (long long)blockIdx.x * VECTORS;
  Eight values[PER_THREAD];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < PER_THREAD; i++) {
    int at = threadIdx.x + i * NUM_THREADS;
    if (at >= VECTORS) break;
    values[i] = unpack(x[row + at]);
    if (CARRY) {
      Eight more = unpack(carry[at]);
#pragma unroll
      for (int j = 0; j < 8; j++) values[i].x[j] += more.x[j];
      x[row + at] = packed(values[i]);
    }
#pragma unroll
    for (int j = 0; j < 8; j++) sum += values[i].x[j];
  }
  float mean = SHIFT ? block_sum(sum, shared) / HIDDEN : 0.0f, squares = 0;
#pragma unroll
  for (int i = 0; i < PER_THREAD; i++)
    if (threadIdx.x + i * NUM_THREADS < VECTORS)
#pragma unroll
      for (int j = 0; j < 8; j++) squares += (values[i].x[j] - mean) * (values[i].x[j] - mean);
  float scale = rsqrtf(block_sum(squares, shared) / HIDDEN + eps);
#pragma unroll
  for (int i = 0; i < PER_THREAD; i++) {
    int at = threadIdx.x + i * NUM_THREADS;
    if (at >= VECTORS) break;
    Eight g = unpack(gain[at]), s = SHIFT ? unpack(shift[at]) : Eight{};
#pragma unroll
    for (int j = 0; j < 8; j++) g.x[j] = (values[i].x[j] - mean) * scale * g.x[j] + s.x[j];
    y[row + at] = packed(g);
  }
}
#endif

#ifdef HEAD_SIZE
extern "C" __global__ void __launch_bounds__(256)
rotate(word16* q,                   // [num_tokens, num_heads, HEAD_SIZE], rows of q_stride values
       word16* k,                   // [num_tokens, num_kv_heads, HEAD_SIZE], rows of k_stride values
       const long long* positions,  // [num_tokens]
       const float* turns,          // [max_len, 2, HEAD_SIZE / 2]: cosines, sines
       int q_stride, int k_stride, int num_heads, int num_kv_heads) {
  const int half = HEAD_SIZE / 2, vectors = half / 8;
  const float* cosines = turns + positions[blockIdx.x] * HEAD_SIZE;
  for (int i = threadIdx.x; i < (num_heads + num_kv_heads) * vectors; i += blockDim.x) {
    int head = i / vectors, at = i % vectors * 8;
    word16* row = head < num_heads ? q + (long long)blockIdx.x * q_stride + head * HEAD_SIZE
                                   : k + (long long)blockIdx.x * k_stride + (head - num_heads) * HEAD_SIZE;
    Eight a = unpack(*(uint4*)(row + at)), b = unpack(*(uint4*)(row + half + at)), c, d;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      float cosine = cosines[at + j], sine = cosines[half + at + j];
      c.x[j] = a.x[j] * cosine - b.x[j] * sine;
      d.x[j] = b.x[j] * cosine + a.x[j] * sine;
    }
    *(uint4*)(row + at) = packed(c);
    *(uint4*)(row + half + at) = packed(d);
  }
}
#endif

extern "C" __global__ void __launch_bounds__(256)
silu_mul(uint4* y,        // [num_tokens, vectors]
         const uint4* x,  // [num_tokens, 2, vectors]: gate, up
         int vectors) {
  long long token = blockIdx.y;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < vectors; i += gridDim.x * blockDim.x) {
    Eight gate = unpack(x[2 * token * vectors + i]), up = unpack(x[(2 * token + 1) * vectors + i]);
#pragma unroll
    for (int j = 0; j < 8; j++) up.x[j] *= gate.x[j] / (1.0f + fast_exp2(-1.44269504f * gate.x[j]));
    y[token * vectors + i] = packed(up);
  }
}
