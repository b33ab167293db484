// Draws a token of each row of logits from softmax(logits / temperature), by the inverse of its distribution function in
// the order of token ids. Grid (num_draws).
//
// Each warp sums the weights of a range of ids, relative to its own largest logit; the range in which the drawn number
// falls is then read again. A row's draw depends on no other row.
// Compile-time: WORD (bytes of a logit: 2, or 4 for float), BF16 (of 2 bytes).
#include "common.cuh"

#define NUM_WARPS 32

#if WORD == 4
typedef float value;
#define read_value(x) (x)
#else
typedef word16 value;
#define read_value(x) to_float(x)
#endif

struct Sum {  // of 2^(x - largest) over values x
  float largest, sum;
};

DEVICE Sum joined(Sum a, Sum b) {
  float largest = fmaxf(a.largest, b.largest);
  if (largest == NEG_INF) return Sum{NEG_INF, 0};
  return Sum{largest, a.sum * fast_exp2(a.largest - largest) + b.sum * fast_exp2(b.largest - largest)};
}

DEVICE Sum warp_joined(Sum x) {
  for (int step = 16; step; step /= 2) {
    Sum other{__shfl_xor_sync(FULL_MASK, x.largest, step), __shfl_xor_sync(FULL_MASK, x.sum, step)};
    x = joined(x, other);
  }
  return x;
}

// The sum of x over this lane and those below it.
DEVICE float sum_to_lane(float x) {
  int lane = threadIdx.x % 32;
  for (int step = 1; step < 32; step *= 2) {
    float below = __shfl_up_sync(FULL_MASK, x, step);
    if (lane >= step) x += below;
  }
  return x;
}

// The first lane for which it is true; 32: none.
DEVICE int first_lane(bool is_true) {
  int lane = is_true ? threadIdx.x % 32 : 32;
  for (int step = 16; step; step /= 2) lane = min(lane, __shfl_xor_sync(FULL_MASK, lane, step));
  return lane;
}

extern "C" __global__ void __launch_bounds__(1024)
draw_tokens(long long* tokens,       // [num_draws]
            const value* logits,     // rows of row_stride values
            const long long* rows,   // [num_draws]: the row of each draw
            const float* numbers,    // [num_draws]: from 0 to 1
            long long row_stride, int vocab_size,
            float scale) {           // log2(e) / temperature
  __shared__ float largest[NUM_WARPS], sums[NUM_WARPS];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int range = (vocab_size + NUM_WARPS * 32 - 1) / (NUM_WARPS * 32) * 32;  // ids of a warp
  const value* row = logits + rows[blockIdx.x] * row_stride;
  int end = min((warp + 1) * range, vocab_size);
  Sum own{NEG_INF, 0};
  for (int i = warp * range + lane; i < end; i += 32 * 4) {
    float x[4], most = NEG_INF;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      x[j] = i + 32 * j < end ? read_value(row[i + 32 * j]) * scale : NEG_INF;
      most = fmaxf(most, x[j]);
    }
    if (most > own.largest) own.sum *= fast_exp2(own.largest - most), own.largest = most;
    if (own.largest == NEG_INF) continue;
#pragma unroll
    for (int j = 0; j < 4; j++) own.sum += fast_exp2(x[j] - own.largest);
  }
  own = warp_joined(own);
  if (lane == 0) largest[warp] = own.largest, sums[warp] = own.sum;
  __syncthreads();
  if (warp) return;

  float most = warp_max(largest[lane]);
  float to_here = sum_to_lane(sums[lane] ? sums[lane] * fast_exp2(largest[lane] - most) : 0.0f);
  float total = __shfl_sync(FULL_MASK, to_here, 31);
  float aim = numbers[blockIdx.x] * total;
  int chosen = first_lane(to_here > aim);
  if (chosen == 32) chosen = first_lane(to_here >= total);  // the number is 1, or as near: the last with weight
  float before = __shfl_sync(FULL_MASK, to_here, chosen ? chosen - 1 : 0);
  if (chosen == 0) before = 0;
  int last = min((chosen + 1) * range, vocab_size), token = 0;
  for (int first = chosen * range; first < last; first += 32) {
    float x = first + lane < last ? read_value(row[first + lane]) * scale : NEG_INF;
    float weight = fast_exp2(x - most), passed = before + sum_to_lane(weight);
    int found = first_lane(weight > 0 && passed > aim);
    if (found < 32) {
      token = first + found;
      break;
    }
    int heaviest = 31 - first_lane(__shfl_sync(FULL_MASK, weight, 31 - lane) > 0);  // the last with weight so far
    if (heaviest >= 0) token = first + heaviest;
    before = __shfl_sync(FULL_MASK, passed, 31);
  }
  if (lane == 0) tokens[blockIdx.x] = token;
}
