// Of decode.cu, FP8: how keys and values of one byte get into A fragments, and the two products.
// A word holds four adjacent dims of a token, which widened are two registers: of K two of a fragment of 16 dims (the
// order of the contracted index is free), of V, interleaved with the next token's, one of each of two accumulators.
#pragma once
#if FP8
#define V_BYTES (V_FULL ? 16 : 8)  // of a token's V that a lane loads at once

DEVICE unsigned word_of(const uint4& x, int i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }
DEVICE unsigned word_of(const uint2& x, int i) { return i == 0 ? x.x : x.y; }

// s[token, head] of a tile: a lane has tokens g and g + 8 of heads 2t and 2t + 1.
DEVICE void score(float (&s)[4], const KeyTile& k, unsigned query, int lane) {
  float sums[2][4] = {};
  unsigned q = query + lane / 4 * (HEAD_SIZE * 2) + lane % 4 * 32;
#pragma unroll
  for (int i = 0; i < K_FULL * 2; i++) {
    uint4 b = load_shared16(q + i / 2 * 128 + i % 2 * 16);
#pragma unroll
    for (int w = 0; w < 2; w++) {
      unsigned low = word_of(k.full[i / 2][0], i % 2 * 2 + w), high = word_of(k.full[i / 2][1], i % 2 * 2 + w);
      mma(sums[w], widen(low), widen(high), widen(low >> 16), widen(high >> 16), w ? b.z : b.x, w ? b.w : b.y);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++) s[i] = sums[0][i] + sums[1][i];
}

DEVICE void weigh(float (&o)[ACCUMULATORS][4], const ValueTile& v, const unsigned (&p)[2]) {
#pragma unroll
  for (int i = 0; i < ACCUMULATORS; i++) {
    int w = i % (V_BYTES / 2) / 2, order = i % 2 ? 0x7362 : 0x5140;  // bytes of two tokens in turn
    unsigned x[4];
#pragma unroll
    for (int u = 0; u < 4; u++) x[u] = V_FULL ? word_of(v.full[i / (V_BYTES / 2)][u], w) : word_of(v.rest[u], w);
    unsigned low = __byte_perm(x[0], x[1], order), high = __byte_perm(x[2], x[3], order);
    mma(o[i], widen(low), widen(low >> 16), widen(high), widen(high >> 16), p[0], p[1]);
  }
}

// First of the two adjacent dims in accumulator i of lanes with this g.
DEVICE int dim_of_accumulator(int i, int g) { return i / (V_BYTES / 2) * 128 + g * V_BYTES + i % (V_BYTES / 2) * 2; }
#endif
