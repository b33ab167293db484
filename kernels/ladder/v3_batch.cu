// Step 3: all sequences of a batch in one launch. The grid has a second dimension, and that is all.
//
// A GPU has some hundred multiprocessors; the heads of one sequence fill a few of them. Many sequences fill the rest,
// and the host orders one launch where it ordered one for each.
//
// Grid (num_heads, num_seqs) of THREADS: a thread block makes one head's output of one sequence.
// Compile-time: HEAD_SIZE, GROUP, BLOCK_SIZE, BF16.
#include "../src/common.cuh"
#include "../ladder/online.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
batched(word16* out,              // [num_seqs, num_heads, HEAD_SIZE]
        const word16* q,          // [num_seqs, num_heads, HEAD_SIZE], rows of q_stride values
        const word16* k_cache,    // [num_blocks, num_kv_heads, BLOCK_SIZE, HEAD_SIZE]
        const word16* v_cache,    // as k_cache
        const int* tables,        // [num_seqs, max_blocks]
        const int* context_lens,  // [num_seqs]
        float scale, int num_kv_heads, int max_blocks, int q_stride) {
  int head = blockIdx.x, num_heads = gridDim.x;
  long long seq = blockIdx.y;
  attend_to_blocks(out + (seq * num_heads + head) * HEAD_SIZE, q + seq * q_stride + head * HEAD_SIZE, k_cache, v_cache,
                   tables + seq * max_blocks, scale, num_kv_heads, head / GROUP, context_lens[seq]);
}
