// Of prefill_tma.cu: online softmax of a computing warpgroup's 64 rows.
#pragma once

#define SLACK 8.0f  // powers of two by which a maximum may lag behind

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
