// Of decode.cu: which part of which context a thread block takes.
#pragma once

// Where the partial result of a head and a chunk lies: of chunk 0 from `first` on, of chunk c > 0 from `rest` on.
// PREFIXED: behind the `own` chunks come those of the prefix, of which a head has `per_prefix`.
struct Parts {
  int first, rest, per_head, per_chunk, own, prefix, per_prefix;
};

DEVICE int part_of(const Parts& parts, int head, int chunk) {
  if (PREFIXED && chunk >= parts.own) return parts.prefix + head * parts.per_prefix + chunk - parts.own;
  return (chunk ? parts.rest : parts.first) + head * parts.per_head + chunk * parts.per_chunk;
}

// One group of heads of a sequence, from tile `tile` to token `end`: chunk `chunk` of its context, which begins at token
// `start`. Chunks begin with the tile of that token.
struct Work {
  int seq, group, tile, end, chunk, num_chunks, start;
  Parts parts;
};

// The contexts of a batch, on the device. PREFIXED: a kernel before this one attends to the first tokens of each.
struct Contexts {
  const int *lens, *prefixes;
  int num_seqs, window;
};

// The first token that is read.
DEVICE int start_of(const Contexts& contexts, int seq, int context_len) {
  if (PREFIXED) return __ldg(contexts.prefixes + seq);
  return WINDOWED ? max(0, context_len - contexts.window) : 0;
}

// Places of partial results by sequence, head and chunk.
DEVICE Parts parts_of_chunks(int seq, int group, int num_heads, int max_chunks) {
  int head = group / HEAD_TILES * GROUP + group % HEAD_TILES * 8, first = (seq * num_heads + head) * max_chunks;
  return {first, first, max_chunks, 1};
}

// Chunks of a given length; an empty context has one too, since its output is written.
DEVICE Work work_of(int group, int seq, int chunk, const Contexts& contexts, int chunk_tokens, int num_heads,
                    int max_chunks) {
  int context_len = __ldg(contexts.lens + seq), start = start_of(contexts, seq, context_len);
  int before = start / TILE * TILE;
  return {seq, group, before / TILE + chunk * (chunk_tokens / TILE),
          min(before + (chunk + 1) * chunk_tokens, context_len), chunk,
          max(1, (context_len - before + chunk_tokens - 1) / chunk_tokens), start,
          parts_of_chunks(seq, group, num_heads, max_chunks)};
}

DEVICE int rounded_up(int x, int y) { return (x + y - 1) / y; }
DEVICE int whole_turns(int tiles) { return rounded_up(tiles, NUM_WARPS) * NUM_WARPS; }

// WAVE: all thread blocks run at once, `resident` of them for each group, resident >= num_seqs. All chunks have one
// length, about the least that fits, `least` tiles or more; every warp computes it, with a lane for each sequence.
DEVICE Work work_of_wave(const Contexts& contexts, int groups, int resident, int least, int num_heads,
                         int max_chunks) {
  int lane = threadIdx.x % 32, num_seqs = contexts.num_seqs;
  int context_len = lane < num_seqs ? __ldg(contexts.lens + lane) : 0;
  int begin = lane < num_seqs ? start_of(contexts, lane, context_len) : 0;
  int tiles = lane < num_seqs ? max(1, rounded_up(context_len, TILE) - begin / TILE) : 0;
  int own, end;
  int size = whole_turns(max(least, rounded_up(__reduce_add_sync(FULL_MASK, tiles), resident)));
  while (true) {
    own = end = rounded_up(tiles, size);  // chunks of this lane's sequence, and of all up to it
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      int before = __shfl_up_sync(FULL_MASK, end, step);
      end += lane >= step ? before : 0;
    }
    int chunks = __shfl_sync(FULL_MASK, end, 31);
    if (chunks <= resident) break;
    size = whole_turns(max(size + 1, rounded_up(size * chunks, resident)));
  }
  unsigned after = __ballot_sync(FULL_MASK, end * groups > (int)blockIdx.x);
  if (!after) return {0};
  int seq = __ffs(after) - 1, place = blockIdx.x - __shfl_sync(FULL_MASK, end - own, seq) * groups;
  int chunk = place / groups, last = __shfl_sync(FULL_MASK, context_len, seq);
  int start = __shfl_sync(FULL_MASK, begin, seq), first = start / TILE;
  return {seq, place - chunk * groups, first + chunk * size, min((first + (chunk + 1) * size) * TILE, last), chunk,
          __shfl_sync(FULL_MASK, own, seq), start,
          parts_of_chunks(seq, place - chunk * groups, num_heads, max_chunks)};
}
