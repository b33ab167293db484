// Step 1: copy a sequence's blocks into one piece, then attend to the piece.
//
// `gather` undoes paging: it follows the block table and writes the keys (or values) of the sequence one after the
// other, each kv head repeated for the GROUP query heads that share it. `attend` is independent of blocks.
// A launch is a grid of thread blocks; THREADS threads of a thread block share memory, 32 of them (a warp) step
// together.
//
// Compile-time: HEAD_SIZE, GROUP (query heads per kv head), BLOCK_SIZE (slots per block), BF16.
#include "../src/common.cuh"

#define THREADS 128
#define WARPS (THREADS / 32)

// Grid (context_len): a thread block copies one token.
extern "C" __global__ void
gather(word16* piece,        // [num_heads, context_len, HEAD_SIZE]
       const word16* cache,  // [num_blocks, num_kv_heads, BLOCK_SIZE, HEAD_SIZE]
       const int* table,     // the sequence's block ids
       int num_kv_heads, int context_len) {
  int token = blockIdx.x, num_heads = num_kv_heads * GROUP;
  long long block = table[token / BLOCK_SIZE];
  for (int i = threadIdx.x; i < num_heads * HEAD_SIZE; i += THREADS) {
    int head = i / HEAD_SIZE, dim = i % HEAD_SIZE;
    long long row = (block * num_kv_heads + head / GROUP) * BLOCK_SIZE + token % BLOCK_SIZE;
    piece[((long long)head * context_len + token) * HEAD_SIZE + dim] = cache[row * HEAD_SIZE + dim];
  }
}

// Grid (num_heads): a thread block makes one head's output.
extern "C" __global__ void
attend(word16* out,      // [num_heads, HEAD_SIZE]
       const word16* q,  // [num_heads, HEAD_SIZE]
       const word16* k,  // [num_heads, context_len, HEAD_SIZE]
       const word16* v,  // as k
       float* scores,    // [num_heads, context_len], scores and weights between the passes
       float scale, int context_len) {
  __shared__ float tops[WARPS], sums[WARPS];
  int head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  out += head * HEAD_SIZE, q += head * HEAD_SIZE, scores += (long long)head * context_len;
  k += (long long)head * context_len * HEAD_SIZE, v += (long long)head * context_len * HEAD_SIZE;

  float top = NEG_INF;  // Scores: a warp takes a token, its lanes share the dimensions.
  for (int token = warp; token < context_len; token += WARPS) {
    float dot = 0;
    for (int dim = lane; dim < HEAD_SIZE; dim += 32) dot += to_float(q[dim]) * to_float(k[token * HEAD_SIZE + dim]);
    dot = warp_sum(dot) * scale;
    if (lane == 0) scores[token] = dot;
    top = fmaxf(top, dot);
  }
  if (lane == 0) tops[warp] = top;
  __syncthreads();
  for (int w = 0; w < WARPS; w++) top = fmaxf(top, tops[w]);

  float sum = 0;  // Weights: the largest score becomes 1.
  for (int token = threadIdx.x; token < context_len; token += THREADS) sum += scores[token] = expf(scores[token] - top);
  sum = warp_sum(sum);
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  sum = 0;
  for (int w = 0; w < WARPS; w++) sum += sums[w];

  for (int dim = threadIdx.x; dim < HEAD_SIZE; dim += THREADS) {  // Values: a thread makes a dimension.
    float total = 0;
    for (int token = 0; token < context_len; token++) total += scores[token] * to_float(v[token * HEAD_SIZE + dim]);
    out[dim] = (word16)pack(total / sum, 0);
  }
}
