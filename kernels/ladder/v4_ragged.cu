// Step 4: prompts and decodes in one launch. The batch is a flat list of tokens with sequence ids and positions.
//
// A decode adds one token to its sequence, a prompt many. Flattened, both are tokens with a sequence id and a
// position; a token attends to positions 0 up to its own, so the causal mask is a number. `write_cache` puts the new
// keys and values to their slots first; then no token waits for another, and all of them are computed at once.
//
// Compile-time: HEAD_SIZE, GROUP, BLOCK_SIZE, BF16.
#include "../src/common.cuh"
#include "../ladder/online.cuh"

// Grid (num_tokens, num_heads) of THREADS: a thread block makes one head's output of one token.
extern "C" __global__ void __launch_bounds__(THREADS)
ragged(word16* out,            // [num_tokens, num_heads, HEAD_SIZE]
       const word16* q,        // [num_tokens, num_heads, HEAD_SIZE], rows of q_stride values
       const word16* k_cache,  // [num_blocks, num_kv_heads, BLOCK_SIZE, HEAD_SIZE]
       const word16* v_cache,  // as k_cache
       const int* tables,      // [num_seqs, max_blocks]
       const int* seq_ids,     // [num_tokens]: the token's sequence
       const int* positions,   // [num_tokens]: tokens of its sequence before it
       float scale, int num_kv_heads, int max_blocks, int q_stride) {
  long long token = blockIdx.x;
  int head = blockIdx.y, num_heads = gridDim.y;
  attend_to_blocks(out + (token * num_heads + head) * HEAD_SIZE, q + token * q_stride + head * HEAD_SIZE, k_cache,
                   v_cache, tables + (long long)seq_ids[token] * max_blocks, scale, num_kv_heads, head / GROUP,
                   positions[token] + 1);
}
