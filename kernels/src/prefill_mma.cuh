// Of prefill.cu: the products, the online softmax and the output of a warp's rows.
#pragma once

// s[m][n] = scores of 16 rows and 8 keys, unscaled.
DEVICE void score(float (&s)[M_TILES][K_ROWS / 8][4], unsigned q, unsigned k, int lane) {
#pragma unroll
  for (int m = 0; m < M_TILES; m++)
#pragma unroll
    for (int n = 0; n < K_ROWS / 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) s[m][n][i] = 0;
  unsigned q_lane = q + (lane % 16 * PITCH + lane / 16 * 8) * 2;
  unsigned k_lane = k + ((lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 8) * 2;
#pragma unroll
  for (int d = 0; d < HEAD_SIZE / 16; d++) {
    unsigned a[M_TILES][4];
#pragma unroll
    for (int m = 0; m < M_TILES; m++) load_matrices(a[m], q_lane + (m * 16 * PITCH + d * 16) * 2);
#pragma unroll
    for (int n = 0; n < K_ROWS / 16; n++) {
      unsigned b[4];
      load_matrices(b, k_lane + (n * 16 * PITCH + d * 16) * 2);
#pragma unroll
      for (int m = 0; m < M_TILES; m++) {
        mma(s[m][2 * n], a[m][0], a[m][1], a[m][2], a[m][3], b[0], b[1]);
        mma(s[m][2 * n + 1], a[m][0], a[m][1], a[m][2], a[m][3], b[2], b[3]);
      }
    }
  }
}

// Keys after a row's own position, or before its window, get no weight. `position` is that of the warp's row 0, `key`
// the tile's first key.
DEVICE void mask(float (&s)[M_TILES][K_ROWS / 8][4], int position, int key, int window, int lane) {
#pragma unroll
  for (int m = 0; m < M_TILES; m++)
#pragma unroll
    for (int n = 0; n < K_ROWS / 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        int here = key + n * 8 + lane % 4 * 2 + i % 2, own = position + m * 16 + lane / 4 + i / 2 * 8;
        if (here > own || (WINDOWED && here <= own - window)) s[m][n][i] = MASKED;
      }
}

// Online softmax of two rows a lane, of which lanes in fours hold K_ROWS scores: these become weights; the factors by
// which the output must shrink are returned.
DEVICE void soften(float (&s)[K_ROWS / 2], float (&top)[2], float (&sum)[2], float (&shrink)[2], float scale_log2) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float high = top[r];
#pragma unroll
    for (int n = 0; n < K_ROWS / 8; n++) high = fmaxf(high, fmaxf(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]));
    high = fmaxf(high, __shfl_xor_sync(FULL_MASK, high, 1));
    high = fmaxf(high, __shfl_xor_sync(FULL_MASK, high, 2));
    shrink[r] = fast_exp2((top[r] - high) * scale_log2);
    top[r] = high;
    float total = 0, offset = high * scale_log2;
#pragma unroll
    for (int n = 0; n < K_ROWS / 8; n++)
#pragma unroll
      for (int i = 4 * n + 2 * r; i < 4 * n + 2 * r + 2; i++) total += s[i] = fast_exp2(s[i] * scale_log2 - offset);
    sum[r] = sum[r] * shrink[r] + total;
  }
}

struct State {
  float top[M_TILES][2], sum[M_TILES][2], o[M_TILES][HEAD_SIZE / 8][4];
};

DEVICE void weigh(State& state, const float (&s)[M_TILES][K_ROWS / 8][4], unsigned v, int lane) {
  unsigned v_lane = v + (lane % 16 * PITCH + lane / 16 * 8) * 2;
#pragma unroll
  for (int n = 0; n < K_ROWS / 16; n++) {
    unsigned p[M_TILES][4];
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
      for (int i = 0; i < 4; i++) p[m][i] = pack(s[m][2 * n + i / 2][i % 2 * 2], s[m][2 * n + i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int d = 0; d < HEAD_SIZE / 16; d++) {
      unsigned b[4];
      load_matrices_transposed(b, v_lane + (n * 16 * PITCH + d * 16) * 2);
#pragma unroll
      for (int m = 0; m < M_TILES; m++) {
        mma(state.o[m][2 * d], p[m][0], p[m][1], p[m][2], p[m][3], b[0], b[1]);
        mma(state.o[m][2 * d + 1], p[m][0], p[m][1], p[m][2], p[m][3], b[2], b[3]);
      }
    }
  }
}

// Divides by the denominators, multiplies by V's scale, and writes through this warp's own rows of shared memory, 16
// bytes per lane.
DEVICE void store(State& state, word16* staging, word16* out, long long out_stride, int num_rows, float v_scale,
                  int lane) {
  __syncwarp();  // every lane has read its last query row
#pragma unroll
  for (int m = 0; m < M_TILES; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float sum = state.sum[m][r];
      sum += __shfl_xor_sync(FULL_MASK, sum, 1);
      sum += __shfl_xor_sync(FULL_MASK, sum, 2);
      sum = v_scale / sum;
      unsigned* row = (unsigned*)(staging + (m * 16 + r * 8 + lane / 4) * PITCH) + lane % 4;
#pragma unroll
      for (int d = 0; d < HEAD_SIZE / 8; d++)
        row[d * 4] = pack(state.o[m][d][2 * r] * sum, state.o[m][d][2 * r + 1] * sum);
    }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < M_TILES * VECTORS / 2; i++) {
    int r = (i * 32 + lane) / VECTORS, vector = (i * 32 + lane) % VECTORS;
    if (r < num_rows) *(uint4*)(out + r * out_stride + vector * 8) = *(uint4*)(staging + r * PITCH + vector * 8);
  }
}
