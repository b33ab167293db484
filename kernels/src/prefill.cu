// Ragged prefill attention: the new tokens of a mixed batch, flattened, against a paged cache that already contains
// them and whatever came before (earlier chunks, prefix hits). Causal; FlashAttention-2 (Dao 2023) on m16n8k16.
//
//   out[i, h] = softmax(scale * q[i, h] . K[s, h / GROUP, :past + i + 1]^T) V,   i-th new token of sequence s
//
// PAGED or not, and the caches' layout, as decode.cu; an extent is read as one block that never ends.
//
// Grid (tiles of Q_ROWS new tokens, num_heads, num_seqs), the longest tile of a sequence first. 4 warps, each with
// 16 * M_TILES query rows; K and V pass through shared memory in tiles of 64 tokens, double buffered by cp.async, so
// one barrier a tile suffices. Rows are padded by 16 bytes: eight rows of one ldmatrix then touch all 32 banks once.
// Block ids of the tile after next are fetched by one load per lane and handed around by shuffles.
//
// Runs where prefill_tma.cu cannot: GPUs other than Hopper, head sizes 80, 96 and 256, blocks that are no power of two,
// and e4m3. Measured (H200, fp16, 40 heads of 128; microseconds at 1x1024 / 1x4096 new tokens): 66 / 623.
//
// FP8: rows arrive as bytes in shared memory, and each thread widens what it copied; so K and V have one stage.
// WINDOWED: tiles before the window of a thread block's first row are not read.
//
// Compile-time: HEAD_SIZE, GROUP, PAGED, BLOCK_SIZE, BF16, FP8, WINDOWED. Shared memory: see its launch.
#include "common.cuh"

#define NUM_WARPS 4
#define M_TILES (HEAD_SIZE > 128 ? 1 : 2)
#define Q_ROWS (NUM_WARPS * M_TILES * 16)
#define K_ROWS 64
#define PITCH (HEAD_SIZE + 8)  // values per row in shared memory
#define VECTORS (HEAD_SIZE / 8)
#define HEADS 1  // a row is a token
#define STAGE (K_ROWS * PITCH)  // values of one K or V tile
#define CTAS_PER_SM (HEAD_SIZE > 128 ? 1 : 2)
#if FP8
typedef unsigned char cached;
#else
typedef word16 cached;
#endif
#define STAGES (FP8 ? 1 : 2)
#define COPIED (HEAD_SIZE * (int)sizeof(cached) / 16)  // vectors of 16 bytes of a cached row
#define COPY_BYTES (FP8 ? HEAD_SIZE : PITCH * 2)       // from a row that was copied to the next
#define COPY_STAGE (K_ROWS * COPY_BYTES)

// Byte offset of 16-byte vector `vector` of row `row` in shared memory.
DEVICE unsigned place(int row, int vector) { return row * (PITCH * 2) + vector * 16; }

// Row of token lane % 16 of this warp's 16 rows of a tile; tokens past the context repeat the last one, and those before
// `start` that one.
DEVICE int token_of_lane(int tile, int start, int context_len) {
  int token = tile * K_ROWS + (int)threadIdx.x % 16 + (int)threadIdx.x / 32 * 16;
  if (WINDOWED) token = max(token, start);
  return min(token, context_len - 1);
}

// Starts the copy of this warp's 16 rows of K and of V.
DEVICE void load_tile(unsigned k_shared, unsigned v_shared, const cached* k, const cached* v, unsigned row) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < COPIED / 2; i++) {
    int r = (i * 32 + lane) / COPIED, vector = (i * 32 + lane) % COPIED;
    long long from = (long long)__shfl_sync(FULL_MASK, row, r) * HEAD_SIZE + vector * (16 / (int)sizeof(cached));
    int to = (warp * 16 + r) * COPY_BYTES + vector * 16;
    copy_async(k_shared + to, k + from);
    copy_async(v_shared + to, v + from);
  }
}

#if FP8
// The bytes that this thread copied, of K and of V, to the rows that products read.
DEVICE void widen_tile(word16* kv, const char* bytes) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < COPIED; i++) {
    int r = (i / 2 * 32 + lane) / COPIED + warp * 16, vector = (i / 2 * 32 + lane) % COPIED;
    uint4 x = *(const uint4*)(bytes + i % 2 * COPY_STAGE + r * COPY_BYTES + vector * 16);
    uint4* to = (uint4*)(kv + i % 2 * STAGE + r * PITCH + vector * 16);
    to[0] = make_uint4(widen(x.x), widen(x.x >> 16), widen(x.y), widen(x.y >> 16));
    to[1] = make_uint4(widen(x.z), widen(x.z >> 16), widen(x.w), widen(x.w >> 16));
  }
}
#endif

#include "prefill_rows.cuh"
#include "prefill_mma.cuh"

extern "C" __global__ void __launch_bounds__(NUM_WARPS * 32, CTAS_PER_SM)
prefill(word16* out,              // [num_tokens, num_heads, HEAD_SIZE]
        const word16* q,          // [num_tokens, num_heads, HEAD_SIZE], rows of q_stride values
        const cached* k_cache,    // [num_blocks, num_kv_heads, BLOCK_SIZE, HEAD_SIZE] or extents of slots
        const cached* v_cache,    // as k_cache
        const int* places,        // block table [num_seqs, places_width], or [num_seqs, 2]: first slot, capacity
        const int* query_starts,  // [num_seqs + 1] first new token of each sequence
        const int* context_lens,  // [num_seqs] cached tokens, the new ones included
        float scale_log2,         // softmax scale * log2(e)
        int q_stride, int num_kv_heads, int places_width,
        const float* kv_scales,   // FP8: [2, num_kv_heads] of K, of V
        int window) {             // WINDOWED
  extern __shared__ __align__(16) word16 shared[];  // Q_ROWS + STAGES * 2 * K_ROWS rows of PITCH; FP8: K and V as bytes
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y, seq = blockIdx.z;
  int start = query_starts[seq], num_new = query_starts[seq + 1] - start, context_len = context_lens[seq];
  int first = ((int)gridDim.x - 1 - (int)blockIdx.x) * Q_ROWS, num_heads = gridDim.y;
  if (first >= num_new) return;
  int past = context_len - num_new, num_tiles = (past + min(first + Q_ROWS, num_new) + K_ROWS - 1) / K_ROWS;
  int start_token = WINDOWED ? max(0, past + first + 1 - window) : 0, first_tile = start_token / K_ROWS;
  const int* table = places + (long long)seq * places_width;
  unsigned block_rows = num_kv_heads * (PAGED ? BLOCK_SIZE : 1), head_row = head / GROUP * (PAGED ? BLOCK_SIZE : table[1]);
  word16* kv = shared + Q_ROWS * PITCH;
  char* copies = (char*)(FP8 ? kv + 2 * STAGE : kv);
  float v_scale = 1;
#if FP8
  scale_log2 *= kv_scales[head / GROUP], v_scale = kv_scales[num_kv_heads + head / GROUP];
#endif

  const word16* q_first = q + (long long)(start + first) * q_stride + head * HEAD_SIZE;
  for (int i = threadIdx.x; i < Q_ROWS * VECTORS; i += NUM_WARPS * 32) {
    int r = i / VECTORS, vector = i % VECTORS;
    bool valid = first + r < num_new;
    copy_async(shared_address(shared + r * PITCH + vector * 8),
               valid ? q_first + (long long)r * q_stride + vector * 8 : q, valid ? 16 : 0);
  }
  int token = token_of_lane(first_tile, start_token, context_len);
  unsigned row = table[token / BLOCK_SIZE] * block_rows + head_row + token % BLOCK_SIZE;
  load_tile(shared_address(copies), shared_address(copies + COPY_STAGE), k_cache, v_cache, row);
  commit_copies();
  token = token_of_lane(first_tile + 1, start_token, context_len);
  int block = table[token / BLOCK_SIZE];

  State state = {};
  for (int m = 0; m < M_TILES; m++) state.top[m][0] = state.top[m][1] = NEG_INF;
  int warp_row = warp * M_TILES * 16, position = past + first + warp_row;
  unsigned q_warp = shared_address(shared + warp_row * PITCH);
  for (int tile = first_tile; tile < num_tiles; tile++) {
    unsigned k = shared_address(kv + (tile - first_tile) % STAGES * 2 * STAGE);
    wait_copies();
    __syncthreads();
#if FP8
    widen_tile(kv, copies);
#endif
    if (tile + 1 < num_tiles) {
      unsigned next = shared_address(copies + (tile + 1 - first_tile) % STAGES * 2 * COPY_STAGE);
      row = block * block_rows + head_row + token % BLOCK_SIZE;
      load_tile(next, next + COPY_STAGE, k_cache, v_cache, row);
      commit_copies();
      token = token_of_lane(tile + 2, start_token, context_len);
      block = table[token / BLOCK_SIZE];
    }
    if (FP8) __syncthreads();
    int key = tile * K_ROWS;
    if (key > position + M_TILES * 16 - 1) continue;  // every key lies after every row of this warp
    if (WINDOWED && key + K_ROWS <= position + 1 - window) continue;  // or before the window of every row
    float s[M_TILES][K_ROWS / 8][4] = {};
    score(s, q_warp, k, lane);
    bool hides = key + K_ROWS - 1 > position || (WINDOWED && key <= position + M_TILES * 16 - 1 - window);
#pragma unroll
    for (int m = 0; m < M_TILES; m++) {
      float(&scores)[K_ROWS / 2] = (float(&)[K_ROWS / 2])s[m];
      int own = position + m * 16 + lane / 4, positions[2] = {own, own + 8};
      float shrink[2];
      if (hides) mask<K_ROWS>(scores, positions, key, window, lane);
      if (!soften<K_ROWS>(scores, state.top[m], state.sum[m], shrink, scale_log2)) continue;
#pragma unroll
      for (int r = 0; r < 2; r++)
#pragma unroll
        for (int d = 0; d < HEAD_SIZE / 8; d++) state.o[m][d][2 * r] *= shrink[r], state.o[m][d][2 * r + 1] *= shrink[r];
    }
    weigh(state, s, k + STAGE * 2, lane);
  }
  long long out_stride = (long long)num_heads * HEAD_SIZE;
#pragma unroll
  for (int m = 0; m < M_TILES; m++)
    store((float(&)[HEAD_SIZE / 2])state.o[m], state.sum[m], (char*)shared,
          out + (start + first) * out_stride + head * HEAD_SIZE, out_stride, warp_row + m * 16, num_new - first, v_scale);
}
