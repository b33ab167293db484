// Everything that moves K and V without computing on them; copies are in 16-byte vectors.
//
// write_cache    fused reshape and block write (paper section 5.1): new K and V of a mixed batch, flattened over
//                tokens, to their slots; or, not PAGED, to a row for each head. Grid (num_tokens).
// copy_blocks    whole blocks of all layers, K and V, in one launch: within a pool (copy-on-write), from a pool to a
//                staging buffer, or back. Grid (splits, num_blocks, num_planes).
// move_blocks    whole blocks of all layers between the GPU and the host's memory, which the kernel reads and writes by
//                itself; few thread blocks, for other kernels run meanwhile. Grid (any).
//
// A pool is [num_planes, num_blocks, block bytes], with one plane for each layer's K and each layer's V; a staging
// buffer and a pool of the host's are [num_blocks, num_planes, block bytes].
// Compile-time: HEAD_SIZE, PAGED, BLOCK_SIZE, BF16, FP8, PAPER_LAYOUT (write_cache: K and V as paper_decode.cu reads
// them); IN_FLIGHT (move_blocks).
#include "common.cuh"

#define VECTORS (HEAD_SIZE / 8)

#if FP8
typedef uint2 cached;  // eight values in the cache
DEVICE cached quantized(uint4 x, float scale) {
  return make_uint2(narrow(x.x, scale) | narrow(x.y, scale) << 16, narrow(x.z, scale) | narrow(x.w, scale) << 16);
}
#else
typedef uint4 cached;
#define quantized(x, scale) (x)
#endif

extern "C" __global__ void __launch_bounds__(256)
write_cache(cached* k_cache,                // [num_blocks, num_kv_heads, BLOCK_SIZE, HEAD_SIZE]
            cached* v_cache,                // as k_cache; PAPER_LAYOUT: HEAD_SIZE before BLOCK_SIZE
            const word16* k,                // [num_tokens, num_kv_heads, HEAD_SIZE], rows of k_stride values
            const word16* v,                // as k, rows of v_stride values
            const long long* slot_mapping,  // [num_tokens]: block id * BLOCK_SIZE + offset; negative: skip the token;
                                            // or [num_tokens, num_kv_heads]: rows of HEAD_SIZE values
            int k_stride, int v_stride, int num_kv_heads,
            const float* kv_scales) {       // FP8: [2, num_kv_heads] of K, of V
  long long token = blockIdx.x, slot = slot_mapping[PAGED ? token : token * num_kv_heads];
  if (slot < 0) return;
  long long block = slot / BLOCK_SIZE;
  int offset = (int)(slot % BLOCK_SIZE);
  const uint4* k_row = (const uint4*)(k + token * k_stride);
  const uint4* v_row = (const uint4*)(v + token * v_stride);
  for (int i = threadIdx.x; i < num_kv_heads * VECTORS; i += blockDim.x) {
    long long head = block * num_kv_heads + i / VECTORS;
    int vector = i % VECTORS;
    long long row = PAGED ? head * BLOCK_SIZE + offset : slot_mapping[token * num_kv_heads + i / VECTORS];
    long long at = row * VECTORS + vector;
    k_cache[PAPER_LAYOUT ? (head * VECTORS + vector) * BLOCK_SIZE + offset : at] = quantized(k_row[i], kv_scales[i / VECTORS]);
    if (!PAPER_LAYOUT) {
      v_cache[at] = quantized(v_row[i], kv_scales[num_kv_heads + i / VECTORS]);
      continue;
    }
    word16* column = (word16*)v_cache + (head * HEAD_SIZE + vector * 8) * BLOCK_SIZE + offset;
#pragma unroll
    for (int value = 0; value < 8; value++) column[value * BLOCK_SIZE] = ((const word16*)(v_row + i))[value];
  }
}

// Where a block's plane of a pool or of a staging buffer begins. Its number is one of `ids`, or counted without.
DEVICE long long start_of(const int* ids, int step, long long of_block, long long of_plane) {
  return (ids ? ids[blockIdx.y * step] : (int)blockIdx.y) * of_block + blockIdx.z * of_plane;
}

// A thread block's share of `vectors` vectors is split over gridDim.x thread blocks; four loads in flight per thread.
extern "C" __global__ void __launch_bounds__(256)
copy_blocks(uint4* to, const int* to_ids,             // the block of each copy: to_ids[i * step], or i without ids
            long long to_block, long long to_plane,   // vectors from a block to the next, from a plane to the next
            const uint4* from, const int* from_ids,   // no block is both
            long long from_block, long long from_plane,
            int step, int vectors) {                  // vectors: of a block in a plane
  to += start_of(to_ids, step, to_block, to_plane), from += start_of(from_ids, step, from_block, from_plane);
  int stride = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < vectors; i += 4 * stride) {
    uint4 a = from[i], b = from[i + stride], c = from[i + 2 * stride], d = from[i + 3 * stride];
    to[i] = a, to[i + stride] = b, to[i + 2 * stride] = c, to[i + 3 * stride] = d;
  }
  for (; i < vectors; i += stride) to[i] = from[i];
}

#ifdef IN_FLIGHT
#define PIECE (32 * IN_FLIGHT)  // vectors that a warp reads before it writes them

// Warps take pieces of planes of blocks in turn: neighbours are adjacent in the host's memory. What the link carries at
// once is bounded by the loads in flight: IN_FLIGHT of 16 bytes for each thread.
extern "C" __global__ void __launch_bounds__(512)
move_blocks(uint4* to, const int* to_ids,             // as of copy_blocks; ids may be absent
            long long to_block, long long to_plane,
            const uint4* from, const int* from_ids,
            long long from_block, long long from_plane,
            int step, int num_blocks, int num_planes, int vectors) {
  int pieces = (vectors + PIECE - 1) / PIECE, warps = gridDim.x * blockDim.x / 32, lane = threadIdx.x % 32;
  long long all = (long long)num_blocks * num_planes * pieces;
  for (long long at = (blockIdx.x * blockDim.x + threadIdx.x) / 32; at < all; at += warps) {
    int block = (int)(at / (num_planes * pieces)), rest = (int)(at % (num_planes * pieces));
    int plane = rest / pieces, first = rest % pieces * PIECE + lane;
    const uint4* source = from + (from_ids ? from_ids[block * step] : block) * from_block + plane * from_plane;
    uint4* target = to + (to_ids ? to_ids[block * step] : block) * to_block + plane * to_plane;
    uint4 held[IN_FLIGHT];
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; i++)
      if (first + 32 * i < vectors) held[i] = source[first + 32 * i];
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; i++)
      if (first + 32 * i < vectors) target[first + 32 * i] = held[i];
  }
}
#endif
