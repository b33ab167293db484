// Of decode.cu: joining the softmax states of a thread block's warps, and of a context's chunks.
#pragma once

struct Shared {
  union {
    word16 query[8][HEAD_SIZE];
    float weight[HEADS][MAX_CHUNKS];  // second stage: factor of each chunk
  };
  float top[NUM_WARPS][HEADS], sum[NUM_WARPS][HEADS];
  float o[NUM_WARPS][HEADS][HEAD_SIZE];
  int is_last;
};

DEVICE void publish_state(Shared& shared, State& state, int warp, int lane) {
  int g = lane / 4, head = lane % 4 * 2;
#pragma unroll
  for (int h = 0; h < 2; h++) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) state.sum[h] += __shfl_xor_sync(FULL_MASK, state.sum[h], step);
    if (head + h >= HEADS) continue;
    if (g == 0) shared.top[warp][head + h] = state.top[h], shared.sum[warp][head + h] = state.sum[h];
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; i++)
      *(float2*)&shared.o[warp][head + h][dim_of_accumulator(i, g)] = make_float2(state.o[i][h], state.o[i][h + 2]);
  }
}

// Sum over warps of one head's two adjacent dims, not yet divided; also the joint maximum and denominator.
DEVICE float2 merge_warps(const Shared& shared, int head, int dim, float& top, float& sum) {
  top = NEG_INF, sum = 0;
#pragma unroll
  for (int w = 0; w < NUM_WARPS; w++) top = fmaxf(top, shared.top[w][head]);
  float2 o = make_float2(0, 0);
#pragma unroll
  for (int w = 0; w < NUM_WARPS; w++) {
    float weight = fast_exp2(shared.top[w][head] - top);
    float2 part = *(const float2*)&shared.o[w][head][dim];
    sum += weight * shared.sum[w][head];
    o.x += weight * part.x, o.y += weight * part.y;
  }
  return o;
}

// Second stage: weights of the chunks of each head, then their weighted sum.
DEVICE void reduce_chunks(Shared& shared, unsigned* out, const float* part_o, const float2* part_state, int num_chunks,
                          int max_chunks, int num_heads_here) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int h = warp; h < num_heads_here; h += NUM_WARPS) {
    const float2* state = part_state + h * max_chunks;
    float top = NEG_INF, sum = 0;
    for (int c = lane; c < num_chunks; c += 32) top = fmaxf(top, __ldcg(&state[c]).x);
    top = warp_max(top);
    for (int c = lane; c < num_chunks; c += 32) {
      float2 s = __ldcg(&state[c]);
      float weight = fast_exp2(s.x - top);
      shared.weight[h][c] = weight;
      sum += weight * s.y;
    }
    sum = 1 / warp_sum(sum);
    for (int c = lane; c < num_chunks; c += 32) shared.weight[h][c] *= sum;
  }
  __syncthreads();
  for (int e = threadIdx.x; e < num_heads_here * (HEAD_SIZE / 2); e += NUM_WARPS * 32) {
    int head = e / (HEAD_SIZE / 2), dim = e % (HEAD_SIZE / 2) * 2;
    const float* part = part_o + (long long)head * max_chunks * HEAD_SIZE + dim;
    float x = 0, y = 0;
#pragma unroll 8
    for (int c = 0; c < num_chunks; c++) {
      float2 o = __ldcg((const float2*)(part + c * HEAD_SIZE));
      x += shared.weight[head][c] * o.x, y += shared.weight[head][c] * o.y;
    }
    out[e] = pack(x, y);
  }
}
