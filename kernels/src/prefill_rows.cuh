// Of prefill.cu and prefill_tma.cu: 16 rows of scores and of outputs, of which a lane has two, as an m16n8k16 product
// leaves them. `place` says where 16 bytes of a row lie in shared memory; a token has HEADS rows.
#pragma once

#define SLACK 8.0f  // powers of two by which a maximum may lag behind

// Keys after a row's own position, or before its window, get no weight. `positions` are those of this lane's two rows,
// `key` is the tile's first.
template <int KEYS>
DEVICE void mask(float (&s)[KEYS / 2], const int (&positions)[2], int key, int window, int lane) {
#pragma unroll
  for (int i = 0; i < KEYS / 2; i++) {
    int here = key + i / 4 * 8 + lane % 4 * 2 + i % 2, own = positions[i % 4 / 2];
    if (here > own || (WINDOWED && here <= own - window)) s[i] = MASKED;
  }
}

// Online softmax: scores become weights; returns whether a warp's output must shrink, and by which factors. Lazy: a row's
// maximum is followed only where it grew by more than 2^8; weights stay below 2^8, the result is the same.
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
    if ((high - top[r]) * scale_log2 <= SLACK) high = top[r];
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

// Divides by the denominators, multiplies by V's scale, and writes rows from `first` on through their place in shared
// memory, 16 bytes a lane. `out` is where row 0 goes.
DEVICE void store(float (&o)[HEAD_SIZE / 2], float (&sum)[2], char* staging, word16* out, long long out_stride,
                  int first, int num_rows, float v_scale) {
  int lane = threadIdx.x % 32;
  __syncwarp();  // no lane reads these rows any more
#pragma unroll
  for (int r = 0; r < 2; r++) {
    sum[r] += __shfl_xor_sync(FULL_MASK, sum[r], 1);
    sum[r] += __shfl_xor_sync(FULL_MASK, sum[r], 2);
    float inverse = v_scale / sum[r];
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

// PREFIX: writes the sums of rows from `first` on, not divided, with their maxima and denominators, for decode.cu to merge.
// `part` is the place of row 0; a row has one for each chunk of the prefix.
DEVICE void store_partial(const float (&o)[HEAD_SIZE / 2], const float (&top)[2], float (&sum)[2], float scale_log2,
                          float* part_o, float2* part_state, int heads, int chunks, int first, int num_rows) {
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    sum[r] += __shfl_xor_sync(FULL_MASK, sum[r], 1);
    sum[r] += __shfl_xor_sync(FULL_MASK, sum[r], 2);
    int row = first + r * 8 + lane / 4;
    if (row >= num_rows) continue;
    long long part = (long long)(row / HEADS * heads + row % HEADS) * chunks;
    if (lane % 4 == 0) part_state[part] = make_float2(top[r] * scale_log2, sum[r]);
#pragma unroll
    for (int d = 0; d < VECTORS; d++)
      *(float2*)&part_o[part * HEAD_SIZE + d * 8 + lane % 4 * 2] = make_float2(o[4 * d + 2 * r], o[4 * d + 2 * r + 1]);
  }
}
