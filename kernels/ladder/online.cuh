// Of steps 2, 3 and 4: one query head against one sequence's blocks, by one thread block, in one pass.
#pragma once

#define THREADS 128
#define WARPS (THREADS / 32)
#define DIMS ((HEAD_SIZE + 31) / 32)              // dimensions of a lane: lane, lane + 32, ...
#define RUN (BLOCK_SIZE < 32 ? BLOCK_SIZE : 32)   // slots that a warp takes at once, at most one a lane
#define RUNS ((BLOCK_SIZE + RUN - 1) / RUN)       // runs that a block is cut into
#define AT_ONCE 8                                 // slots whose reads are in flight at once

// The softmax of the tokens that a warp has seen: their largest score, the sum of their weights, their values added up.
struct State {
  float top, sum, o[DIMS];
};

DEVICE float value_at(const word16* row, int i, int lane) {
  int dim = i * 32 + lane;
  return dim < HEAD_SIZE ? to_float(row[dim]) : 0;
}

// Where token `token` of a sequence lies, for one kv head.
DEVICE const word16* row_of(const word16* cache, const int* table, int token, int num_kv_heads, int kv_head) {
  long long block = table[token / BLOCK_SIZE];
  return cache + ((block * num_kv_heads + kv_head) * BLOCK_SIZE + token % BLOCK_SIZE) * HEAD_SIZE;
}

// Run number `n` of a sequence: its first token, and how many slots of its block it has within the context.
DEVICE int first_of_run(int n) { return n / RUNS * BLOCK_SIZE + n % RUNS * RUN; }
DEVICE int count_of_run(int n, int context_len) {
  return min(min(RUN, BLOCK_SIZE - n % RUNS * RUN), context_len - first_of_run(n));
}

// Rows first .. first + AT_ONCE - 1 of a run; past the last slot that one again. All reads are ordered before any is used.
DEVICE void read_rows(float (&rows)[AT_ONCE][DIMS], const word16* run, int first, int count, int lane) {
#pragma unroll
  for (int n = 0; n < AT_ONCE; n++)
#pragma unroll
    for (int i = 0; i < DIMS; i++) rows[n][i] = value_at(run + min(first + n, count - 1) * HEAD_SIZE, i, lane);
}

// The scores of `count` slots in a row: lane n returns that of slot n, lanes past them return minus infinity.
DEVICE float scores_of(const float (&query)[DIMS], const word16* keys, int count, float scale, int lane) {
  float mine = NEG_INF, rows[AT_ONCE][DIMS];
  for (int first = 0; first < count; first += AT_ONCE) {
    read_rows(rows, keys, first, count, lane);
#pragma unroll
    for (int n = 0; n < AT_ONCE; n++) {
      float dot = 0;
#pragma unroll
      for (int i = 0; i < DIMS; i++) dot += query[i] * rows[n][i];
      dot = warp_sum(dot) * scale;
      if (lane == first + n && lane < count) mine = dot;
    }
  }
  return mine;
}

// Adds the values of `count` slots; lane n has the weight of slot n, zero past the last.
DEVICE void add_values(State& state, const word16* values, int count, float weight, int lane) {
  float rows[AT_ONCE][DIMS];
  for (int first = 0; first < count; first += AT_ONCE) {
    read_rows(rows, values, first, count, lane);
#pragma unroll
    for (int n = 0; n < AT_ONCE; n++) {
      float share = first + n < count ? __shfl_sync(FULL_MASK, weight, first + n) : 0;
#pragma unroll
      for (int i = 0; i < DIMS; i++) state.o[i] += share * rows[n][i];
    }
  }
}

// Some slots more. If one of their scores is the largest so far, what was added up before shrinks.
DEVICE void add_run(State& state, float score, const word16* values, int count, int lane) {
  float top = fmaxf(state.top, warp_max(score)), shrink = expf(state.top - top), weight = expf(score - top);
  state.top = top;
  state.sum = state.sum * shrink + warp_sum(weight);
  for (int i = 0; i < DIMS; i++) state.o[i] *= shrink;
  add_values(state, values, count, weight, lane);
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

// The warps process runs of slots in turn, each with a separate state.
DEVICE void attend_to_blocks(word16* out, const word16* q, const word16* k_cache, const word16* v_cache,
                             const int* table, float scale, int num_kv_heads, int kv_head, int context_len) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float query[DIMS];
  State state = {NEG_INF, 0, {}};
  for (int i = 0; i < DIMS; i++) query[i] = value_at(q, i, lane);
  for (int n = warp; first_of_run(n) < context_len; n += WARPS) {
    int first = first_of_run(n), count = count_of_run(n, context_len);
    const word16* keys = row_of(k_cache, table, first, num_kv_heads, kv_head);
    const word16* values = row_of(v_cache, table, first, num_kv_heads, kv_head);
    add_run(state, scores_of(query, keys, count, scale, lane), values, count, lane);
  }
  merge(out, state, warp, lane);
}
