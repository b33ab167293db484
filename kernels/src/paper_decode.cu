// The decode attention of the PagedAttention paper (section 5.1), kept plain to measure what its design costs: the
// FasterTransformer kernel reading K and V through a block table, one warp per block.
//
// A thread block of 4 warps serves one (query head, sequence). Pass 1: each warp takes every 4th block and, in groups
// of max(1, 32 / BLOCK_SIZE) lanes per token, writes the scores to shared memory. Then one safe softmax over all of
// them. Pass 2: each warp takes every 4th block again and adds its tokens' values, lanes across HEAD_SIZE.
// Consequences by block size: with large blocks few warps have work; with small ones a warp has little in flight.
//
// Layout: K [num_blocks, num_kv_heads, HEAD_SIZE / 8, BLOCK_SIZE, 8], V [num_blocks, num_kv_heads, BLOCK_SIZE,
// HEAD_SIZE]: the interleaved K lets neighbouring tokens' lanes read neighbouring 16-byte vectors, as in the paper's
// "layout optimized for block read".
//
// Measured (H200, fp16, 40 heads of 128, 32 ragged sequences of mean 400; microseconds by block size): 1: 448, 4: 231,
// 16: 199, 32: 198, 64: 285, 256: 319; decode.cu takes 86 at 1, 69 from 16 on.
//
// Grid (num_heads, num_seqs), 128 threads, shared memory 4 bytes per token of the longest context (dynamic).
// Compile-time: HEAD_SIZE, GROUP, BLOCK_SIZE (a power of two), BF16.
#include "common.cuh"

#define NUM_WARPS 4
#define LANES_PER_TOKEN (BLOCK_SIZE >= 32 ? 1 : 32 / BLOCK_SIZE)
#define TOKENS_PER_PASS (32 / LANES_PER_TOKEN)
#define VECTORS (HEAD_SIZE / 8)
#define DIM_PAIRS ((HEAD_SIZE / 2 + 31) / 32)  // per lane

DEVICE float dot8(uint4 a, const float* q) {
  float y = low_float(a.x) * q[0] + high_float(a.x) * q[1];
  y += low_float(a.y) * q[2] + high_float(a.y) * q[3];
  y += low_float(a.z) * q[4] + high_float(a.z) * q[5];
  return y + low_float(a.w) * q[6] + high_float(a.w) * q[7];
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
  for (int token = lane / LANES_PER_TOKEN; token < BLOCK_SIZE; token += TOKENS_PER_PASS) {
    bool valid = first + token < context_len;
    float s = 0;
    if (valid)
#pragma unroll 4
      for (int i = lane % LANES_PER_TOKEN; i < VECTORS; i += LANES_PER_TOKEN)
        s += dot8(__ldg((const uint4*)(keys + (i * BLOCK_SIZE + token) * 8)), query + i * 8);
#pragma unroll
    for (int step = LANES_PER_TOKEN / 2; step; step /= 2) s += __shfl_xor_sync(FULL_MASK, s, step);
    if (!valid) continue;
    scores[first + token] = s *= scale_log2;
    top = fmaxf(top, s);
  }
  return top;
}

DEVICE void add_block(float2 (&o)[DIM_PAIRS], const float* weights, const word16* values, int num_tokens, int lane) {
#pragma unroll 4
  for (int token = 0; token < num_tokens; token++)
#pragma unroll
    for (int i = 0; i < DIM_PAIRS; i++) {
      int pair = i * 32 + lane;
      if (pair >= HEAD_SIZE / 2) continue;
      unsigned v = __ldg((const unsigned*)(values + token * HEAD_SIZE) + pair);
      o[i].x += weights[token] * low_float(v), o[i].y += weights[token] * high_float(v);
    }
}

extern "C" __global__ void __launch_bounds__(NUM_WARPS * 32)
paper_decode(word16* out,              // [num_seqs, num_heads, HEAD_SIZE]
             const word16* q,          // [num_seqs, num_heads, HEAD_SIZE], rows of q_stride values
             const word16* k_cache,    // [num_blocks, num_kv_heads, HEAD_SIZE / 8, BLOCK_SIZE, 8]
             const word16* v_cache,    // [num_blocks, num_kv_heads, BLOCK_SIZE, HEAD_SIZE]
             const int* block_tables,  // [num_seqs, max_blocks]
             const int* context_lens,  // [num_seqs]
             float scale_log2,         // softmax scale * log2(e)
             int q_stride, int num_kv_heads, int max_blocks) {
  extern __shared__ float scores[];  // [context_len]
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

  float2 o[DIM_PAIRS] = {};
  for (int b = warp; b < num_blocks; b += NUM_WARPS) {
    long long at = ((long long)table[b] * num_kv_heads + head / GROUP) * BLOCK_SIZE * HEAD_SIZE;
    add_block(o, scores + b * BLOCK_SIZE, v_cache + at, min(BLOCK_SIZE, context_len - b * BLOCK_SIZE), lane);
  }
#pragma unroll
  for (int i = 0; i < DIM_PAIRS; i++)
    if (i * 32 + lane < HEAD_SIZE / 2) *(float2*)&o_shared[warp][(i * 32 + lane) * 2] = o[i];
  __syncthreads();
  for (int i = threadIdx.x; i < HEAD_SIZE / 2; i += NUM_WARPS * 32) {
    float2 total = make_float2(0, 0);
    for (int w = 0; w < NUM_WARPS; w++) total.x += o_shared[w][2 * i], total.y += o_shared[w][2 * i + 1];
    float inverse = context_len ? 1 / sum : 0;
    ((unsigned*)out)[((long long)seq * gridDim.x + head) * (HEAD_SIZE / 2) + i] =
        pack(total.x * inverse, total.y * inverse);
  }
}
