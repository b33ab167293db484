// Decode attention: one query token per sequence against its cached keys and values.
//
//   out[s, h] = softmax(scale * q[s, h] . K[s, h / GROUP]^T) V[s, h / GROUP],   online softmax in fp32
//
// One source, two kernels. PAGED: K and V lie in blocks of BLOCK_SIZE slots named by a block table. Contiguous:
// they lie in one extent per sequence. Only `row_of_tile` and what it reads differ.
// Layout of both caches: [block or extent, kv head, slot, HEAD_SIZE], so a head's slots of a block are adjacent.
//
// Grid (kv heads x head tiles, sequences, chunks). A thread block serves up to 8 query heads that share one kv head
// over one chunk of the context; its warps take tiles of 16 tokens in turn, each keeping its own softmax state.
// Scores are computed transposed, S^T[tokens x heads] = K q^T and O^T[dims x heads] = V^T P^T, with m16n8k16: K and
// V go from global memory straight into A fragments (the order of the contracted index is free, so 16-byte loads fit
// the fragment), V is transposed by byte permutes, P by movmatrix; K and V never touch shared memory.
// The next K tile is loaded as soon as this one is consumed, likewise V: one to two tiles per warp are always in
// flight. With several chunks, the last thread block of a (sequence, head tile) to finish reduces them.
//
// Compile-time: HEAD_SIZE, GROUP (query heads per kv head), BLOCK_SIZE (PAGED), NUM_WARPS, CTAS_PER_SM, BF16.
// History: see kernels/results/.
#include "common.cuh"

#define TILE 16
#define MAX_CHUNKS 128
#define HEADS (GROUP < 8 ? GROUP : 8)
#define HEAD_TILES ((GROUP + 7) / 8)
#define ROW_BYTES (HEAD_SIZE * 2)
#define K_FULL (HEAD_SIZE / 32)       // steps of 32 dims: 16 bytes per lane
#define K_REST (HEAD_SIZE % 32)       // 0 or 16 dims: 8 bytes per lane
#define V_FULL (HEAD_SIZE / 64)       // steps of 64 dims: 16 bytes per lane
#define V_REST (HEAD_SIZE % 64)       // 0, 16 or 32 dims: 4 or 8 bytes per lane
#define ACCUMULATORS (HEAD_SIZE / 16)
#if PAGED
#define ONE_BLOCK_PER_TILE (BLOCK_SIZE % TILE == 0)
#else
#define ONE_BLOCK_PER_TILE 1
#endif

// Where one sequence's rows (HEAD_SIZE values each) of one kv head lie.
struct Place {
#if PAGED
  const int* table;     // [max_blocks] block ids of this sequence
  int max_blocks;       // width of the table
  unsigned head_row;    // kv head * BLOCK_SIZE
  unsigned block_rows;  // num_kv_heads * BLOCK_SIZE
#else
  unsigned first_row;   // of this extent and kv head
#endif
};

// The table entry that this lane needs for `tile`; reads within the table even when the tile is past the context.
DEVICE int fetch_block(const Place& place, int tile, int lane) {
#if PAGED
  int token = tile * TILE + (ONE_BLOCK_PER_TILE ? 0 : lane % TILE);
  return __ldg(place.table + min(token / BLOCK_SIZE, place.max_blocks - 1));
#else
  return 0;
#endif
}

// Row of the tile's first token, or of token lane % 16 where a tile can span blocks.
DEVICE unsigned row_of_tile(const Place& place, int block, int tile, int lane) {
#if PAGED
  int token = tile * TILE + (ONE_BLOCK_PER_TILE ? 0 : lane % TILE);
  return (unsigned)block * place.block_rows + place.head_row + token % BLOCK_SIZE;
#else
  return place.first_row + tile * TILE;
#endif
}

// Row of token `slot` of the tile; slots past the context (`last` is the final valid one) repeat the last token, so
// memory that the sequence does not own is never read.
DEVICE unsigned row_of_slot(unsigned row, int slot, int last) {
  slot = min(slot, last);
  return ONE_BLOCK_PER_TILE ? row + slot : __shfl_sync(FULL_MASK, row, slot);
}

struct KeyTile {
  uint4 full[K_FULL][2];  // token g or g + 8 of the tile, dims 32 i + 8 t .. + 7
  uint2 rest[2];          // dims 32 K_FULL + 4 t .. + 3
};

struct ValueTile {
  uint4 full[V_FULL][4];  // token 2t, 2t + 1, 2t + 8, 2t + 9, dims 64 i + 8 g .. + 7
  uint2 rest[4];          // dims 64 V_FULL + 4 g .. + 3 (V_REST = 32) or + 2 g, + 1 (16)
};

DEVICE void load_keys(KeyTile& k, address_t cache, unsigned row, int last, int lane) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    address_t p = cache + (address_t)row_of_slot(row, lane / 4 + 8 * r, last) * ROW_BYTES;
#pragma unroll
    for (int i = 0; i < K_FULL; i++) k.full[i][r] = stream16(p + i * 64 + lane % 4 * 16);
    if (K_REST) k.rest[r] = stream8(p + K_FULL * 64 + lane % 4 * 8);
  }
}

DEVICE void load_values(ValueTile& v, address_t cache, unsigned row, int last, int lane) {
#pragma unroll
  for (int u = 0; u < 4; u++) {
    int slot = lane % 4 * 2 + u % 2 + u / 2 * 8;
    address_t p = cache + (address_t)row_of_slot(row, slot, last) * ROW_BYTES;
#pragma unroll
    for (int i = 0; i < V_FULL; i++) v.full[i][u] = stream16(p + i * 128 + lane / 4 * 16);
    if (V_REST == 32) v.rest[u] = stream8(p + V_FULL * 128 + lane / 4 * 8);
    if (V_REST == 16) v.rest[u].x = stream4(p + V_FULL * 128 + lane / 4 * 4);
  }
}

// s[token, head] of a tile: lane holds tokens g and g + 8 of heads 2t and 2t + 1.
DEVICE void score(float (&s)[4], const KeyTile& k, unsigned query, int lane) {
  float even[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0};
  unsigned q = query + lane / 4 * ROW_BYTES;
#pragma unroll
  for (int i = 0; i < K_FULL; i++) {
    uint4 b;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b.x), "=r"(b.y), "=r"(b.z), "=r"(b.w) : "r"(q + i * 64 + lane % 4 * 16));
    mma(even, k.full[i][0].x, k.full[i][1].x, k.full[i][0].y, k.full[i][1].y, b.x, b.y);
    mma(odd, k.full[i][0].z, k.full[i][1].z, k.full[i][0].w, k.full[i][1].w, b.z, b.w);
  }
  if (K_REST) {
    uint2 b;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];"
                 : "=r"(b.x), "=r"(b.y) : "r"(q + K_FULL * 64 + lane % 4 * 8));
    mma(even, k.rest[0].x, k.rest[1].x, k.rest[0].y, k.rest[1].y, b.x, b.y);
  }
#pragma unroll
  for (int i = 0; i < 4; i++) s[i] = even[i] + odd[i];
}

// One m16n8k16 step of O^T += V^T P^T from four words, each two adjacent dims of one token.
DEVICE void add_values(float (&o)[4], unsigned v0, unsigned v1, unsigned v2, unsigned v3, const unsigned (&p)[2]) {
  mma(o, __byte_perm(v0, v1, 0x5410), __byte_perm(v0, v1, 0x7632), __byte_perm(v2, v3, 0x5410),
      __byte_perm(v2, v3, 0x7632), p[0], p[1]);
}

DEVICE void weigh(float (&o)[ACCUMULATORS][4], const ValueTile& v, const unsigned (&p)[2]) {
#pragma unroll
  for (int i = 0; i < V_FULL; i++) {
    add_values(o[4 * i], v.full[i][0].x, v.full[i][1].x, v.full[i][2].x, v.full[i][3].x, p);
    add_values(o[4 * i + 1], v.full[i][0].y, v.full[i][1].y, v.full[i][2].y, v.full[i][3].y, p);
    add_values(o[4 * i + 2], v.full[i][0].z, v.full[i][1].z, v.full[i][2].z, v.full[i][3].z, p);
    add_values(o[4 * i + 3], v.full[i][0].w, v.full[i][1].w, v.full[i][2].w, v.full[i][3].w, p);
  }
  if (V_REST) add_values(o[4 * V_FULL], v.rest[0].x, v.rest[1].x, v.rest[2].x, v.rest[3].x, p);
  if (V_REST == 32)
    add_values(o[ACCUMULATORS - 1], v.rest[0].y, v.rest[1].y, v.rest[2].y, v.rest[3].y, p);
}

// First of the two adjacent dims that accumulator i holds for lanes with this g.
DEVICE int dim_of_accumulator(int i, int g) {
  if (i < 4 * V_FULL) return i / 4 * 64 + g * 8 + i % 4 * 2;
  return V_FULL * 64 + (V_REST == 32 ? g * 4 + (i - 4 * V_FULL) * 2 : g * 2);
}

// Softmax state of heads 2t and 2t + 1: running maximum, this lane's share of the denominator, output.
struct State {
  float top[2], sum[2], o[ACCUMULATORS][4];
};

// Scores become weights p; the state is rescaled when a maximum grew.
DEVICE void soften(State& state, float (&s)[4], unsigned (&p)[2], int valid, float scale_log2, int lane) {
#pragma unroll
  for (int i = 0; i < 4; i++) s[i] = lane / 4 + i / 2 * 8 < valid ? s[i] * scale_log2 : NEG_INF;
  float top[2] = {fmaxf(s[0], s[2]), fmaxf(s[1], s[3])};
#pragma unroll
  for (int h = 0; h < 2; h++) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) top[h] = fmaxf(top[h], __shfl_xor_sync(FULL_MASK, top[h], step));
    top[h] = fmaxf(top[h], state.top[h]);
  }
  if (__any_sync(FULL_MASK, top[0] > state.top[0] || top[1] > state.top[1])) {
    float shrink[2] = {fast_exp2(state.top[0] - top[0]), fast_exp2(state.top[1] - top[1])};
#pragma unroll
    for (int h = 0; h < 2; h++) state.sum[h] *= shrink[h], state.top[h] = top[h];
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) state.o[i][j] *= shrink[j % 2];
  }
#pragma unroll
  for (int i = 0; i < 4; i++) s[i] = fast_exp2(s[i] - state.top[i % 2]);
  state.sum[0] += s[0] + s[2];
  state.sum[1] += s[1] + s[3];
  p[0] = transpose8x8(pack(s[0], s[1]));
  p[1] = transpose8x8(pack(s[2], s[3]));
}

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

extern "C" __global__ void __launch_bounds__(NUM_WARPS * 32, CTAS_PER_SM)
decode(word16* out,             // [num_seqs, num_heads, HEAD_SIZE]
       const word16* q,         // [num_seqs, num_heads, HEAD_SIZE], rows of q_stride values
       const word16* k_cache,   // [num_blocks, num_kv_heads, BLOCK_SIZE, HEAD_SIZE] or extents of slots
       const word16* v_cache,   // as k_cache
       const int* places,       // block table [num_seqs, places_width], or [num_seqs, 2]: first slot, capacity
       const int* context_lens, // [num_seqs]
       float* part_o,           // [num_seqs, num_heads, max_chunks, HEAD_SIZE], used with several chunks
       float2* part_state,      // [num_seqs, num_heads, max_chunks]: maximum, denominator
       int* counters,           // [num_seqs, gridDim.x], zero before and after
       float scale_log2,        // softmax scale * log2(e)
       int q_stride, int num_kv_heads, int places_width, int chunk_tokens) {
  __shared__ __align__(16) Shared shared;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, seq = blockIdx.y;
  int kv_head = blockIdx.x / HEAD_TILES, head = kv_head * GROUP + blockIdx.x % HEAD_TILES * 8;
  int heads_here = min(HEADS, (kv_head + 1) * GROUP - head), num_heads = num_kv_heads * GROUP;
  int chunk = blockIdx.z, max_chunks = gridDim.z;
  int tile = chunk * (chunk_tokens / TILE) + warp;
#if PAGED
  Place place = {places + (long long)seq * places_width, places_width, (unsigned)kv_head * BLOCK_SIZE,
                 (unsigned)num_kv_heads * BLOCK_SIZE};
#else
  int2 extent = __ldg((const int2*)places + seq);
  Place place = {(unsigned)extent.x * num_kv_heads + (unsigned)kv_head * extent.y};
#endif
  int context_len = __ldg(context_lens + seq);
  int block = fetch_block(place, tile, lane);
  if (chunk * chunk_tokens >= max(context_len, 1)) return;

  const word16* query = q + (long long)seq * q_stride + head * HEAD_SIZE;
  for (int i = threadIdx.x; i < HEAD_SIZE; i += NUM_WARPS * 32) {  // 8 heads of HEAD_SIZE / 8 vectors
    int h = i / (HEAD_SIZE / 8);
    bool valid = h < heads_here;
    copy_async(shared_address(&shared.query[0][i * 8]), valid ? query + i * 8 : query, valid ? 16 : 0);
  }
  commit_copies();

  int end = min((chunk + 1) * chunk_tokens, context_len), end_tile = (end + TILE - 1) / TILE;
  address_t keys = (address_t)k_cache, values = (address_t)v_cache;
  State state = {{NEG_INF, NEG_INF}};
  KeyTile k;
  ValueTile v;
  if (tile < end_tile) {
    unsigned row = row_of_tile(place, block, tile, lane);
    load_keys(k, keys, row, end - 1 - tile * TILE, lane);
    load_values(v, values, row, end - 1 - tile * TILE, lane);
    block = fetch_block(place, tile + NUM_WARPS, lane);
  }
  wait_copies<0>();
  __syncthreads();
  for (; tile < end_tile; tile += NUM_WARPS) {
    int next = tile + NUM_WARPS, last = end - 1 - next * TILE;
    unsigned row = row_of_tile(place, block, next, lane), p[2];
    float s[4];
    score(s, k, shared_address(shared.query), lane);
    if (next < end_tile) {
      load_keys(k, keys, row, last, lane);
      block = fetch_block(place, next + NUM_WARPS, lane);
    }
    soften(state, s, p, end - tile * TILE, scale_log2, lane);
    weigh(state.o, v, p);
    if (next < end_tile) load_values(v, values, row, last, lane);
  }
  publish_state(shared, state, warp, lane);
  __syncthreads();

  int num_chunks = max(1, (context_len + chunk_tokens - 1) / chunk_tokens);
  long long row = (long long)seq * num_heads + head;
  for (int e = threadIdx.x; e < heads_here * (HEAD_SIZE / 2); e += NUM_WARPS * 32) {
    int h = e / (HEAD_SIZE / 2), dim = e % (HEAD_SIZE / 2) * 2;
    float top, sum;
    float2 o = merge_warps(shared, h, dim, top, sum);
    if (num_chunks == 1) {
      float inverse = context_len ? 1 / sum : 0;
      if (!context_len) o = make_float2(0, 0);
      ((unsigned*)(out + row * HEAD_SIZE))[e] = pack(o.x * inverse, o.y * inverse);
    } else {
      long long part = (row + h) * max_chunks + chunk;
      *(float2*)&part_o[part * HEAD_SIZE + dim] = o;
      if (dim == 0) part_state[part] = make_float2(top, sum);
    }
  }
  if (num_chunks == 1) return;
  __threadfence();
  __syncthreads();
  int* counter = counters + seq * gridDim.x + blockIdx.x;
  if (threadIdx.x == 0) shared.is_last = atomicAdd(counter, 1) == num_chunks - 1;
  __syncthreads();
  if (!shared.is_last) return;
  __threadfence();
  if (threadIdx.x == 0) *counter = 0;
  reduce_chunks(shared, (unsigned*)(out + row * HEAD_SIZE), part_o + row * max_chunks * HEAD_SIZE,
                part_state + row * max_chunks, num_chunks, max_chunks, heads_here);
}
