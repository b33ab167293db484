// Of decode.cu, SHARES: thread blocks that all run at once, each with an equal share of what a batch reads.
//
// A row is a group of heads of a sequence, a turn what the warps of a thread block read at once: NUM_WARPS tiles. Thread
// block i takes turns i * share to (i + 1) * share of all rows, laid end to end: some rows whole, and of its first and
// last perhaps a part. So all end together, whatever the lengths, and few partial results are written: at most two a
// thread block. The lengths are read here, so a captured graph fits every batch.
#pragma once

#define ROW_COST 2  // turns behind those of a row, as long as it takes to begin with the next

// Turns of each row of a sequence; an empty context has one too, since its output is written.
DEVICE int turns_of(const Contexts& contexts, int seq) {
  if (seq >= contexts.num_seqs) return 0;
  int context_len = __ldg(contexts.lens + seq);
  int tiles = rounded_up(context_len, TILE) - start_of(contexts, seq, context_len) / TILE;
  return max(1, rounded_up(tiles, NUM_WARPS)) + ROW_COST;
}

// Turns of a thread block: `least` or more, and so many that a row has at most MOST_SHARES of them.
DEVICE int share_of(const Contexts& contexts, int groups, int least) {
  int sum = 0, most = 0;
  for (int seq = threadIdx.x % 32; seq < contexts.num_seqs; seq += 32) {
    int turns = turns_of(contexts, seq);
    sum += turns, most = max(most, turns);
  }
  int all = __reduce_add_sync(FULL_MASK, sum) * groups;
  return max(least, max(rounded_up(all, gridDim.x), rounded_up(__reduce_max_sync(FULL_MASK, most), MOST_SHARES - 1)));
}

// The rows of one sequence among all: the turn at which the first begins, and the turns of each.
struct Rows {
  int seq, begin, turns;
};

// The rows among which turn `turn` is; seq is num_seqs if there are none.
DEVICE Rows rows_at(const Contexts& contexts, int groups, int turn) {
  int lane = threadIdx.x % 32, before = 0;
  for (int first = 0; first < contexts.num_seqs; first += 32) {
    int own = turns_of(contexts, first + lane) * groups, end = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      int earlier = __shfl_up_sync(FULL_MASK, end, step);
      end += lane >= step ? earlier : 0;
    }
    end += before;
    unsigned after = __ballot_sync(FULL_MASK, end > turn);
    if (after) {
      int at = __ffs(after) - 1;
      return {first + at, __shfl_sync(FULL_MASK, end - own, at), __shfl_sync(FULL_MASK, own, at) / groups};
    }
    before = __shfl_sync(FULL_MASK, end, 31);
  }
  return {contexts.num_seqs, before, 1};
}

// What this thread block reads from turn `turn` on, at most to turn `stop`; moves `turn` to what comes behind that. No
// chunks: nothing; seq is num_seqs behind all rows.
DEVICE Work work_at(const Contexts& contexts, int groups, int share, int& turn, int stop) {
  Rows rows = rows_at(contexts, groups, turn);
  if (rows.seq == contexts.num_seqs) return {rows.seq};
  int group = (turn - rows.begin) / rows.turns, begin = rows.begin + group * rows.turns, from = turn;
  int end = begin + rows.turns - ROW_COST, to = min(end, stop);
  turn = to < end ? stop : begin + rows.turns;
  if (from >= end) return {rows.seq};
  int context_len = __ldg(contexts.lens + rows.seq), start = start_of(contexts, rows.seq, context_len);
  int first_tile = start / TILE - begin * NUM_WARPS, first_block = begin / share;
  // A row's first part lies where its thread block may keep one beside that of an earlier row.
  Parts parts = {((int)gridDim.x + first_block) * HEADS, first_block * HEADS, 1, HEADS};
  return {rows.seq, group, first_tile + from * NUM_WARPS, min((first_tile + to * NUM_WARPS) * TILE, context_len),
          (int)blockIdx.x - first_block, (end - 1) / share - first_block + 1, start, parts};
}
