// Decode attention: one query token per sequence against its cached keys and values.
//
//   out[s, h] = softmax(scale * q[s, h] . K[s, h / GROUP]^T) V[s, h / GROUP],   online softmax in fp32
//
// One source, two kernels. PAGED: K and V lie in blocks of BLOCK_SIZE slots named by a block table. Contiguous:
// they lie in one extent per sequence. Only `row_of_tile` and what it reads differ.
// Layout of both caches: [block or extent, kv head, slot, HEAD_SIZE], so a head's slots of a block are adjacent.
//
// Grid (groups, sequences, chunks), a group being up to 8 query heads that share one kv head. A thread block serves one
// group over one chunk of the context; its warps take tiles of 16 tokens in turn, each with a separate softmax state.
// WAVE: chunks are as long as lets all of them run at once, whatever the lengths (decode_work.cuh).
// SHARES: thread blocks that all run at once take equal parts of all contexts, one after the other (decode_shares.cuh).
// PREFIXED: another kernel has attended to the first tokens of each context, which neighbours share; its partial results
// are merged with those of the rest (shared_prefix.cuh, prefill_tma.cu).
// Scores are computed transposed, S^T[tokens x heads] = K q^T and O^T[dims x heads] = V^T P^T, with m16n8k16: K and
// V go from global memory straight into A fragments (the order of the contracted index is free, so 16-byte loads fit
// the fragment), V is transposed by byte permutes, P by movmatrix; K and V never touch shared memory.
// The next K tile is loaded as soon as this one is consumed, likewise V: one to two tiles per warp are always in
// flight. With several chunks, the last thread block of a (sequence, group) to finish reduces them.
//
// Compile-time: HEAD_SIZE, GROUP (query heads per kv head), BLOCK_SIZE (PAGED), NUM_WARPS, CTAS_PER_SM, WAVE, SHARES,
// PREFIXED, BF16, FP8 (HEAD_SIZE 64, 128, 256), WINDOWED.
//
// Measured (H200, fp16): 3 thread blocks of 4 warps an SM in 168 registers beat 4 in 128, of which a few spill (161.6 and
// 171.0 us at 40 heads, 32x1024); the next tile's block id is fetched only if there is a next tile (158.1). e4m3 with 5 thread
// blocks an SM, which spill, is 20% slower. Two tiles ahead in 225 registers are no faster in a WAVE.
#include "common.cuh"

#define TILE 16
#define MAX_CHUNKS 128
#define MERGED 8                      // chunks whose partial results are loaded together
#define HEADS (GROUP < 8 ? GROUP : 8)
#define HEAD_TILES ((GROUP + 7) / 8)
#define ROW_BYTES (HEAD_SIZE * (FP8 ? 1 : 2))
#define K_FULL (ROW_BYTES / 64)       // steps of 16 bytes per lane
#define K_REST (ROW_BYTES % 64)       // 0 or 32: 8 bytes per lane
#define V_FULL (ROW_BYTES / 128)      // steps of 16 bytes per lane
#define V_REST (ROW_BYTES % 128)      // 0, 32 or 64: 4 or 8 bytes per lane
#define MOST_SHARES 120               // SHARES: of a row; with those of a prefix at most MAX_CHUNKS
#define ACCUMULATORS (HEAD_SIZE / 16)
#define ONE_BLOCK_PER_TILE (BLOCK_SIZE % TILE == 0)

#include "decode_tiles.cuh"
#include "decode_fp8.cuh"

// Softmax state of heads 2t and 2t + 1: running maximum, this lane's share of the denominator, output.
struct State {
  float top[2], sum[2], o[ACCUMULATORS][4];
};

// Scores become weights p, of tokens `hidden` to `valid` of the tile; the state is rescaled when a maximum grew.
DEVICE void soften(State& state, float (&s)[4], unsigned (&p)[2], int hidden, int valid, float scale_log2, int lane) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int token = lane / 4 + i / 2 * 8;
    s[i] = token < valid && (!WINDOWED || token >= hidden) ? s[i] * scale_log2 : NEG_INF;
  }
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

#include "shared_prefix.cuh"
#include "decode_work.cuh"
#include "decode_shares.cuh"
#include "decode_merge.cuh"

struct Batch {
  word16* out;
  const word16* q;
  const void *k_cache, *v_cache;
  const int* places;
  float* part_o;
  float2* part_state;
  int* counters;
  float scale_log2;
  int q_stride, num_kv_heads, places_width;
  const float* kv_scales;
  const int* prefixes;
  int prefix_chunks, num_seqs;
};

// One group of heads over one chunk of a context.
DEVICE void attend(Shared& shared, const Batch& b, const Work& work) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, seq = work.seq;
  int kv_head = work.group / HEAD_TILES, head = kv_head * GROUP + work.group % HEAD_TILES * 8;
  int heads_here = min(HEADS, (kv_head + 1) * GROUP - head), num_heads = b.num_kv_heads * GROUP;
  int tile = work.tile + warp;
  const int* table = b.places + (long long)seq * b.places_width;
  Place place = {table, b.places_width, (unsigned)kv_head * (PAGED ? BLOCK_SIZE : __ldg(table + 1)),
                 (unsigned)b.num_kv_heads * (PAGED ? BLOCK_SIZE : 1)};
  int block = fetch_block(place, tile, lane);
  if (work.chunk >= work.num_chunks) return;

  const word16* query = b.q + (long long)seq * b.q_stride + head * HEAD_SIZE;
  for (int i = threadIdx.x; i < HEAD_SIZE; i += NUM_WARPS * 32) {  // 8 heads of HEAD_SIZE / 8 vectors
    int h = i / (HEAD_SIZE / 8);
    bool valid = h < heads_here;
    copy_async(shared_address(&shared.query[0][i * 8]), valid ? query + i * 8 : query, valid ? 16 : 0);
  }
  commit_copies();

  int end = work.end, end_tile = (end + TILE - 1) / TILE;
  int start = work.start;
  float scale_log2 = b.scale_log2, v_scale = 1;
  if (FP8) scale_log2 *= __ldg(b.kv_scales + kv_head), v_scale = __ldg(b.kv_scales + b.num_kv_heads + kv_head);
  address_t keys = (address_t)b.k_cache, values = (address_t)b.v_cache;
  State state = {{NEG_INF, NEG_INF}};
  KeyTile k;
  ValueTile v;
  if (tile < end_tile) {
    unsigned row = row_of_tile(place, block, tile, lane);
    load_keys(k, keys, row, start - tile * TILE, end - 1 - tile * TILE, lane);
    load_values(v, values, row, start - tile * TILE, end - 1 - tile * TILE, lane);
    if (tile + NUM_WARPS < end_tile) block = fetch_block(place, tile + NUM_WARPS, lane);
  }
  wait_copies();
  __syncthreads();
  for (; tile < end_tile; tile += NUM_WARPS) {
    int next = tile + NUM_WARPS, last = end - 1 - next * TILE;
    unsigned row = 0, p[2];
    float s[4];
    score(s, k, shared_address(shared.query), lane);
    if (next < end_tile) {
      row = row_of_tile(place, block, next, lane);
      load_keys(k, keys, row, start - next * TILE, last, lane);
      block = fetch_block(place, next + NUM_WARPS, lane);
    }
    soften(state, s, p, start - tile * TILE, end - tile * TILE, scale_log2, lane);
    weigh(state.o, v, p);
    if (next < end_tile) load_values(v, values, row, start - next * TILE, last, lane);
  }
  publish_state(shared, state, warp, lane);
  __syncthreads();

  long long row = (long long)seq * num_heads + head;
  int of_prefix = PREFIXED ? chunks_of_prefix(start, b.prefix_chunks) : 0;
  bool alone = work.num_chunks == 1 && !of_prefix;
  Parts parts = work.parts;
  if (PREFIXED) {
    int of_prefixes = b.num_seqs * num_heads * b.prefix_chunks;  // which lie before those of this kernel
    parts.first += of_prefixes, parts.rest += of_prefixes;
    parts.own = work.num_chunks, parts.prefix = (int)row * b.prefix_chunks, parts.per_prefix = b.prefix_chunks;
  }
  for (int e = threadIdx.x; e < heads_here * (HEAD_SIZE / 2); e += NUM_WARPS * 32) {
    int h = e / (HEAD_SIZE / 2), dim = e % (HEAD_SIZE / 2) * 2;
    float top, sum;
    float2 o = merge_warps(shared, h, dim, top, sum);
    if (FP8) o.x *= v_scale, o.y *= v_scale;
    if (alone) {
      float inverse = end ? 1 / sum : 0;
      if (!end) o = make_float2(0, 0);
      ((unsigned*)(b.out + row * HEAD_SIZE))[e] = pack(o.x * inverse, o.y * inverse);
    } else {
      long long part = part_of(parts, h, work.chunk);
      *(float2*)&b.part_o[part * HEAD_SIZE + dim] = o;
      if (dim == 0) b.part_state[part] = make_float2(top, sum);
    }
  }
  if (alone) return;
  // One thread's atomic orders all writes before this barrier, and all reads after the next (PTX memory model).
  __syncthreads();
  if (work.num_chunks > 1) {
    int* counter = b.counters + seq * b.num_kv_heads * HEAD_TILES + work.group;
    if (threadIdx.x == 0) shared.is_last = add_in_order(counter, 1) == work.num_chunks - 1;
    __syncthreads();
    if (!shared.is_last) return;
    if (threadIdx.x == 0) *counter = 0;
  }
  reduce_chunks(shared, (uint2*)(b.out + row * HEAD_SIZE), b.part_o, b.part_state, parts,
                work.num_chunks + of_prefix, heads_here);
}

extern "C" __global__ void __launch_bounds__(NUM_WARPS * 32, CTAS_PER_SM)
decode(word16* out,             // [num_seqs, num_heads, HEAD_SIZE]
       const word16* q,         // [num_seqs, num_heads, HEAD_SIZE], rows of q_stride values
       const void* k_cache,     // [num_blocks, num_kv_heads, BLOCK_SIZE, HEAD_SIZE] or extents of slots
       const void* v_cache,     // as k_cache
       const int* places,       // block table [num_seqs, places_width], or [num_seqs, 2]: first slot, capacity
       const int* context_lens, // [num_seqs]
       float* part_o,           // [num_seqs, num_heads, max_chunks, HEAD_SIZE], used with several chunks
       float2* part_state,      // [num_seqs, num_heads, max_chunks]: maximum, denominator
       int* counters,           // [num_seqs, groups], zero before and after
       float scale_log2,        // softmax scale * log2(e)
       int q_stride, int num_kv_heads, int places_width,
       int chunk_tokens,        // WAVE: at least
       int num_seqs, int max_chunks,
       int resident,            // WAVE: thread blocks that run at once, for each group
       const int* prefixes,     // PREFIXED: [num_seqs] tokens that prefill_tma.cu attended to, whole tiles
       int prefix_chunks,       // PREFIXED: in at most so many chunks
       const float* kv_scales,  // FP8: [2, num_kv_heads] of K, of V
       int window) {            // WINDOWED
  __shared__ __align__(16) Shared shared;
  Batch b = {out, q, k_cache, v_cache, places, part_o, part_state, counters, scale_log2, q_stride, num_kv_heads,
             places_width, kv_scales, prefixes, prefix_chunks, num_seqs};
  Contexts contexts = {context_lens, prefixes, num_seqs, window};
  int groups = num_kv_heads * HEAD_TILES, num_heads = num_kv_heads * GROUP;
#if SHARES
  int share = share_of(contexts, groups, chunk_tokens / (TILE * NUM_WARPS));
  for (int turn = blockIdx.x * share, stop = turn + share; turn < stop;) {
    Work work = work_at(contexts, groups, share, turn, stop);
    if (work.seq == num_seqs) break;
    attend(shared, b, work);
    __syncthreads();
  }
#elif WAVE
  Work work = work_of_wave(contexts, groups, resident, chunk_tokens / TILE, num_heads, max_chunks);
  attend(shared, b, work);
#else
  Work work = work_of(blockIdx.x, blockIdx.y, blockIdx.z, contexts, chunk_tokens, num_heads, max_chunks);
  attend(shared, b, work);
#endif
}
