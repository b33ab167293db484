// Of steps 2, 3 and 4: one query head against one sequence's blocks, by one thread block, in one pass.
#pragma once

#define THREADS 128
#define WARPS (THREADS / 32)
#define DIMS ((HEAD_SIZE + 31) / 32)  // dimensions that a lane holds: lane, lane + 32, ...

// The softmax of the tokens that a warp has seen: their largest score, the sum of their weights, their values added up.
struct State {
  float top, sum, o[DIMS];
};

DEVICE float value_at(const word16* row, int i, int lane) {
  int dim = i * 32 + lane;
  return dim < HEAD_SIZE ? to_float(row[dim]) : 0;
}

// The score of one cached token.
DEVICE float score(const float (&query)[DIMS], const word16* key, float scale, int lane) {
  float dot = 0;
  for (int i = 0; i < DIMS; i++) dot += query[i] * value_at(key, i, lane);
  return warp_sum(dot) * scale;
}

// One token more: if its score is the largest so far, what was added up before shrinks.
DEVICE void add_token(State& state, float score, const word16* value, int lane) {
  float top = fmaxf(state.top, score), shrink = expf(state.top - top), weight = expf(score - top);
  state.top = top;
  state.sum = state.sum * shrink + weight;
  for (int i = 0; i < DIMS; i++) state.o[i] = state.o[i] * shrink + weight * value_at(value, i, lane);
}

// Where the slots of a block lie for one kv head.
DEVICE const word16* rows_of(const word16* cache, int block, int num_kv_heads, int kv_head) {
  return cache + ((long long)block * num_kv_heads + kv_head) * BLOCK_SIZE * HEAD_SIZE;
}

// The warps' states become one output row [HEAD_SIZE]; every thread of the thread block must come here.
DEVICE void merge(word16* out, const State& state, int warp, int lane) {
  __shared__ float tops[WARPS], sums[WARPS], values[WARPS][DIMS * 32];
  if (lane == 0) tops[warp] = state.top, sums[warp] = state.sum;
  for (int i = 0; i < DIMS; i++) values[warp][i * 32 + lane] = state.o[i];
  __syncthreads();
  float top = NEG_INF, sum = 0;
  for (int w = 0; w < WARPS; w++) top = fmaxf(top, tops[w]);
  for (int w = 0; w < WARPS; w++) sum += sums[w] * expf(tops[w] - top);
  for (int dim = threadIdx.x; dim < HEAD_SIZE; dim += THREADS) {
    float total = 0;
    for (int w = 0; w < WARPS; w++) total += values[w][dim] * expf(tops[w] - top);
    out[dim] = (word16)pack(total / sum, 0);
  }
}

// The warps take the sequence's blocks in turn, each with a state of its own.
DEVICE void attend_to_blocks(word16* out, const word16* q, const word16* k_cache, const word16* v_cache,
                             const int* table, float scale, int num_kv_heads, int kv_head, int context_len) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float query[DIMS];
  State state = {NEG_INF, 0, {}};
  for (int i = 0; i < DIMS; i++) query[i] = value_at(q, i, lane);
  for (int n = warp; n * BLOCK_SIZE < context_len; n += WARPS) {
    const word16* keys = rows_of(k_cache, table[n], num_kv_heads, kv_head);
    const word16* values = rows_of(v_cache, table[n], num_kv_heads, kv_head);
    int filled = min(BLOCK_SIZE, context_len - n * BLOCK_SIZE);
    for (int slot = 0; slot < filled; slot++)
      add_token(state, score(query, keys + slot * HEAD_SIZE, scale, lane), values + slot * HEAD_SIZE, lane);
  }
  merge(out, state, warp, lane);
}
