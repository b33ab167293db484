// Ragged prefill attention on Hopper with roles: two warps copy, two warpgroups compute (head sizes 64 and 128).
//
// As in FlashAttention-3 (Shah et al. 2024). Thread blocks stay and take items (128 new tokens of one head) in turn. A
// copying warp runs ahead through the block table: it orders tensor copies of blocks of K and V into two stages of 128
// tokens each; barriers in shared memory say when a stage is full and when it is free. Another warp fetches Q. So the
// first tiles of the next item arrive while this one is finished. The two computing warpgroups have 64 rows each:
//
//   wait K(n) | S = Q K(n) started | O += P(n-1) V(n-1) started | wait S, softmax | wait O, rescale where a maximum grew
//
// PINGPONG: the warpgroups take turns at starting products, so that one computes its softmax while the other multiplies.
// LAZY: a row's maximum is followed only where it grew by more than 2^8; weights stay below 2^8, the result is the same.
// The tail of the last block holds no tokens, perhaps NaN: its rows of V are set to zero, its scores are masked.
//
// A warpgroup whose rows are all past the sequence's end only keeps the barriers going.
// PACK: an item is 128 / GROUP tokens of all heads that share a kv head, so that short prompts leave fewer rows empty.
//
// Grid: as many thread blocks as multiprocessors, which draw their next item from a counter; without a counter one an
// item. Items by groups of `group` (sequence, head) pairs whose K and V fit the L2 cache together, in each the longest
// first.
//
// Compile-time: HEAD_SIZE (64, 128), GROUP, BLOCK_SIZE (8 to 256, powers of two), BF16, PINGPONG, LAZY, PACK.
#include "common.cuh"
#include "wgmma.cuh"
#include "pipeline.cuh"

#define NUM_THREADS 384
#define Q_ROWS 128
#define K_ROWS 128
#define SLABS (HEAD_SIZE / 64)
#define SLAB_BYTES (128 * 128)  // 128 rows of 64 values
#define TILE_BYTES (SLABS * SLAB_BYTES)
#define VECTORS (HEAD_SIZE / 8)
#define BOX_ROWS (BLOCK_SIZE < K_ROWS ? BLOCK_SIZE : K_ROWS)
#define BOXES (K_ROWS / BOX_ROWS * SLABS)  // of a tile; one a lane
#if PACK
#define HEADS GROUP  // of an item: its rows are tokens, and of each token its heads
#else
#define HEADS 1
#endif
#define Q_TOKENS (Q_ROWS / HEADS)
#define SLACK 8.0f                         // powers of two by which a maximum may lag behind (LAZY)

// Shared memory: Q, K twice, V twice, output on its way out, barriers.
#define K_AT TILE_BYTES
#define V_AT (3 * TILE_BYTES)
#define O_AT (5 * TILE_BYTES)
#define BARRIERS_AT (6 * TILE_BYTES)
enum Barrier { Q_FULL = 0, Q_FREE = 8, K_FULL = 16, K_FREE = 32, V_FULL = 48, V_FREE = 64, ITEM_FULL = 80, ITEM_FREE = 96 };
#define ITEMS_AT (BARRIERS_AT + 112)  // the numbers of two items, from the copying warp to the others

// Byte offset of 16-byte vector `vector` of row `row` in a tile.
DEVICE unsigned place(int row, int vector) {
  return vector / 8 * SLAB_BYTES + row * 128 + ((vector % 8 ^ row % 8) << 4);
}

struct Batch {
  const word16* q;
  const TensorMap* rows;  // memory from some address on, as rows of HEAD_SIZE values
  int k_row, v_row;       // the caches' first rows there
  int q_stride;
  const int *block_tables, *query_starts, *context_lens;
  int num_kv_heads, max_blocks, num_seqs, num_tiles, group;
};

// Q_TOKENS new tokens of HEADS heads of one sequence; end_tile is 0 where the sequence has none there.
struct Item {
  int seq, head, first, start, num_new, context_len, end_tile;
};

DEVICE int pairs_of(const Batch& b) { return b.num_seqs * b.num_kv_heads * (GROUP / HEADS); }

DEVICE Item item_of(const Batch& b, int index) {
  int heads = b.num_kv_heads * (GROUP / HEADS), span = b.num_tiles * b.group;
  int start_pair = index / span * b.group, in_group = index % span, size = min(b.group, pairs_of(b) - start_pair);
  Item item;
  int pair = start_pair + in_group % size;
  item.seq = pair / heads, item.head = pair % heads * HEADS;
  item.first = (b.num_tiles - 1 - in_group / size) * Q_TOKENS;
  item.start = b.query_starts[item.seq], item.num_new = b.query_starts[item.seq + 1] - item.start;
  item.context_len = b.context_lens[item.seq];
  int end = item.context_len - item.num_new + min(item.first + Q_TOKENS, item.num_new);
  item.end_tile = item.first < item.num_new ? (end + K_ROWS - 1) / K_ROWS : 0;
  return item;
}

// First cache row of the box that this lane copies of a tile; boxes past the context repeat the first block.
DEVICE int row_of_box(const Batch& b, const Item& item, int tile, int lane) {
  int token = tile * K_ROWS + lane / SLABS * BOX_ROWS;
  if (lane >= BOXES || token >= item.context_len) token = 0;
  int block = b.block_tables[(long long)item.seq * b.max_blocks + token / BLOCK_SIZE];
  return (block * b.num_kv_heads + item.head / GROUP) * BLOCK_SIZE + token % BLOCK_SIZE;
}

DEVICE void copy_tile(unsigned tile, const TensorMap* map, int row, unsigned full, int lane) {
  if (lane == 0) expect_bytes(full, TILE_BYTES);
  __syncwarp();
  if (lane < BOXES) copy_box(tile + lane % SLABS * SLAB_BYTES + lane / SLABS * BOX_ROWS * 128, map, lane % SLABS * 64, row, full);
}

// A number that no thread block has drawn yet; `num_items` or more when there is none. One lane draws.
DEVICE int draw_item(int* counter, int num_items, int lane) {
  int drawn = num_items;
  if (counter && lane == 0) drawn = atomicAdd(counter, 1) + (int)gridDim.x;
  return drawn;
}

// The last thread block to end leaves the counters at zero.
DEVICE void end_draws(int* counter) {
  if (!counter || atomicAdd(counter + 1, 1) != (int)gridDim.x - 1) return;
  counter[0] = counter[1] = 0;
}

// Tells the computing warps which item comes next; a negative one ends their work.
DEVICE void publish_item(int* item_numbers, unsigned barriers, int index, int items, int lane) {
  wait_barrier(barriers + ITEM_FREE + items % 2 * 8, items / 2 % 2 ^ 1);
  if (lane == 0) {
    *(volatile int*)(item_numbers + items % 2) = index;
    arrive(barriers + ITEM_FULL + items % 2 * 8);
  }
}

// The copying warp: every tile of every item, as early as there is room.
DEVICE void copy_all(const Batch& b, char* shared, int num_items, int* counter) {
  unsigned base = shared_address(shared), barriers = base + BARRIERS_AT;
  int* item_numbers = (int*)(shared + ITEMS_AT);
  int lane = threadIdx.x % 32, count = 0, items = 0, index = blockIdx.x;
  while (index < num_items) {
    int drawn = draw_item(counter, num_items, lane);  // used when this item's copies are under way
    Item item = item_of(b, index);
    if (item.end_tile) {
      int row = row_of_box(b, item, 0, lane);
      publish_item(item_numbers, barriers, index, items++, lane);
      for (int tile = 0; tile < item.end_tile; tile++, count++) {
        int stage = count % 2, parity = count / 2 % 2 ^ 1, next = row;
        if (tile + 1 < item.end_tile) next = row_of_box(b, item, tile + 1, lane);
        wait_barrier(barriers + K_FREE + stage * 8, parity);
        copy_tile(base + K_AT + stage * TILE_BYTES, b.rows, b.k_row + row, barriers + K_FULL + stage * 8, lane);
        wait_barrier(barriers + V_FREE + stage * 8, parity);
        copy_tile(base + V_AT + stage * TILE_BYTES, b.rows, b.v_row + row, barriers + V_FULL + stage * 8, lane);
        row = next;
      }
    }
    index = __shfl_sync(FULL_MASK, drawn, 0);
  }
  publish_item(item_numbers, barriers, -1, items, lane);
  if (lane == 0) end_draws(counter);
}

// The number of the next item, for one of the warps that are told.
DEVICE int next_item(const char* shared, unsigned barriers, int items, int lane) {
  wait_barrier(barriers + ITEM_FULL + items % 2 * 8, items / 2 % 2);
  int index = *(const volatile int*)(shared + ITEMS_AT + items % 2 * 4);
  __syncwarp();
  if (lane == 0) arrive(barriers + ITEM_FREE + items % 2 * 8);
  return index;
}

// The warp that fetches the queries of every item; rows past the sequence's end are zeros.
DEVICE void fetch_queries(const Batch& b, char* shared) {
  unsigned base = shared_address(shared), barriers = base + BARRIERS_AT;
  int lane = threadIdx.x % 32;
  for (int items = 0, index; (index = next_item(shared, barriers, items, lane)) >= 0; items++) {
    Item item = item_of(b, index);
    const word16* first = b.q + (long long)(item.start + item.first) * b.q_stride + item.head * HEAD_SIZE;
    int num_rows = (item.num_new - item.first) * HEADS;
    wait_barrier(barriers + Q_FREE, items % 2 ^ 1);
#pragma unroll 4
    for (int i = lane; i < Q_ROWS * VECTORS; i += 32) {
      int r = i / VECTORS, vector = i % VECTORS;
      const word16* from = first + (long long)(r / HEADS) * b.q_stride + r % HEADS * HEAD_SIZE + vector * 8;
      copy_async(base + place(r, vector), r < num_rows ? from : b.q, r < num_rows ? 16 : 0);
    }
    commit_copies();
    wait_copies<0>();
    publish_shared();
    __syncwarp();
    if (lane == 0) arrive(barriers + Q_FULL);
  }
}

DEVICE void start_scores(float (&s)[64], unsigned q, unsigned k) {
#pragma unroll
  for (int d = 0; d < HEAD_SIZE / 16; d++) {
    unsigned at = d / 4 * SLAB_BYTES + d % 4 * 32;
    wgmma_scores(s, descriptor(q + at, 16, 1024), descriptor(k + at, 16, 1024), d > 0);
  }
  commit_wgmma();
}

DEVICE void start_values(float (&o)[HEAD_SIZE / 2], const unsigned (&p)[8][4], unsigned v) {
#pragma unroll
  for (int n = 0; n < K_ROWS / 16; n++) wgmma_values(o, p[n], descriptor(v + n * 2048, SLAB_BYTES, 1024));
  commit_wgmma();
}

// Keys after a row's own position get no weight. `positions` are those of this lane's two rows, `key` the tile's first.
DEVICE void mask(float (&s)[64], const int (&positions)[2], int key, int lane) {
#pragma unroll
  for (int i = 0; i < 64; i++)
    if (key + i / 4 * 8 + lane % 4 * 2 + i % 2 > positions[i % 4 / 2]) s[i] = NEG_INF;
}

// Online softmax of 64 rows: scores become weights; returns whether the output must shrink, and by which factors.
DEVICE bool soften(float (&s)[64], float (&top)[2], float (&sum)[2], float (&shrink)[2], float scale_log2) {
  bool grew = false;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float high = s[2 * r];
#pragma unroll
    for (int n = 0; n < 16; n++) high = fmaxf(high, fmaxf(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]));
    high = fmaxf(high, __shfl_xor_sync(FULL_MASK, high, 1));
    high = fmaxf(high, __shfl_xor_sync(FULL_MASK, high, 2));
    high = fmaxf(high, top[r]);
#if LAZY
    if ((high - top[r]) * scale_log2 <= SLACK) high = top[r];
#endif
    grew |= high > top[r];
    shrink[r] = fast_exp2((top[r] - high) * scale_log2);
    top[r] = high;
    float offset = high * scale_log2, total[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float& x = s[4 * n + 2 * r + i];
        total[i] += x = fast_exp2(x * scale_log2 - offset);
      }
    sum[r] = sum[r] * shrink[r] + (total[0] + total[1]);
  }
  return __any_sync(FULL_MASK, grew);
}

DEVICE void pack_weights(unsigned (&p)[8][4], const float (&s)[64]) {
#pragma unroll
  for (int n = 0; n < 8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) p[n][i] = pack(s[8 * n + 2 * i], s[8 * n + 2 * i + 1]);
}

// Divides by the denominators and writes through this warp's own rows of shared memory, 16 bytes a lane.
DEVICE void store(float (&o)[HEAD_SIZE / 2], float (&sum)[2], char* staging, word16* out, long long out_stride,
                  int own_row, int num_rows) {
  int lane = threadIdx.x % 32, first = own_row + threadIdx.x / 32 % 4 * 16;
  __syncwarp();  // the last item's rows have been read
#pragma unroll
  for (int r = 0; r < 2; r++) {
    sum[r] += __shfl_xor_sync(FULL_MASK, sum[r], 1);
    sum[r] += __shfl_xor_sync(FULL_MASK, sum[r], 2);
    float inverse = 1 / sum[r];
#pragma unroll
    for (int d = 0; d < VECTORS; d++)
      *(unsigned*)(staging + place(first + r * 8 + lane / 4, d) + lane % 4 * 4) =
          pack(o[4 * d + 2 * r] * inverse, o[4 * d + 2 * r + 1] * inverse);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < VECTORS / 2; i++) {
    int r = first + (i * 32 + lane) / VECTORS, vector = (i * 32 + lane) % VECTORS;
    if (r < num_rows)
      *(uint4*)(out + r / HEADS * out_stride + r % HEADS * HEAD_SIZE + vector * 8) = *(uint4*)(staging + place(r, vector));
  }
}

// Rows of a tile of V that hold no token; both warpgroups write the same zeros.
DEVICE void clear_tail(char* tile, int first_row, int warpgroup) {
  for (int i = first_row * VECTORS + threadIdx.x % 128; i < K_ROWS * VECTORS; i += 128)
    *(uint4*)(tile + place(i / VECTORS, i % VECTORS)) = make_uint4(0, 0, 0, 0);
  publish_shared();
  sync_named(3 + warpgroup, 128);
}

// What a computing warpgroup knows wherever it is; `count` tiles have been computed, over all items.
struct Place {
  unsigned base, barriers, q_rows;
  int lane, warpgroup, count;
  int first_position, positions[2];  // of the warpgroup's first row, and of this lane's two
};

// One tile: its scores, softmax and weights, and the values of the tile before unless it is the item's first.
template <bool FIRST>
DEVICE void step(Place& at, const Item& item, int tile, float (&s)[64], float (&o)[HEAD_SIZE / 2],
                 unsigned (&p)[8][4], float (&top)[2], float (&sum)[2], float scale_log2) {
  int stage = at.count % 2, before = 1 - stage;
  wait_barrier(at.barriers + K_FULL + stage * 8, at.count / 2 % 2);
  if (!FIRST) wait_barrier(at.barriers + V_FULL + before * 8, (at.count - 1) / 2 % 2);
#if PINGPONG
  sync_named(1 + at.warpgroup, 256);
#endif
  pin(s);
  if (!FIRST) pin(o);
  begin_wgmma();
  start_scores(s, at.q_rows, at.base + K_AT + stage * TILE_BYTES);
  if (!FIRST) start_values(o, p, at.base + V_AT + before * TILE_BYTES);
#if PINGPONG
  arrive_named(2 - at.warpgroup, 256);
#endif
  wait_wgmma<FIRST ? 0 : 1>();
  pin(s);
  if (at.lane == 0) {
    arrive(at.barriers + K_FREE + stage * 8);
    if (tile + 1 == item.end_tile) arrive(at.barriers + Q_FREE);
  }
  float shrink[2];
  if (tile * K_ROWS + K_ROWS - 1 > at.first_position) mask(s, at.positions, tile * K_ROWS, at.lane);
  bool grew = soften(s, top, sum, shrink, scale_log2);
  if (!FIRST) {
    wait_wgmma<0>();
    pin(o);
    if (at.lane == 0) arrive(at.barriers + V_FREE + before * 8);
    if (grew) {
#pragma unroll
      for (int i = 0; i < HEAD_SIZE / 2; i++) o[i] *= shrink[i % 4 / 2];
    }
  }
  pack_weights(p, s);
  at.count++;
}

// The barriers of an item in which this warpgroup has no rows.
DEVICE void pass(Place& at, const Item& item) {
  for (int tile = 0; tile < item.end_tile; tile++, at.count++) {
    int stage = at.count % 2 * 8, parity = at.count / 2 % 2;
#if PINGPONG
    sync_named(1 + at.warpgroup, 256);
    arrive_named(2 - at.warpgroup, 256);
#endif
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
  Place at = {base, base + BARRIERS_AT, base + warpgroup * 64 * 128, (int)threadIdx.x % 32, warpgroup, 0};
  int own_row = warpgroup * 64;
  long long out_stride = (long long)b.num_kv_heads * GROUP * HEAD_SIZE;
  unsigned p[8][4];
  float top[2], sum[2], s[64], o[HEAD_SIZE / 2];
#if PINGPONG
  if (warpgroup == 1) arrive_named(1, 256);
#endif
  for (int items = 0, index; (index = next_item(shared, at.barriers, items, at.lane)) >= 0; items++) {
    Item item = item_of(b, index);
    int num_rows = (item.num_new - item.first) * HEADS, position = item.context_len - item.num_new + item.first;
    wait_barrier(at.barriers + Q_FULL, items % 2);
    if (own_row >= num_rows) {
      pass(at, item);
      continue;
    }
    int row = own_row + threadIdx.x / 32 % 4 * 16 + at.lane / 4;
    at.first_position = position + own_row / HEADS;
    at.positions[0] = position + row / HEADS, at.positions[1] = position + (row + 8) / HEADS;
    top[0] = top[1] = NEG_INF, sum[0] = sum[1] = 0;
#pragma unroll
    for (int i = 0; i < HEAD_SIZE / 2; i++) o[i] = 0;
    step<true>(at, item, 0, s, o, p, top, sum, scale_log2);
    for (int tile = 1; tile < item.end_tile; tile++) step<false>(at, item, tile, s, o, p, top, sum, scale_log2);
    int last = (at.count - 1) % 2, filled = item.context_len - (item.end_tile - 1) * K_ROWS;
    wait_barrier(at.barriers + V_FULL + last * 8, (at.count - 1) / 2 % 2);
    if (filled < K_ROWS) clear_tail(shared + V_AT + last * TILE_BYTES, filled, warpgroup);
    pin(o);
    begin_wgmma();
    start_values(o, p, base + V_AT + last * TILE_BYTES);
    wait_wgmma<0>();
    pin(o);
    if (at.lane == 0) arrive(at.barriers + V_FREE + last * 8);
    store(o, sum, shared + O_AT, out + (item.start + item.first) * out_stride + item.head * HEAD_SIZE, out_stride,
          own_row, num_rows);
  }
#if PINGPONG
  if (warpgroup == 0) sync_named(1, 256);
#endif
}

extern "C" __global__ void __launch_bounds__(NUM_THREADS, 1)
prefill(word16* out,              // [num_tokens, num_heads, HEAD_SIZE]
        const word16* q,          // [num_tokens, num_heads, HEAD_SIZE], rows of q_stride values
        const word16* k_cache,    // [num_blocks, num_kv_heads, BLOCK_SIZE, HEAD_SIZE]
        const word16* v_cache,    // as k_cache
        const int* block_tables,  // [num_seqs, max_blocks]
        const int* query_starts,  // [num_seqs + 1] first new token of each sequence
        const int* context_lens,  // [num_seqs] cached tokens, the new ones included
        const TensorMap* rows,    // memory from `origin` on: [rows, HEAD_SIZE] by boxes of [BOX_ROWS, 64]
        address_t origin,         // at or below both caches, whole rows away
        int* counter,             // [2], zero before and after, or none
        float scale_log2,         // softmax scale * log2(e)
        int q_stride, int num_kv_heads, int max_blocks, int num_seqs, int num_tiles, int group) {
  extern __shared__ __align__(1024) char shared[];
  Batch b = {q, rows, (int)(((address_t)k_cache - origin) / (HEAD_SIZE * 2)),
             (int)(((address_t)v_cache - origin) / (HEAD_SIZE * 2)), q_stride, block_tables, query_starts, context_lens,
             num_kv_heads, max_blocks, num_seqs, num_tiles, group};
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
    give_registers<40>();
    if (threadIdx.x < 32) copy_all(b, shared, num_tiles * pairs_of(b), counter);
    else if (threadIdx.x < 64) fetch_queries(b, shared);
  } else {
    take_registers<232>();
    attend_all(b, out, shared, scale_log2, threadIdx.x / 128 - 1);
  }
}
