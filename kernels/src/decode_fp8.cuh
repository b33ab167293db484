// Of decode.cu, FP8: how keys and values of one byte get into A fragments, and the two products; see decode_tiles.cuh.
// A word holds four adjacent dims of a token, which widened are two registers: of K two of a fragment of 16 dims (the
// order of the contracted index is free), of V, interleaved with the next token's, one of each of two accumulators.
#pragma once
#if FP8
#define K_STEPS (HEAD_SIZE / 64)                          // of 64 dims: 16 bytes per lane
#define V_BYTES (HEAD_SIZE < 128 ? HEAD_SIZE / 8 : 16)  // of a token's V that a lane loads at once
#define V_STEPS (HEAD_SIZE / 8 / V_BYTES)

struct KeyTile {
  uint4 words[K_STEPS][2];  // token g or g + 8 of the tile, dims 64 i + 16 t .. + 15
};

struct ValueTile {
  uint4 words[V_STEPS][4];  // token 2t, 2t + 1, 2t + 8, 2t + 9, dims 128 i + V_BYTES g .. + V_BYTES - 1
};

DEVICE unsigned word_of(const uint4& x, int i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }

DEVICE void load_keys(KeyTile& k, address_t cache, unsigned row, int first, int last, int lane) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    address_t p = cache + (address_t)row_of_slot(row, lane / 4 + 8 * r, first, last) * ROW_BYTES;
#pragma unroll
    for (int i = 0; i < K_STEPS; i++) k.words[i][r] = stream16(p + i * 64 + lane % 4 * 16);
  }
}

DEVICE void load_values(ValueTile& v, address_t cache, unsigned row, int first, int last, int lane) {
#pragma unroll
  for (int u = 0; u < 4; u++) {
    int slot = lane % 4 * 2 + u % 2 + u / 2 * 8;
    address_t p = cache + (address_t)row_of_slot(row, slot, first, last) * ROW_BYTES + lane / 4 * V_BYTES;
#pragma unroll
    for (int i = 0; i < V_STEPS; i++) {
      if (V_BYTES == 16) {
        v.words[i][u] = stream16(p + i * 128);
      } else {
        uint2 x = stream8(p);
        v.words[i][u] = make_uint4(x.x, x.y, 0, 0);
      }
    }
  }
}

// s[token, head] of a tile: a lane has tokens g and g + 8 of heads 2t and 2t + 1.
DEVICE void score(float (&s)[4], const KeyTile& k, unsigned query, int lane) {
  float sums[2][4] = {};
  unsigned q = query + lane / 4 * (HEAD_SIZE * 2) + lane % 4 * 32;
#pragma unroll
  for (int i = 0; i < K_STEPS * 2; i++) {
    uint4 b;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b.x), "=r"(b.y), "=r"(b.z), "=r"(b.w) : "r"(q + i / 2 * 128 + i % 2 * 16));
#pragma unroll
    for (int w = 0; w < 2; w++) {
      unsigned low = word_of(k.words[i / 2][0], i % 2 * 2 + w), high = word_of(k.words[i / 2][1], i % 2 * 2 + w);
      mma(sums[w], widen(low), widen(high), widen(low >> 16), widen(high >> 16), w ? b.z : b.x, w ? b.w : b.y);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++) s[i] = sums[0][i] + sums[1][i];
}

DEVICE void weigh(float (&o)[ACCUMULATORS][4], const ValueTile& v, const unsigned (&p)[2]) {
#pragma unroll
  for (int i = 0; i < ACCUMULATORS; i++) {
    const uint4(&x)[4] = v.words[i / (V_BYTES / 2)];
    int w = i % (V_BYTES / 2) / 2, order = i % 2 ? 0x7362 : 0x5140;  // bytes of two tokens in turn
    unsigned low = __byte_perm(word_of(x[0], w), word_of(x[1], w), order);
    unsigned high = __byte_perm(word_of(x[2], w), word_of(x[3], w), order);
    mma(o[i], widen(low), widen(low >> 16), widen(high), widen(high >> 16), p[0], p[1]);
  }
}

// First of the two adjacent dims in accumulator i of lanes with this g.
DEVICE int dim_of_accumulator(int i, int g) { return i / (V_BYTES / 2) * 128 + g * V_BYTES + i % (V_BYTES / 2) * 2; }
#endif
