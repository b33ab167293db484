// Of prefill.cu: the products of a warp's rows.
#pragma once

// s[m][n] += scores of 16 rows and 8 keys, unscaled.
DEVICE void score(float (&s)[M_TILES][K_ROWS / 8][4], unsigned q, unsigned k, int lane) {
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
