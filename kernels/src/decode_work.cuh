// Of decode.cu: which part of which context a thread block takes.
#pragma once

// One group of heads of a sequence, from tile `tile` to token `end`: chunk `chunk` of its context.
struct Work {
  int seq, group, tile, end, chunk, num_chunks;
};

// Chunks of a given length; an empty context has one too, since its output is written.
DEVICE Work work_of(int group, int seq, int chunk, int context_len, int chunk_tokens) {
  return {seq, group, chunk * (chunk_tokens / TILE), min((chunk + 1) * chunk_tokens, context_len), chunk,
          max(1, (context_len + chunk_tokens - 1) / chunk_tokens)};
}

DEVICE int rounded_up(int x, int y) { return (x + y - 1) / y; }
DEVICE int whole_turns(int tiles) { return rounded_up(tiles, NUM_WARPS) * NUM_WARPS; }

// WAVE: all thread blocks run at once, `resident` of them for each group, resident >= num_seqs. All chunks have one
// length, about the least that fits, `least` tiles or more; every warp computes it, with a lane for each sequence.
DEVICE Work work_of_wave(const int* context_lens, int num_seqs, int groups, int resident, int least) {
  int lane = threadIdx.x % 32, context_len = lane < num_seqs ? __ldg(context_lens + lane) : 0;
  int tiles = lane < num_seqs ? max(1, rounded_up(context_len, TILE)) : 0, own, end;
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
  return {seq, place - chunk * groups, chunk * size, min((chunk + 1) * size * TILE, last), chunk,
          __shfl_sync(FULL_MASK, own, seq)};
}
