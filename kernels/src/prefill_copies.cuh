// Of prefill_tma.cu: the two warps that copy.
#pragma once

// First token of the first box that is read.
DEVICE int first_box(const Item& item) { return item.low / BOX_ROWS * BOX_ROWS; }

// First cache row of the box that this lane copies of a tile; boxes outside what is read repeat the first that is.
DEVICE int row_of_box(const Batch& b, const Item& item, int tile, int lane) {
  int token = tile * K_ROWS + lane / SLABS * BOX_ROWS;
  if (lane >= BOXES || token >= item.context_len || (WINDOWED && token < item.low)) token = first_box(item);
  int block = b.block_tables[(long long)item.seq * b.max_blocks + token / BLOCK_SIZE];
  return (block * b.num_kv_heads + item.head / GROUP) * BLOCK_SIZE + token % BLOCK_SIZE;
}

// A box of a tile by a tensor copy; `row` is this lane's.
DEVICE void copy_box_of(unsigned tile, const TensorMap* map, int row, unsigned full, int lane) {
  int slab = lane % SLABS, first = lane / SLABS * BOX_ROWS;
  copy_box(tile + slab * SLAB_BYTES + first * 128, map, slab * 64, row, full);
}

DEVICE void copy_tile(unsigned tile, const TensorMap* map, int row, unsigned full, int lane) {
  if (lane == 0) expect_bytes(full, TILE_BYTES);
  __syncwarp();
  if (lane < BOXES) copy_box_of(tile, map, row, full, lane);
}

// As copy_tile, for a tile of V of which only the first `filled` rows hold tokens. The box in which they end comes by
// ordinary copies, with zeros behind the last token. `repeats`: boxes outside what is read repeat one that is full of
// tokens; else they are zeros too.
DEVICE void copy_last_values(unsigned tile, const Batch& b, int row, int filled, bool repeats, unsigned full, int lane) {
  int first = filled / BOX_ROWS * BOX_ROWS, begin = WINDOWED && !repeats ? 0 : first;
  int end = repeats ? (filled + BOX_ROWS - 1) / BOX_ROWS * BOX_ROWS : K_ROWS;
  const word16* box = b.v + (long long)__shfl_sync(FULL_MASK, row, first / BOX_ROWS * SLABS % 32) * HEAD_SIZE;
  for (int i = begin * VECTORS + lane; i < end * VECTORS; i += 32) {
    int r = i / VECTORS, vector = i % VECTORS;
    bool valid = r < filled && (!WINDOWED || r >= first);
    copy_async(tile + place(r, vector), valid ? box + (r - first) * HEAD_SIZE + vector * 8 : b.v, valid ? 16 : 0);
  }
  commit_copies();
  wait_copies<0>();
  publish_shared();
  __syncwarp();
  if (lane == 0) expect_bytes(full, TILE_BYTES - (end - begin) * SLABS * 128);
  __syncwarp();
  if (lane < BOXES && (lane / SLABS < begin / BOX_ROWS || lane / SLABS >= end / BOX_ROWS))
    copy_box_of(tile, b.rows, b.v_row + row, full, lane);
}

// The copying warp: every tile of every item, as soon as a stage is free.
DEVICE void copy_all(const Batch& b, char* shared, int num_items, int* counter) {
  unsigned base = shared_address(shared), barriers = base + BARRIERS_AT;
  int* item_numbers = (int*)(shared + ITEMS_AT);
  int lane = threadIdx.x % 32, count = 0, items = 0, index = blockIdx.x;
  while (index < num_items) {
    Item item = item_of(b, index);
    int drawn = item.end_tile ? 0 : draw_item(counter, num_items, lane);
    if (item.end_tile) {
      int first_tile = item.low / K_ROWS, row = row_of_box(b, item, first_tile, lane);
      publish_item(item_numbers, barriers, index, items++, lane);
      for (int tile = first_tile; tile < item.end_tile; tile++, count++) {
        int stage = count % 2, parity = count / 2 % 2 ^ 1, next = row;
        if (tile + 1 < item.end_tile)
          next = row_of_box(b, item, tile + 1, lane);
        else
          drawn = draw_item(counter, num_items, lane);  // not earlier: the first free block takes the longest items
        wait_barrier(barriers + K_FREE + stage * 8, parity);
        copy_tile(base + K_AT + stage * TILE_BYTES, b.rows, b.k_row + row, barriers + K_FULL + stage * 8, lane);
        wait_barrier(barriers + V_FREE + stage * 8, parity);
        unsigned values = base + V_AT + stage * TILE_BYTES, full = barriers + V_FULL + stage * 8;
        int filled = item.context_len - tile * K_ROWS;
        if (filled >= K_ROWS)
          copy_tile(values, b.rows, b.v_row + row, full, lane);
        else
          copy_last_values(values, b, row, filled, item.context_len >= first_box(item) + BOX_ROWS, full, lane);
        row = next;
      }
    }
    index = __shfl_sync(FULL_MASK, drawn, 0);
  }
  publish_item(item_numbers, barriers, -1, items, lane);
  if (lane == 0) end_draws(counter);
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
