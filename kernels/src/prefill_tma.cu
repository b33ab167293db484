// Ragged prefill attention on Hopper with roles: three warps copy, two warpgroups compute (head sizes 64 and 128).
//
// As in FlashAttention-3 (Shah et al. 2024). Thread blocks stay and take items (128 new tokens of one head) in turn. Two
// warps run ahead through the block table: one orders tensor copies of blocks of K, the other of V, into stages of 128
// tokens each; barriers in shared memory signal full and free stages. A third warp fetches Q. So the
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
// What each part is worth (H200, fp16, 40 heads of 128; microseconds at 1x4096 / 4x1024 / 16x161 new tokens): K and V
// copied by one warp 320 / 110 / 46.5, by one each 302 / 104 / 46, with six instead of five stages 304 / 103.5 / 43.
// Of the first, earlier: all 365 / 119 / 49; without halves 382 / 123 / 52, without pingpong 403 / 135 / 49, without lazy
// (prefill_rows.cuh) 383 / 126 / 50.
// 32/8 heads, PACK off and on: 87 / 91 at 4x1024, 39 / 32 at 16x161; so short prompts only.
// A wait for O in each branch after the softmax is slower by 5 to 6%: the assembler moves a common one before it.
//
// PREFIX: rows are decodes whose contexts begin with the same tokens, to which they attend together, chunk by chunk;
// decode.cu merges the chunks with the rest (shared_prefix.cuh).
//
// Compile-time: HEAD_SIZE (64, 128), GROUP, PAGED, BLOCK_SIZE (1 to 256, powers of two), BOX_ROWS, BF16, SHORT, PACK,
// PREFIX, WINDOWED.
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

// Shared memory: stages of Q, K and V, output on its way out, barriers. Where one more tile fits, short prompts gain most
// from the queries of the next item, long ones from more keys.
#define Q_STAGES (SHORT ? 2 : 1)
#define K_STAGES (SHORT ? 2 : 3)
#define V_STAGES 2
#define K_AT (Q_STAGES * TILE_BYTES)
#define V_AT (K_AT + K_STAGES * TILE_BYTES)
#define O_AT (V_AT + V_STAGES * TILE_BYTES)
#define BARRIERS_AT (O_AT + TILE_BYTES)
enum Barrier { Q_FULL = 0, Q_FREE = 16, K_FULL = 32, K_FREE = 56, V_FULL = 80, V_FREE = 96, ITEM_FULL = 112, ITEM_FREE = 128 };
#define ITEMS_AT (BARRIERS_AT + 144)  // the numbers of two items, from the warp that copies keys to the others

#include "shared_prefix.cuh"
#include "prefill_items.cuh"
#include "prefill_copies.cuh"

// Where PREFIX writes.
struct Partial {
  float* o;
  float2* state;
};

// What a computing warpgroup knows wherever it is; `count` tiles have been computed, over all items.
struct Place {
  unsigned base, barriers, q_rows, q_free;
  int lane, warpgroup, count, window;
  int first_position, last_position, positions[2];  // of the warpgroup's first and last row, and of this lane's two
};

// One tile: its scores, softmax and weights, and the values of the tile before unless it is the item's first.
template <bool FIRST, int KEYS>
DEVICE void step(Place& at, const Item& item, int tile, float (&o)[HEAD_SIZE / 2], unsigned (&p)[8][4],
                 float (&top)[2], float (&sum)[2], float scale_log2) {
  float s[KEYS / 2];
  int stage = at.count % K_STAGES, before = (at.count - 1) % V_STAGES;
  wait_barrier(at.barriers + K_FULL + stage * 8, at.count / K_STAGES % 2);
  if (!FIRST) wait_barrier(at.barriers + V_FULL + before * 8, (at.count - 1) / V_STAGES % 2);
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
    if (tile + 1 == item.end_tile) arrive(at.q_free);
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
    int k_stage = at.count % K_STAGES * 8, v_stage = at.count % V_STAGES * 8;
    sync_named(1 + at.warpgroup, 256);
    arrive_named(2 - at.warpgroup, 256);
    wait_barrier(at.barriers + K_FULL + k_stage, at.count / K_STAGES % 2);
    wait_barrier(at.barriers + V_FULL + v_stage, at.count / V_STAGES % 2);
    __syncwarp();
    if (at.lane == 0) arrive(at.barriers + K_FREE + k_stage), arrive(at.barriers + V_FREE + v_stage);
  }
  if (at.lane == 0) arrive(at.q_free);
}

// A computing warpgroup: its 64 rows of every item.
DEVICE void attend_all(const Batch& b, word16* out, const Partial& parts, char* shared, float scale_log2,
                       int warpgroup) {
  unsigned base = shared_address(shared);
  Place at = {base, base + BARRIERS_AT, 0, 0, (int)threadIdx.x % 32, warpgroup, 0, b.window};
  int own_row = warpgroup * 64;
  long long out_stride = (long long)b.num_kv_heads * GROUP * HEAD_SIZE;
  unsigned p[8][4];
  float top[2], sum[2], o[HEAD_SIZE / 2];
  if (warpgroup == 1) arrive_named(1, 256);
  for (int items = 0, index; (index = next_item(shared, at.barriers, items, at.lane)) >= 0; items++) {
    Item item = item_of(b, index);
    int num_rows = (item.num_new - item.first) * HEADS, position = item.context_len - item.num_new + item.first;
    int q_stage = items % Q_STAGES;
    at.q_rows = base + q_stage * TILE_BYTES + warpgroup * 64 * 128, at.q_free = at.barriers + Q_FREE + q_stage * 8;
    wait_barrier(at.barriers + Q_FULL + q_stage * 8, items / Q_STAGES % 2);
    if (own_row >= num_rows) {
      pass(at, item);
      continue;
    }
    int row = own_row + threadIdx.x / 32 % 4 * 16 + at.lane / 4;
    at.first_position = position + own_row / HEADS, at.last_position = position + (own_row + 63) / HEADS;
    at.positions[0] = position + row / HEADS, at.positions[1] = position + (row + 8) / HEADS;
    if (PREFIX) at.first_position = at.last_position = at.positions[0] = at.positions[1] = item.end - 1;
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
    int last = (at.count - 1) % V_STAGES;
    wait_barrier(at.barriers + V_FULL + last * 8, (at.count - 1) / V_STAGES % 2);
    if (half)
      add_last_values<64>(o, p, base + V_AT + last * TILE_BYTES);
    else
      add_last_values<128>(o, p, base + V_AT + last * TILE_BYTES);
    if (at.lane == 0) arrive(at.barriers + V_FREE + last * 8);
    if (PREFIX) {
      int heads = b.num_kv_heads * GROUP;
      long long part = ((long long)(item.start + item.first) * heads + item.head) * b.prefix_chunks + item.chunk;
      store_partial(o, top, sum, scale_log2, parts.o + part * HEAD_SIZE, parts.state + part, heads, b.prefix_chunks,
                    own_row + threadIdx.x / 32 % 4 * 16, num_rows);
      continue;
    }
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
        int window,               // WINDOWED
        float* part_o,            // PREFIX, instead of out: [num_tokens, num_heads, prefix_chunks, HEAD_SIZE]
        float2* part_state,       // PREFIX: [num_tokens, num_heads, prefix_chunks]: maximum, denominator
        int prefix_chunks) {      // PREFIX
  extern __shared__ __align__(1024) char shared[];
  Cache keys = {k_cache, (int)(((address_t)k_cache - origin) / (HEAD_SIZE * 2))};
  Cache values = {v_cache, (int)(((address_t)v_cache - origin) / (HEAD_SIZE * 2))};
  Batch b = {q, keys, values, rows, q_stride, places, query_starts, context_lens, num_kv_heads, places_width, num_seqs,
             num_tiles, group, window, prefix_chunks};
  unsigned base = shared_address(shared), barriers = base + BARRIERS_AT;
  if (threadIdx.x == 0) {
    // One arrival fills a stage, each of the 8 computing warps frees it.
    init_stages(barriers + Q_FULL, Q_STAGES, 1), init_stages(barriers + Q_FREE, Q_STAGES, 8);
    init_stages(barriers + K_FULL, K_STAGES, 1), init_stages(barriers + K_FREE, K_STAGES, 8);
    init_stages(barriers + V_FULL, V_STAGES, 1), init_stages(barriers + V_FREE, V_STAGES, 8);
    // An item is read by them, and by the warps that copy values and queries.
    init_stages(barriers + ITEM_FULL, 2, 1), init_stages(barriers + ITEM_FREE, 2, 10);
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    give_registers();
    if (threadIdx.x < 32) copy_keys(b, shared, num_tiles * pairs_of(b), counter);
    else if (threadIdx.x < 64) copy_values(b, shared);
    else if (threadIdx.x < 96) fetch_queries(b, shared);
  } else {
    take_registers();
    attend_all(b, out, {part_o, part_state}, shared, scale_log2, threadIdx.x / 128 - 1);
  }
}
