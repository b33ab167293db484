// Of decode.cu: which part of which context a thread block takes.
#pragma once

// One group of heads of a sequence, from tile `tile` to token `end`: chunk `chunk` of its context, which begins at token
// `start`. Chunks begin with the tile of that token.
struct Work {
  int seq, group, tile, end, chunk, num_chunks, start;
};

// The first token that is read.
DEVICE int start_of(int context_len, int window) { return WINDOWED ? max(0, context_len - window) : 0; }

// Chunks of a given length; an empty context has one too, since its output is written.
DEVICE Work work_of(int group, int seq, int chunk, int context_len, int chunk_tokens, int window) {
  int start = start_of(context_len, window), before = start / TILE * TILE;
  return {seq, group, before / TILE + chunk * (chunk_tokens / TILE),
          min(before + (chunk + 1) * chunk_tokens, context_len), chunk,
          max(1, (context_len - before + chunk_tokens - 1) / chunk_tokens), start};
}

DEVICE int rounded_up(int x, int y) { return (x + y - 1) / y; }
DEVICE int whole_turns(int tiles) { return rounded_up(tiles, NUM_WARPS) * NUM_WARPS; }

// WAVE: all thread blocks run at once, `resident` of them for each group, resident >= num_seqs. All chunks have one
// length, about the least that fits, `least` tiles or more; every warp computes it, with a lane for each sequence.
DEVICE Work work_of_wave(const int* context_lens, int num_seqs, int groups, int resident, int least,
                           int window) {
  int lane = threadIdx.x % 32, context_len = lane < num_seqs ? __ldg(context_lens + lane) : 0;
  int tiles = lane < num_seqs ? max(1, rounded_up(context_len, TILE) - start_of(context_len, window) / TILE) : 0;
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
  int start = start_of(last, window), first = start / TILE;
  return {seq, place - chunk * groups, first + chunk * size, min((first + (chunk + 1) * size) * TILE, last), chunk,
          __shfl_sync(FULL_MASK, own, seq), start};
}
