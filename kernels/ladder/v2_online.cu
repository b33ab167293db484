// Step 2: read the blocks where they lie. Nothing is copied, and no score is written to memory.
//
// A query head finds its keys by an index: kv head = head / GROUP. `one_pass` keeps a softmax that can grow (Milakov
// and Gimelshein 2018): a block with a larger score shrinks what was added up before. `two_passes` is the plain
// alternative: first the largest score and the sum, then, with every key read and every score computed again, the
// values.
//
// Grid (num_heads) of THREADS: a thread block makes one head's output of one sequence.
// Compile-time: HEAD_SIZE, GROUP, BLOCK_SIZE, BF16.
#include "../src/common.cuh"
#include "../ladder/online.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
one_pass(word16* out,            // [num_heads, HEAD_SIZE]
         const word16* q,        // [num_heads, HEAD_SIZE]
         const word16* k_cache,  // [num_blocks, num_kv_heads, BLOCK_SIZE, HEAD_SIZE]
         const word16* v_cache,  // as k_cache
         const int* table,       // the sequence's block ids
         float scale, int num_kv_heads, int context_len) {
  int head = blockIdx.x;
  attend_to_blocks(out + head * HEAD_SIZE, q + head * HEAD_SIZE, k_cache, v_cache, table, scale, num_kv_heads,
                   head / GROUP, context_len);
}

extern "C" __global__ void __launch_bounds__(THREADS)
two_passes(word16* out, const word16* q, const word16* k_cache, const word16* v_cache, const int* table,
           float scale, int num_kv_heads, int context_len) {  // as one_pass
  __shared__ float tops[WARPS];
  int head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, kv_head = head / GROUP;
  float query[DIMS], top = NEG_INF;
  State state = {NEG_INF, 0, {}};
  for (int i = 0; i < DIMS; i++) query[i] = value_at(q + head * HEAD_SIZE, i, lane);

  for (int n = warp; first_of_run(n) < context_len; n += WARPS) {
    const word16* keys = row_of(k_cache, table, first_of_run(n), num_kv_heads, kv_head);
    top = fmaxf(top, warp_max(scores_of(query, keys, count_of_run(n, context_len), scale, lane)));
  }
  if (lane == 0) tops[warp] = top;
  __syncthreads();
  for (int w = 0; w < WARPS; w++) top = fmaxf(top, tops[w]);

  state.top = top;  // It is the largest already: nothing shrinks from here on.
  for (int n = warp; first_of_run(n) < context_len; n += WARPS) {
    int first = first_of_run(n), count = count_of_run(n, context_len);
    const word16* keys = row_of(k_cache, table, first, num_kv_heads, kv_head);
    float weight = expf(scores_of(query, keys, count, scale, lane) - top);
    state.sum += warp_sum(weight);
    add_values(state, row_of(v_cache, table, first, num_kv_heads, kv_head), count, weight, lane);
  }
  merge(out + head * HEAD_SIZE, state, warp, lane);
}
