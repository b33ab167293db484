// The decode attention of the PagedAttention paper (section 5.1) as its authors' 2023 system has it, kept plain to
// measure what the design costs: FasterTransformer's kernel, with one warp per block reading K and V by a block table.
//
// A thread block of 4 warps serves one (query head, sequence). Pass 1: each warp takes every 4th block. The lanes that
// share a token, max(1, 32 / BLOCK_SIZE) of them, read its key 16 bytes at a time together, and write its score to
// shared memory. Then one safe softmax over all scores. Pass 2: each warp takes every 4th block again. A lane reads up
// to 8 tokens of one row of the head at a time, and has every ROW_STEP-th row.
// Consequences by block size: below 16 a lane's reads are narrow (2 to 4 bytes), so a warp has little in flight; with
// large blocks and short contexts few warps have work, and whole blocks are read for a few tokens.
//
// Layout: K [num_blocks, num_kv_heads, HEAD_SIZE / 8, BLOCK_SIZE, 8], V [num_blocks, num_kv_heads, HEAD_SIZE,
// BLOCK_SIZE]: in both, neighbouring lanes read neighbouring vectors (the paper's "layout optimized for block read").
//
// Measured (H200, fp16, 40 heads of 128, 32 ragged sequences of mean 400; microseconds by block size): 1: 498, 2: 405,
// 4: 137, 8: 124, 16: 90, 32: 79, 64: 78, 128: 94, 256: 137; decode.cu takes 86 at 1, 69 from 16 on.
//
// Grid (num_heads, num_seqs), 128 threads, shared memory 4 bytes per slot of the longest context's blocks (dynamic).
// Compile-time: HEAD_SIZE, GROUP, BLOCK_SIZE (a power of two), BF16.
#include "common.cuh"

#define NUM_WARPS 4
#define K_LANES (BLOCK_SIZE >= 32 ? 1 : 32 / BLOCK_SIZE)  // that share a token
#define K_WIDTH (K_LANES >= 8 ? 1 : 8 / K_LANES)          // values in one read
#define K_READS ((HEAD_SIZE + K_LANES * K_WIDTH - 1) / (K_LANES * K_WIDTH))
#define V_WIDTH (BLOCK_SIZE < 8 ? BLOCK_SIZE : 8)  // tokens in one read
#define V_LANES (BLOCK_SIZE / V_WIDTH)             // that share a row
#define ROW_STEP (32 / V_LANES)
#define V_READS ((HEAD_SIZE + ROW_STEP - 1) / ROW_STEP)
#define KEEPS_ORDER (BLOCK_SIZE == 16 || BLOCK_SIZE == 32)  // reads of 8 and 16 bytes only

template <int N>
struct __align__(2 * N) Words {
  word16 x[N];
};

// 8 and 16 bytes, read where they are written.
DEVICE uint2 load8_in_order(const void* p) {
  uint2 y;
  asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(y.x), "=r"(y.y) : "l"(p));
  return y;
}

DEVICE uint4 load16_in_order(const void* p) {
  uint4 y;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(y.x), "=r"(y.y), "=r"(y.z), "=r"(y.w) : "l"(p));
  return y;
}

// With KEEPS_ORDER, reads stay where they are written: all of a token's, or of a block's rows, before the first is
// used, so that as many are in flight. Elsewhere the compiler's own order proved faster.
template <int N>
DEVICE Words<N> read(const word16* p) {
  Words<N> y;
  if (!KEEPS_ORDER) return *(const Words<N>*)p;
  if (N == 4)
    *(uint2*)&y = load8_in_order(p);
  else
    *(uint4*)&y = load16_in_order(p);
  return y;
}

DEVICE float block_reduce(float x, bool maximum) {
  __shared__ float parts[NUM_WARPS];
  x = maximum ? warp_max(x) : warp_sum(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  x = parts[0];
  for (int w = 1; w < NUM_WARPS; w++) x = maximum ? fmaxf(x, parts[w]) : x + parts[w];
  return x;
}

// Scores of one block's tokens, written to shared memory; returns the largest that this lane saw.
DEVICE float score_block(float* scores, const word16* keys, const float* query, int first, int context_len,
                         float scale_log2, int lane) {
  float top = NEG_INF;
#pragma unroll 1
  for (int pass = 0; pass < (BLOCK_SIZE + 31) / 32; pass++) {  // a count known beforehand keeps the warp together
    int token = pass * 32 + lane / K_LANES;
    Words<K_WIDTH> key[K_READS];
#pragma unroll
    for (int i = 0; i < K_READS; i++) {
      int at = (i * K_LANES + lane % K_LANES) * K_WIDTH;
      if (at < HEAD_SIZE) key[i] = read<K_WIDTH>(keys + (at / 8 * BLOCK_SIZE + token) * 8 + at % 8);
    }
    float s = 0;
#pragma unroll
    for (int i = 0; i < K_READS; i++) {
      int at = (i * K_LANES + lane % K_LANES) * K_WIDTH;
      if (at >= HEAD_SIZE) continue;
#pragma unroll
      for (int w = 0; w < K_WIDTH; w++) s += to_float(key[i].x[w]) * query[at + w];
    }
#pragma unroll
    for (int step = K_LANES / 2; step; step /= 2) s += __shfl_xor_sync(FULL_MASK, s, step);
    bool valid = first + token < context_len;
    scores[first + token] = s = valid ? s * scale_log2 : NEG_INF;
    top = fmaxf(top, s);
  }
  return top;
}

// Adds a block's weighted values to the lane's rows. PARTIAL: slots from num_tokens on may hold anything, even NaN.
template <bool PARTIAL>
DEVICE void add_block(float (&o)[V_READS], const float* weights, const word16* values, int num_tokens, int lane) {
  int first = lane % V_LANES * V_WIDTH;
  float weight[V_WIDTH];
  word16 mask[V_WIDTH];
#pragma unroll
  for (int t = 0; t < V_WIDTH; t++) {
    bool valid = !PARTIAL || first + t < num_tokens;
    weight[t] = valid ? weights[first + t] : 0, mask[t] = valid ? 0xffff : 0;
  }
#pragma unroll
  for (int i = 0; i < V_READS; i++) {
    int row = i * ROW_STEP + lane / V_LANES;
    if (row >= HEAD_SIZE) continue;
    Words<V_WIDTH> v = read<V_WIDTH>(values + row * BLOCK_SIZE + first);
#pragma unroll
    for (int t = 0; t < V_WIDTH; t++) o[i] += weight[t] * to_float(v.x[t] & mask[t]);
  }
}

extern "C" __global__ void __launch_bounds__(NUM_WARPS * 32)
paper_decode(word16* __restrict__ out,              // [num_seqs, num_heads, HEAD_SIZE]
             const word16* __restrict__ q,          // [num_seqs, num_heads, HEAD_SIZE], rows of q_stride values
             const word16* __restrict__ k_cache,    // [num_blocks, num_kv_heads, HEAD_SIZE / 8, BLOCK_SIZE, 8]
             const word16* __restrict__ v_cache,    // [num_blocks, num_kv_heads, HEAD_SIZE, BLOCK_SIZE]
             const int* __restrict__ block_tables,  // [num_seqs, max_blocks]
             const int* __restrict__ context_lens,  // [num_seqs]
             float scale_log2,                      // softmax scale * log2(e)
             int q_stride, int num_kv_heads, int max_blocks) {
  extern __shared__ float scores[];  // [num_blocks * BLOCK_SIZE]
  __shared__ float query[HEAD_SIZE], o_shared[NUM_WARPS][HEAD_SIZE];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.x, seq = blockIdx.y;
  int context_len = context_lens[seq], num_blocks = (context_len + BLOCK_SIZE - 1) / BLOCK_SIZE;
  const int* table = block_tables + (long long)seq * max_blocks;
  for (int i = threadIdx.x; i < HEAD_SIZE; i += NUM_WARPS * 32)
    query[i] = to_float(q[(long long)seq * q_stride + head * HEAD_SIZE + i]);
  __syncthreads();

  float top = NEG_INF, sum = 0;
  for (int b = warp; b < num_blocks; b += NUM_WARPS) {
    long long at = ((long long)table[b] * num_kv_heads + head / GROUP) * BLOCK_SIZE * HEAD_SIZE;
    top = fmaxf(top, score_block(scores, k_cache + at, query, b * BLOCK_SIZE, context_len, scale_log2, lane));
  }
  top = block_reduce(top, true);
  for (int i = threadIdx.x; i < context_len; i += NUM_WARPS * 32) sum += scores[i] = fast_exp2(scores[i] - top);
  sum = block_reduce(sum, false);

  float o[V_READS] = {};
  int full = context_len / BLOCK_SIZE;
  for (int b = warp; b < full; b += NUM_WARPS) {
    long long at = ((long long)table[b] * num_kv_heads + head / GROUP) * BLOCK_SIZE * HEAD_SIZE;
    add_block<false>(o, scores + b * BLOCK_SIZE, v_cache + at, BLOCK_SIZE, lane);
  }
  if (full < num_blocks && full % NUM_WARPS == warp) {
    long long at = ((long long)table[full] * num_kv_heads + head / GROUP) * BLOCK_SIZE * HEAD_SIZE;
    add_block<true>(o, scores + full * BLOCK_SIZE, v_cache + at, context_len - full * BLOCK_SIZE, lane);
  }
#pragma unroll
  for (int i = 0; i < V_READS; i++) {
#pragma unroll
    for (int step = V_LANES / 2; step; step /= 2) o[i] += __shfl_xor_sync(FULL_MASK, o[i], step);
    int row = i * ROW_STEP + lane / V_LANES;
    if (lane % V_LANES == 0 && row < HEAD_SIZE) o_shared[warp][row] = o[i];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < HEAD_SIZE / 2; i += NUM_WARPS * 32) {
    float2 total = make_float2(0, 0);
    for (int w = 0; w < NUM_WARPS; w++) total.x += o_shared[w][2 * i], total.y += o_shared[w][2 * i + 1];
    float inverse = context_len ? 1 / sum : 0;
    ((unsigned*)out)[((long long)seq * gridDim.x + head) * (HEAD_SIZE / 2) + i] =
        pack(total.x * inverse, total.y * inverse);
  }
}
