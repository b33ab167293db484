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

// Second stage: weights of the chunks of each head, then their weighted sum. A thread block does this while all others
// have ended, so what counts is latency: the loads of MERGED chunks are in flight at once, weights past the last are 0.
DEVICE void reduce_chunks(Shared& shared, uint2* out, const float* part_o, const float2* part_state,
                          const Parts& parts, int num_chunks, int num_heads_here) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int h = warp; h < num_heads_here; h += NUM_WARPS) {
    float2 state[MAX_CHUNKS / 32];
    float top = NEG_INF, sum = 0;
#pragma unroll
    for (int i = 0; i < MAX_CHUNKS / 32; i++) {
      int c = i * 32 + lane;
      state[i] = c < num_chunks ? __ldcg(part_state + part_of(parts, h, c)) : make_float2(NEG_INF, 0);
      top = fmaxf(top, state[i].x);
    }
    top = warp_max(top);
#pragma unroll
    for (int i = 0; i < MAX_CHUNKS / 32; i++) sum += (state[i].x = fast_exp2(state[i].x - top)) * state[i].y;
    sum = 1 / warp_sum(sum);
#pragma unroll
    for (int i = 0; i < MAX_CHUNKS / 32; i++) shared.weight[h][i * 32 + lane] = state[i].x * sum;
  }
  __syncthreads();
  for (int e = threadIdx.x; e < num_heads_here * (HEAD_SIZE / 4); e += NUM_WARPS * 32) {
    int head = e / (HEAD_SIZE / 4);
    const float4* part = (const float4*)part_o + e % (HEAD_SIZE / 4);
    float4 sum = {0, 0, 0, 0};
    for (int first = 0; first < num_chunks; first += MERGED) {
      float4 o[MERGED];
#pragma unroll
      for (int i = 0; i < MERGED; i++)
        o[i] = first + i < num_chunks ? __ldcg(part + (long long)part_of(parts, head, first + i) * (HEAD_SIZE / 4))
                                      : make_float4(0, 0, 0, 0);
#pragma unroll
      for (int i = 0; i < MERGED; i++) {
        float weight = shared.weight[head][first + i];
        sum.x += weight * o[i].x, sum.y += weight * o[i].y, sum.z += weight * o[i].z, sum.w += weight * o[i].w;
      }
    }
    out[e] = make_uint2(pack(sum.x, sum.y), pack(sum.z, sum.w));
  }
}
