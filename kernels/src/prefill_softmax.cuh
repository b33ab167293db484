// Of prefill_tma.cu: products, mask, online softmax and output of a computing warpgroup's 64 rows.
#pragma once

// KEYS: 128, or 64 where a warpgroup's rows see no more of a tile: s is then the first half of what it is else.
template <int KEYS>
DEVICE void start_scores(float (&s)[KEYS / 2], unsigned q, unsigned k) {
#pragma unroll
  for (int d = 0; d < HEAD_SIZE / 16; d++) {
    unsigned at = d / 4 * SLAB_BYTES + d % 4 * 32;
    wgmma_scores(s, descriptor(q + at, 16, 1024), descriptor(k + at, 16, 1024), d > 0);
  }
  commit_wgmma();
}

template <int KEYS>
DEVICE void start_values(float (&o)[HEAD_SIZE / 2], const unsigned (&p)[8][4], unsigned v) {
#pragma unroll
  for (int n = 0; n < KEYS / 16; n++) wgmma_values(o, p[n], descriptor(v + n * 2048, SLAB_BYTES, 1024));
  commit_wgmma();
}

template <int KEYS>
DEVICE void add_last_values(float (&o)[HEAD_SIZE / 2], const unsigned (&p)[8][4], unsigned v) {
  pin(o);
  begin_wgmma();
  start_values<KEYS>(o, p, v);
  wait_wgmma<0>();
  pin(o);
}

// Keys after a row's own position get no weight. `positions` are those of this lane's two rows, `key` the tile's first.
template <int KEYS>
DEVICE void mask(float (&s)[KEYS / 2], const int (&positions)[2], int key, int lane) {
#pragma unroll
  for (int i = 0; i < KEYS / 2; i++)
    if (key + i / 4 * 8 + lane % 4 * 2 + i % 2 > positions[i % 4 / 2]) s[i] = NEG_INF;
}

// Online softmax of 64 rows: scores become weights; returns whether the output must shrink, and by which factors.
template <int KEYS>
DEVICE bool soften(float (&s)[KEYS / 2], float (&top)[2], float (&sum)[2], float (&shrink)[2], float scale_log2) {
  bool grew = false;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float high = s[2 * r];
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) high = fmaxf(high, fmaxf(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]));
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
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float& x = s[4 * n + 2 * r + i];
        total[i] += x = fast_exp2(x * scale_log2 - offset);
      }
    sum[r] = sum[r] * shrink[r] + (total[0] + total[1]);
  }
  return __any_sync(FULL_MASK, grew);
}

template <int KEYS>
DEVICE void pack_weights(unsigned (&p)[8][4], const float (&s)[KEYS / 2]) {
#pragma unroll
  for (int n = 0; n < KEYS / 16; n++)
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
