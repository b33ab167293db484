// Of prefill_tma.cu: the three warps that copy.
#pragma once

// First token of the first box that is read.
DEVICE int first_box(const Item& item) { return item.low / BOX_ROWS * BOX_ROWS; }

// First cache row of a box of a tile; boxes outside what is read repeat the first that is.
DEVICE int row_of_box(const Batch& b, const Item& item, int tile, int box) {
  int token = tile * K_ROWS + box / SLABS * BOX_ROWS;
  if (box >= BOXES || token >= item.context_len || (WINDOWED && token < item.low)) token = first_box(item);
  const int* places = b.places + (long long)item.seq * b.places_width;
  int kv_head = item.head / GROUP;
  if (!PAGED) return places[0] * b.num_kv_heads + kv_head * places[1] + token;
  return (places[token / BLOCK_SIZE] * b.num_kv_heads + kv_head) * BLOCK_SIZE + token % BLOCK_SIZE;
}

// The first cache rows of this lane's boxes of a tile: every 32nd.
struct Rows {
  int of[BOXES_OF_LANE];
};

DEVICE Rows rows_of_boxes(const Batch& b, const Item& item, int tile, int lane) {
  Rows rows;
#pragma unroll
  for (int i = 0; i < BOXES_OF_LANE; i++) rows.of[i] = row_of_box(b, item, tile, i * 32 + lane);
  return rows;
}

// How many rows of a tile are copied: with SHORT, of an item's last tile the first half, where that is all that is read.
DEVICE int rows_to_copy(const Item& item, int tile) {
  return SHORT && BOX_ROWS <= 64 && item.end <= tile * K_ROWS + 64 ? 64 : K_ROWS;
}

// The boxes of the first num_rows rows of a tile, but those of rows `begin` to `end`, by tensor copies.
DEVICE void copy_boxes(unsigned tile, const Batch& b, const Cache& cache, const Rows& rows, int num_rows, int begin,
                       int end, unsigned full, int lane) {
  if (lane == 0) expect_bytes(full, (num_rows - (end - begin)) * SLABS * 128);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < BOXES_OF_LANE; i++) {
    int box = i * 32 + lane, slab = box % SLABS, first = box / SLABS * BOX_ROWS;
    if (first < num_rows && (first < begin || first >= end))
      copy_box(tile + slab * SLAB_BYTES + first * 128, b.rows, slab * 64, cache.first_row + rows.of[i], full);
  }
}

// As copy_boxes, where only the first `filled` of these rows hold tokens. The box in which they end comes by
// ordinary copies, with zeros behind the last token. `repeats`: boxes outside what is read repeat one that is full of
// tokens; else they are zeros too.
DEVICE void copy_last_tile(unsigned tile, const Batch& b, const Cache& cache, const Rows& rows, int num_rows,
                           int filled, bool repeats, unsigned full, int lane) {
  int first = filled / BOX_ROWS * BOX_ROWS, begin = WINDOWED && !repeats ? 0 : first;
  int end = repeats ? (filled + BOX_ROWS - 1) / BOX_ROWS * BOX_ROWS : num_rows, last_box = first / BOX_ROWS * SLABS;
  int row = rows.of[0];
#pragma unroll
  for (int i = 1; i < BOXES_OF_LANE; i++) row = i == last_box / 32 ? rows.of[i] : row;
  const word16* box = cache.values + (long long)__shfl_sync(FULL_MASK, row, last_box % 32) * HEAD_SIZE;
  for (int i = begin * VECTORS + lane; i < end * VECTORS; i += 32) {
    int r = i / VECTORS, vector = i % VECTORS;
    bool valid = r < filled && (!WINDOWED || r >= first);
    copy_async(tile + place(r, vector), valid ? box + (r - first) * HEAD_SIZE + vector * 8 : cache.values,
               valid ? 16 : 0);
  }
  commit_copies();
  wait_copies();
  publish_shared();
  __syncwarp();
  copy_boxes(tile, b, cache, rows, num_rows, begin, end, full, lane);
}

DEVICE void copy_tile(unsigned tile, const Batch& b, const Item& item, const Cache& cache, const Rows& rows,
                      int num_rows, int filled, unsigned full, int lane) {
  if (filled >= num_rows)
    copy_boxes(tile, b, cache, rows, num_rows, num_rows, num_rows, full, lane);
  else
    copy_last_tile(tile, b, cache, rows, num_rows, filled, item.context_len >= first_box(item) + BOX_ROWS, full, lane);
}

// Stages in shared memory, of which the next to fill is `count` modulo `num`.
struct Ring {
  unsigned at, full, free;
  int num, count;
};

// Tiles `begin` to `end` of an item's keys or values, each as soon as a stage is free. `padded`: zeros behind the last token.
DEVICE void copy_tiles(Ring& ring, const Batch& b, const Item& item, const Cache& cache, int begin, int end, bool padded,
                       int lane) {
  if (begin >= end) return;
  Rows rows = rows_of_boxes(b, item, begin, lane);
  for (int tile = begin; tile < end; tile++, ring.count++) {
    int stage = ring.count % ring.num;
    Rows next = rows;
    if (tile + 1 < end) next = rows_of_boxes(b, item, tile + 1, lane);
    wait_barrier(ring.free + stage * 8, ring.count / ring.num % 2 ^ 1);
    copy_tile(ring.at + stage * TILE_BYTES, b, item, cache, rows, rows_to_copy(item, tile),
              padded ? item.context_len - tile * K_ROWS : K_ROWS, ring.full + stage * 8, lane);
    rows = next;
  }
}

// The warp that draws items and copies their keys.
DEVICE void copy_keys(const Batch& b, char* shared, int num_items, int* counter) {
  unsigned base = shared_address(shared), barriers = base + BARRIERS_AT;
  int* item_numbers = (int*)(shared + ITEMS_AT);
  int lane = threadIdx.x % 32, items = 0, index = blockIdx.x;
  Ring ring = {base + K_AT, barriers + K_FULL, barriers + K_FREE, K_STAGES, 0};
  while (index < num_items) {
    Item item = item_of(b, index);
    if (item.end_tile) {
      publish_item(item_numbers, barriers, index, items++, lane);
      // The rest of a block may be read: its scores are masked. What lies behind an extent may be no memory.
      copy_tiles(ring, b, item, b.k, item.low / K_ROWS, item.end_tile - 1, !PAGED, lane);
    }
    int drawn = draw_item(counter, num_items, lane);  // not earlier: the first free block takes the longest items
    if (item.end_tile) copy_tiles(ring, b, item, b.k, item.end_tile - 1, item.end_tile, !PAGED, lane);
    index = __shfl_sync(FULL_MASK, drawn, 0);
  }
  publish_item(item_numbers, barriers, -1, items, lane);
  if (lane == 0) end_draws(counter);
}

// The warp that copies values. They are read a step later than the keys of their tile: a warp that copied both would let
// the next keys wait for a free stage of values.
DEVICE void copy_values(const Batch& b, char* shared) {
  unsigned base = shared_address(shared), barriers = base + BARRIERS_AT;
  int lane = threadIdx.x % 32;
  Ring ring = {base + V_AT, barriers + V_FULL, barriers + V_FREE, V_STAGES, 0};
  for (int items = 0, index; (index = next_item(shared, barriers, items, lane)) >= 0; items++) {
    Item item = item_of(b, index);
    copy_tiles(ring, b, item, b.v, item.low / K_ROWS, item.end_tile, true, lane);
  }
}

// The warp that fetches the queries of every item; rows past the sequence's end are zeros.
DEVICE void fetch_queries(const Batch& b, char* shared) {
  unsigned base = shared_address(shared), barriers = base + BARRIERS_AT;
  int lane = threadIdx.x % 32;
  for (int items = 0, index; (index = next_item(shared, barriers, items, lane)) >= 0; items++) {
    Item item = item_of(b, index);
    const word16* first = b.q + (long long)(item.start + item.first) * b.q_stride + item.head * HEAD_SIZE;
    int num_rows = (item.num_new - item.first) * HEADS;
    int stage = items % Q_STAGES;
    wait_barrier(barriers + Q_FREE + stage * 8, items / Q_STAGES % 2 ^ 1);
#pragma unroll 4
    for (int i = lane; i < Q_ROWS * VECTORS; i += 32) {
      int r = i / VECTORS, vector = i % VECTORS;
      const word16* from = first + (long long)(r / HEADS) * b.q_stride + r % HEADS * HEAD_SIZE + vector * 8;
      copy_async(base + stage * TILE_BYTES + place(r, vector), r < num_rows ? from : b.q, r < num_rows ? 16 : 0);
    }
    commit_copies();
    wait_copies();
    publish_shared();
    __syncwarp();
    if (lane == 0) arrive(barriers + Q_FULL + stage * 8);
  }
}
