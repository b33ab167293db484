// Of decode.cu: where a tile's keys and values lie, and how they get into registers; for 16-bit caches, the two products.
#pragma once

// Where one sequence's rows (HEAD_SIZE values each) of one kv head lie. An extent is one block that never ends.
struct Place {
  const int* table;     // [max_blocks] block ids of this sequence; or the first slot of its extent
  int max_blocks;       // width of the table
  unsigned head_row;    // kv head * slots of a block, or of the extent
  unsigned block_rows;  // num_kv_heads * BLOCK_SIZE; of an extent, which begins at a slot, num_kv_heads
};

// The table entry that this lane needs for `tile`; reads within the table even when the tile is past the context.
DEVICE int fetch_block(const Place& place, int tile, int lane) {
  int token = tile * TILE + (ONE_BLOCK_PER_TILE ? 0 : lane % TILE);
  return __ldg(place.table + (PAGED ? min(token / BLOCK_SIZE, place.max_blocks - 1) : 0));
}

// Row of the tile's first token, or of token lane % 16 where a tile can span blocks.
DEVICE unsigned row_of_tile(const Place& place, int block, int tile, int lane) {
  int token = tile * TILE + (ONE_BLOCK_PER_TILE ? 0 : lane % TILE);
  return (unsigned)block * place.block_rows + place.head_row + token % BLOCK_SIZE;
}

// Row of token `slot` of the tile; slots past the context (`last` is the final valid one) repeat the last token, and
// those before the window (`first`) its first, so memory that the sequence does not own is never read.
DEVICE unsigned row_of_slot(unsigned row, int slot, int first, int last) {
  slot = min(slot, last);
  if (WINDOWED) slot = max(slot, first);
  return ONE_BLOCK_PER_TILE ? row + slot : __shfl_sync(FULL_MASK, row, slot);
}

struct KeyTile {
  uint4 full[K_FULL][2];  // token g or g + 8 of the tile, bytes 64 i + 16 t .. + 15
  uint2 rest[2];          // bytes 64 K_FULL + 8 t .. + 7
};

struct ValueTile {
  uint4 full[V_FULL ? V_FULL : 1][4];  // token 2t, 2t + 1, 2t + 8, 2t + 9, bytes 128 i + 16 g .. + 15
  uint2 rest[4];                       // bytes 128 V_FULL + 8 g .. + 7 (V_REST = 64) or + 4 g .. + 3 (32)
};

DEVICE void load_keys(KeyTile& k, address_t cache, unsigned row, int first, int last, int lane) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    address_t p = cache + (address_t)row_of_slot(row, lane / 4 + 8 * r, first, last) * ROW_BYTES;
#pragma unroll
    for (int i = 0; i < K_FULL; i++) k.full[i][r] = stream16(p + i * 64 + lane % 4 * 16);
    if (K_REST) k.rest[r] = stream8(p + K_FULL * 64 + lane % 4 * 8);
  }
}

DEVICE void load_values(ValueTile& v, address_t cache, unsigned row, int first, int last, int lane) {
#pragma unroll
  for (int u = 0; u < 4; u++) {
    int slot = lane % 4 * 2 + u % 2 + u / 2 * 8;
    address_t p = cache + (address_t)row_of_slot(row, slot, first, last) * ROW_BYTES;
#pragma unroll
    for (int i = 0; i < V_FULL; i++) v.full[i][u] = stream16(p + i * 128 + lane / 4 * 16);
    if (V_REST == 64) v.rest[u] = stream8(p + V_FULL * 128 + lane / 4 * 8);
    if (V_REST == 32) v.rest[u].x = stream4(p + V_FULL * 128 + lane / 4 * 4);
  }
}

#if !FP8
// s[token, head] of a tile: a lane has tokens g and g + 8 of heads 2t and 2t + 1.
DEVICE void score(float (&s)[4], const KeyTile& k, unsigned query, int lane) {
  float even[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0};
  unsigned q = query + lane / 4 * ROW_BYTES;
#pragma unroll
  for (int i = 0; i < K_FULL; i++) {
    uint4 b = load_shared16(q + i * 64 + lane % 4 * 16);
    mma(even, k.full[i][0].x, k.full[i][1].x, k.full[i][0].y, k.full[i][1].y, b.x, b.y);
    mma(odd, k.full[i][0].z, k.full[i][1].z, k.full[i][0].w, k.full[i][1].w, b.z, b.w);
  }
  if (K_REST) {
    uint2 b = load_shared8(q + K_FULL * 64 + lane % 4 * 8);
    mma(even, k.rest[0].x, k.rest[1].x, k.rest[0].y, k.rest[1].y, b.x, b.y);
  }
#pragma unroll
  for (int i = 0; i < 4; i++) s[i] = even[i] + odd[i];
}

// One m16n8k16 step of O^T += V^T P^T from four words, each two adjacent dims of one token.
DEVICE void add_values(float (&o)[4], unsigned v0, unsigned v1, unsigned v2, unsigned v3, const unsigned (&p)[2]) {
  mma(o, __byte_perm(v0, v1, 0x5410), __byte_perm(v0, v1, 0x7632), __byte_perm(v2, v3, 0x5410),
      __byte_perm(v2, v3, 0x7632), p[0], p[1]);
}

DEVICE void weigh(float (&o)[ACCUMULATORS][4], const ValueTile& v, const unsigned (&p)[2]) {
#pragma unroll
  for (int i = 0; i < V_FULL; i++) {
    add_values(o[4 * i], v.full[i][0].x, v.full[i][1].x, v.full[i][2].x, v.full[i][3].x, p);
    add_values(o[4 * i + 1], v.full[i][0].y, v.full[i][1].y, v.full[i][2].y, v.full[i][3].y, p);
    add_values(o[4 * i + 2], v.full[i][0].z, v.full[i][1].z, v.full[i][2].z, v.full[i][3].z, p);
    add_values(o[4 * i + 3], v.full[i][0].w, v.full[i][1].w, v.full[i][2].w, v.full[i][3].w, p);
  }
  if (V_REST) add_values(o[4 * V_FULL], v.rest[0].x, v.rest[1].x, v.rest[2].x, v.rest[3].x, p);
  if (V_REST == 64)
    add_values(o[ACCUMULATORS - 1], v.rest[0].y, v.rest[1].y, v.rest[2].y, v.rest[3].y, p);
}

// First of the two adjacent dims in accumulator i of lanes with this g.
DEVICE int dim_of_accumulator(int i, int g) {
  if (i < 4 * V_FULL) return i / 4 * 64 + g * 8 + i % 4 * 2;
  return V_FULL * 64 + (V_REST == 64 ? g * 4 + (i - 4 * V_FULL) * 2 : g * 2);
}
#endif
