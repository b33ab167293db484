// Ragged prefill attention on Hopper: what prefill.cu computes, on warpgroup matrix products (head sizes 64 and 128).
//
// A thread block of two warpgroups takes 128 new tokens of one head, 64 rows each, over tiles of 128 cached tokens.
// Q, K and V lie in shared memory in slabs of 64 dims, 128-byte swizzled; K and V are double buffered by cp.async
// through the block table. As in FlashAttention-3 (Shah et al. 2024), the scores of the next tile are started before
// the values of this one, so that the tensor cores work during the softmax:
//
//   S(n) = Q K(n) started | O += P(n-1) V(n-1) started | wait S(n), softmax | wait O, rescale
//
// Grid (tiles x sequences x heads): groups of `group` (sequence, head) pairs whose K and V fit the L2 cache together,
// in each the longest tiles first.
//
// Runs where prefill_tma.cu cannot: extents, and blocks of other sizes. Measured (H200, fp16, 40 heads of 128; microseconds
// at 1x1024 / 1x4096 new tokens): 40 / 419, prefill.cu 66 / 623.
//
// Compile-time: HEAD_SIZE (64, 128), GROUP, BLOCK_SIZE, BF16. Shared memory: `wgmma_shared_bytes` of its launch.
#define HEADS 1  // a row is a token
#include "common.cuh"
#include "wgmma.cuh"
#include "softmax.cuh"

#define NUM_THREADS 256

// Token of a tile whose row number this lane looks up; tokens past the context repeat the last one.
DEVICE int token_of_lane(int tile, int context_len) {
  return min(tile * K_ROWS + (int)threadIdx.x % 16 + (int)threadIdx.x / 32 * 16, context_len - 1);
}

// Starts the copy of this warp's 16 rows of a K or V tile; `row` is the cache row of token lane % 16.
DEVICE void load_tile(unsigned tile, const word16* cache, unsigned row) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < VECTORS / 2; i++) {
    int r = (i * 32 + lane) / VECTORS, vector = (i * 32 + lane) % VECTORS;
    long long from = (long long)__shfl_sync(FULL_MASK, row, r) * HEAD_SIZE + vector * 8;
    copy_async(tile + place(warp * 16 + r, vector), cache + from);
  }
}

extern "C" __global__ void __launch_bounds__(NUM_THREADS, 1)
prefill(word16* out,              // [num_tokens, num_heads, HEAD_SIZE]
        const word16* q,          // [num_tokens, num_heads, HEAD_SIZE], rows of q_stride values
        const word16* k_cache,    // [num_blocks, num_kv_heads, BLOCK_SIZE, HEAD_SIZE]
        const word16* v_cache,    // as k_cache
        const int* block_tables,  // [num_seqs, max_blocks]
        const int* query_starts,  // [num_seqs + 1] first new token of each sequence
        const int* context_lens,  // [num_seqs] cached tokens, the new ones included
        float scale_log2,         // softmax scale * log2(e)
        int q_stride, int num_kv_heads, int max_blocks, int num_seqs, int num_tiles, int group) {
  extern __shared__ __align__(1024) char shared[];  // Q, K twice, V twice
  int num_heads = num_kv_heads * GROUP, pairs = num_seqs * num_heads;
  int start_pair = blockIdx.x / (num_tiles * group) * group, in_group = blockIdx.x % (num_tiles * group);
  int size = min(group, pairs - start_pair), pair = start_pair + in_group % size;
  int seq = pair / num_heads, head = pair % num_heads, first = (num_tiles - 1 - in_group / size) * Q_ROWS;
  int start = query_starts[seq], num_new = query_starts[seq + 1] - start, context_len = context_lens[seq];
  if (first >= num_new) return;
  int past = context_len - num_new, end_tile = (past + min(first + Q_ROWS, num_new) + K_ROWS - 1) / K_ROWS;
  const int* table = block_tables + (long long)seq * max_blocks;
  unsigned block_rows = (unsigned)num_kv_heads * BLOCK_SIZE, head_row = (unsigned)(head / GROUP) * BLOCK_SIZE;
  unsigned q_tile = shared_address(shared), k_tiles = q_tile + TILE_BYTES, v_tiles = k_tiles + 2 * TILE_BYTES;

  const word16* q_first = q + (long long)(start + first) * q_stride + head * HEAD_SIZE;
  for (int i = threadIdx.x; i < Q_ROWS * VECTORS; i += NUM_THREADS) {
    int r = i / VECTORS, vector = i % VECTORS;
    bool valid = first + r < num_new;
    copy_async(q_tile + place(r, vector), valid ? q_first + (long long)r * q_stride + vector * 8 : q, valid ? 16 : 0);
  }
  int token = token_of_lane(0, context_len);
  unsigned row = table[token / BLOCK_SIZE] * block_rows + head_row + token % BLOCK_SIZE;
  load_tile(k_tiles, k_cache, row);
  commit_copies();
  token = token_of_lane(1, context_len);
  int block = table[token / BLOCK_SIZE];

  int lane = threadIdx.x % 32, warpgroup = threadIdx.x / 128;
  int position = past + first + threadIdx.x / 32 * 16 + lane / 4, first_position = past + first + warpgroup * 64;
  int positions[2] = {position, position + 8};
  unsigned q_rows = q_tile + warpgroup * 64 * 128, p[8][4];
  float top[2] = {NEG_INF, NEG_INF}, sum[2] = {0, 0}, shrink[2], s[64], o[HEAD_SIZE / 2];
#pragma unroll
  for (int i = 0; i < HEAD_SIZE / 2; i++) o[i] = 0;

  for (int tile = 0; tile < end_tile; tile++) {
    wait_copies<0>();
    publish_shared();
    __syncthreads();  // K(tile) and V(tile - 1) have arrived; no thread reads K(tile - 1) or V(tile - 2) any more
    load_tile(v_tiles + tile % 2 * TILE_BYTES, v_cache, row);
    if (tile + 1 < end_tile) {
      row = block * block_rows + head_row + token % BLOCK_SIZE;
      load_tile(k_tiles + (tile + 1) % 2 * TILE_BYTES, k_cache, row);
      token = token_of_lane(tile + 2, context_len);
      block = table[token / BLOCK_SIZE];
    }
    commit_copies();
    pin(s);
    pin(o);
    begin_wgmma();
    start_scores<K_ROWS>(s, q_rows, k_tiles + tile % 2 * TILE_BYTES);
    if (tile > 0) {
      start_values<K_ROWS>(o, p, v_tiles + (tile - 1) % 2 * TILE_BYTES);
      wait_wgmma<1>();
    } else {
      wait_wgmma<0>();
    }
    pin(s);
    if (tile * K_ROWS + K_ROWS - 1 > first_position) mask<K_ROWS>(s, positions, tile * K_ROWS, 0, lane);
    soften<K_ROWS>(s, top, sum, shrink, scale_log2);
    wait_wgmma<0>();
    pin(o);
#pragma unroll
    for (int i = 0; i < HEAD_SIZE / 2; i++) o[i] *= shrink[i % 4 / 2];
    pack_weights<K_ROWS>(p, s);
  }
  wait_copies<0>();
  publish_shared();
  __syncthreads();
  add_last_values<K_ROWS>(o, p, v_tiles + (end_tile - 1) % 2 * TILE_BYTES);
  long long out_stride = (long long)num_heads * HEAD_SIZE;
  sync_named(1 + warpgroup, 128);  // the warpgroup is done with its queries
  store(o, sum, shared, out + (start + first) * out_stride + head * HEAD_SIZE, out_stride, warpgroup * 64,
        num_new - first);
}
