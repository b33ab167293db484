// Ragged prefill attention on Hopper with roles: two warps copy, two warpgroups compute (head sizes 64 and 128).
//
// As in FlashAttention-3 (Shah et al. 2024). Thread blocks stay and take items (128 new tokens of one head) in turn. A
// copying warp runs ahead through the block table: it orders tensor copies of blocks of K and V into two stages of 128
// tokens each; barriers in shared memory signal full and free stages. Another warp fetches Q. So the
// first tiles of the next item arrive while this one is finished. The two computing warpgroups have 64 rows each:
//
//   wait K(n) | S = Q K(n) started | O += P(n-1) V(n-1) started | wait S, softmax | wait O, rescale where a maximum grew
//
// Pingpong: the warpgroups take turns at starting products, so that one computes its softmax while the other multiplies.
// The tail of the last block has no tokens, perhaps NaN: its scores are masked, its rows of V arrive as zeros.
// PAGED or not as decode.cu: a box is a block or 128 rows of one, of an extent BOX_ROWS rows.
//
// A warpgroup whose rows are all past the sequence's end only keeps the barriers going.
// Halves: a warpgroup computes only half of the last tile where its rows see no more of it.
// SHORT: of an item's last tile only the half that is read is copied (40 heads, 16x161: 46.5 us instead of 48.5; longer
// prompts would take up to 0.8% longer).
// PACK: an item is 128 / GROUP tokens of all heads that share a kv head, so that short prompts leave fewer rows empty.
//
// Grid: as many thread blocks as multiprocessors, which draw their next item from a counter; without a counter one an
// item. Items by groups of `group` (sequence, head) pairs whose K and V fit the L2 cache together, in each the longest
// first.
//
// What each part is worth (H200, fp16, 40 heads of 128; microseconds at 1x4096 / 4x1024 / 16x161 new tokens): all 365 / 119 /
// 49; without halves 382 / 123 / 52, without pingpong 403 / 135 / 49, without lazy (prefill_rows.cuh) 383 / 126 / 50.
// 32/8 heads, PACK off and on: 87 / 91 at 4x1024, 39 / 32 at 16x161; so short prompts only.
// A wait for O in each branch after the softmax is slower by 5 to 6%: the assembler moves a common one before it.
//
// Compile-time: HEAD_SIZE (64, 128), GROUP, PAGED, BLOCK_SIZE (1 to 256, powers of two), BOX_ROWS, BF16, SHORT, PACK,
// WINDOWED.
#if PACK
#define HEADS GROUP  // of an item: its rows are tokens, and of each token its heads
#else
#define HEADS 1
#endif
#include "common.cuh"
#include "wgmma.cuh"
#include "prefill_rows.cuh"

#define NUM_THREADS 384
#define BOXES (K_ROWS / BOX_ROWS * SLABS)  // of a tile
#define BOXES_OF_LANE ((BOXES + 31) / 32)
#define Q_TOKENS (Q_ROWS / HEADS)

// Shared memory: Q, K twice, V twice, output on its way out, barriers.
#define K_AT TILE_BYTES
#define V_AT (3 * TILE_BYTES)
#define O_AT (5 * TILE_BYTES)
#define BARRIERS_AT (6 * TILE_BYTES)
enum Barrier { Q_FULL = 0, Q_FREE = 8, K_FULL = 16, K_FREE = 32, V_FULL = 48, V_FREE = 64, ITEM_FULL = 80, ITEM_FREE = 96 };
#define ITEMS_AT (BARRIERS_AT + 112)  // the numbers of two items, from the copying warp to the others

#include "prefill_items.cuh"
#include "prefill_copies.cuh"

// What a computing warpgroup knows wherever it is; `count` tiles have been computed, over all items.
struct Place {
  unsigned base, barriers, q_rows;
  int lane, warpgroup, count, window;
  int first_position, last_position, positions[2];  // of the warpgroup's first and last row, and of this lane's two
};

// One tile: its scores, softmax and weights, and the values of the tile before unless it is the item's first.
template <bool FIRST, int KEYS>
DEVICE void step(Place& at, const Item& item, int tile, float (&o)[HEAD_SIZE / 2], unsigned (&p)[8][4],
                 float (&top)[2], float (&sum)[2], float scale_log2) {
  float s[KEYS / 2];
  int stage = at.count % 2, before = 1 - stage;
  wait_barrier(at.barriers + K_FULL + stage * 8, at.count / 2 % 2);
  if (!FIRST) wait_barrier(at.barriers + V_FULL + before * 8, (at.count - 1) / 2 % 2);
  sync_named(1 + at.warpgroup, 256);
  pin(s);
  if (!FIRST) pin(o);
  begin_wgmma();
  start_scores<KEYS>(s, at.q_rows, at.base + K_AT + stage * TILE_BYTES);
  if (!FIRST) start_values<K_ROWS>(o, p, at.base + V_AT + before * TILE_BYTES);
  arrive_named(2 - at.warpgroup, 256);
  wait_wgmma<FIRST ? 0 : 1>();
  pin(s);
  if (at.lane == 0) {
    arrive(at.barriers + K_FREE + stage * 8);
    if (tile + 1 == item.end_tile) arrive(at.barriers + Q_FREE);
  }
  float shrink[2];
  if (tile * K_ROWS + KEYS - 1 > at.first_position || (WINDOWED && tile * K_ROWS <= at.last_position - at.window))
    mask<KEYS>(s, at.positions, tile * K_ROWS, at.window, at.lane);
  bool grew = soften<KEYS>(s, top, sum, shrink, scale_log2);
  if (!FIRST) {
    wait_wgmma<0>();
    pin(o);
    if (at.lane == 0) arrive(at.barriers + V_FREE + before * 8);
    if (grew) {
#pragma unroll
      for (int i = 0; i < HEAD_SIZE / 2; i++) o[i] *= shrink[i % 4 / 2];
    }
  }
  pack_weights<KEYS>(p, s);
  at.count++;
}

// The barriers of an item in which this warpgroup has no rows.
DEVICE void pass(Place& at, const Item& item) {
  for (int tile = item.low / K_ROWS; tile < item.end_tile; tile++, at.count++) {
    int stage = at.count % 2 * 8, parity = at.count / 2 % 2;
    sync_named(1 + at.warpgroup, 256);
    arrive_named(2 - at.warpgroup, 256);
    wait_barrier(at.barriers + K_FULL + stage, parity);
    wait_barrier(at.barriers + V_FULL + stage, parity);
    __syncwarp();
    if (at.lane == 0) arrive(at.barriers + K_FREE + stage), arrive(at.barriers + V_FREE + stage);
  }
  if (at.lane == 0) arrive(at.barriers + Q_FREE);
}

// A computing warpgroup: its 64 rows of every item.
DEVICE void attend_all(const Batch& b, word16* out, char* shared, float scale_log2, int warpgroup) {
  unsigned base = shared_address(shared);
  Place at = {base, base + BARRIERS_AT, base + warpgroup * 64 * 128, (int)threadIdx.x % 32, warpgroup, 0, b.window};
  int own_row = warpgroup * 64;
  long long out_stride = (long long)b.num_kv_heads * GROUP * HEAD_SIZE;
  unsigned p[8][4];
  float top[2], sum[2], o[HEAD_SIZE / 2];
  if (warpgroup == 1) arrive_named(1, 256);
  for (int items = 0, index; (index = next_item(shared, at.barriers, items, at.lane)) >= 0; items++) {
    Item item = item_of(b, index);
    int num_rows = (item.num_new - item.first) * HEADS, position = item.context_len - item.num_new + item.first;
    wait_barrier(at.barriers + Q_FULL, items % 2);
    if (own_row >= num_rows) {
      pass(at, item);
      continue;
    }
    int row = own_row + threadIdx.x / 32 % 4 * 16 + at.lane / 4;
    at.first_position = position + own_row / HEADS, at.last_position = position + (own_row + 63) / HEADS;
    at.positions[0] = position + row / HEADS, at.positions[1] = position + (row + 8) / HEADS;
    top[0] = top[1] = NEG_INF, sum[0] = sum[1] = 0;
#pragma unroll
    for (int i = 0; i < HEAD_SIZE / 2; i++) o[i] = 0;
    // The last tile, where the rows see at most half of it, is cut to that half.
    int first_tile = item.low / K_ROWS, last_tile = item.end_tile - 1;
    int last_read = SHORT ? min(at.last_position, item.end - 1) : at.last_position;
    bool half = __any_sync(FULL_MASK, last_read < last_tile * K_ROWS + 64);
    if (half && last_tile == first_tile) {
      step<true, 64>(at, item, first_tile, o, p, top, sum, scale_log2);
    } else {
      step<true, 128>(at, item, first_tile, o, p, top, sum, scale_log2);
      for (int tile = first_tile + 1; tile <= last_tile - half; tile++)
        step<false, 128>(at, item, tile, o, p, top, sum, scale_log2);
      if (half) step<false, 64>(at, item, last_tile, o, p, top, sum, scale_log2);
    }
    int last = (at.count - 1) % 2;
    wait_barrier(at.barriers + V_FULL + last * 8, (at.count - 1) / 2 % 2);
    if (half)
      add_last_values<64>(o, p, base + V_AT + last * TILE_BYTES);
    else
      add_last_values<128>(o, p, base + V_AT + last * TILE_BYTES);
    if (at.lane == 0) arrive(at.barriers + V_FREE + last * 8);
    store(o, sum, shared + O_AT, out + (item.start + item.first) * out_stride + item.head * HEAD_SIZE, out_stride,
          own_row + threadIdx.x / 32 % 4 * 16, num_rows, 1);
  }
  if (warpgroup == 0) sync_named(1, 256);
}

extern "C" __global__ void __launch_bounds__(NUM_THREADS, 1)
prefill(word16* out,              // [num_tokens, num_heads, HEAD_SIZE]
        const word16* q,          // [num_tokens, num_heads, HEAD_SIZE], rows of q_stride values
        const word16* k_cache,    // [num_blocks, num_kv_heads, BLOCK_SIZE, HEAD_SIZE] or extents of slots
        const word16* v_cache,    // as k_cache
        const int* places,        // block table [num_seqs, places_width], or [num_seqs, 2]: first slot, capacity
        const int* query_starts,  // [num_seqs + 1] first new token of each sequence
        const int* context_lens,  // [num_seqs] cached tokens, the new ones included
        const TensorMap* rows,    // memory from `origin` on: [rows, HEAD_SIZE] by boxes of [BOX_ROWS, 64]
        address_t origin,         // at or below both caches, whole rows away
        int* counter,             // [2], zero before and after, or none
        float scale_log2,         // softmax scale * log2(e)
        int q_stride, int num_kv_heads, int places_width, int num_seqs, int num_tiles, int group,
        int window) {             // WINDOWED
  extern __shared__ __align__(1024) char shared[];
  Cache keys = {k_cache, (int)(((address_t)k_cache - origin) / (HEAD_SIZE * 2))};
  Cache values = {v_cache, (int)(((address_t)v_cache - origin) / (HEAD_SIZE * 2))};
  Batch b = {q, keys, values, rows, q_stride, places, query_starts, context_lens, num_kv_heads, places_width, num_seqs,
             num_tiles, group, window};
  unsigned base = shared_address(shared), barriers = base + BARRIERS_AT;
  if (threadIdx.x == 0) {
    init_barrier(barriers + Q_FULL, 1);
    init_barrier(barriers + Q_FREE, 8);  // one arrival a computing warp
    for (int stage = 0; stage < 2; stage++) {
      init_barrier(barriers + K_FULL + stage * 8, 1);
      init_barrier(barriers + V_FULL + stage * 8, 1);
      init_barrier(barriers + ITEM_FULL + stage * 8, 1);
      init_barrier(barriers + ITEM_FREE + stage * 8, 9);  // these and the one that fetches queries
      init_barrier(barriers + K_FREE + stage * 8, 8);
      init_barrier(barriers + V_FREE + stage * 8, 8);
    }
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    give_registers();
    if (threadIdx.x < 32) copy_all(b, shared, num_tiles * pairs_of(b), counter);
    else if (threadIdx.x < 64) fetch_queries(b, shared);
  } else {
    take_registers();
    attend_all(b, out, shared, scale_log2, threadIdx.x / 128 - 1);
  }
}
