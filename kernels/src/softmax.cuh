// Of prefill.cu and prefill_wgmma.cu: online softmax of two rows a lane, of which lanes in fours hold KEYS scores.
#pragma once

// Scores become weights; the factors by which the output must shrink are returned.
template <int KEYS>
DEVICE void soften(float (&s)[KEYS / 2], float (&top)[2], float (&sum)[2], float (&shrink)[2], float scale_log2) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float high = top[r];
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) high = fmaxf(high, fmaxf(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]));
    high = fmaxf(high, __shfl_xor_sync(FULL_MASK, high, 1));
    high = fmaxf(high, __shfl_xor_sync(FULL_MASK, high, 2));
    shrink[r] = fast_exp2((top[r] - high) * scale_log2);
    top[r] = high;
    float total = 0, offset = high * scale_log2;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
      for (int i = 4 * n + 2 * r; i < 4 * n + 2 * r + 2; i++) total += s[i] = fast_exp2(s[i] * scale_log2 - offset);
    sum[r] = sum[r] * shrink[r] + total;
  }
}
