// Of prefill_tma.cu: what is computed at once, who takes it, and how the others hear of it.
#pragma once

struct Cache {
  const word16* values;
  int first_row;  // in the map of memory
};

struct Batch {
  const word16* q;
  Cache k, v;
  const TensorMap* rows;  // memory from some address on, as rows of HEAD_SIZE values
  int q_stride;
  const int *places, *query_starts, *context_lens;
  int num_kv_heads, places_width, num_seqs, num_tiles, group, window;
  int prefix_chunks;
};

// Q_TOKENS new tokens of HEADS heads of one sequence; end_tile is 0 where the sequence has none there. They read the
// tokens from `low` to `end`.
struct Item {
  int seq, head, first, start, num_new, context_len, end_tile, low, end, chunk;
};

DEVICE int pairs_of(const Batch& b) { return b.num_seqs * b.num_kv_heads * (GROUP / HEADS); }

// PREFIX: instead of sequences and their new tokens, runs of sequences and those sequences, of which each has one token.
// All of a run read the same tokens, the first of the first one's context; an item is one chunk of them.
DEVICE void cut_to_chunk(const Batch& b, Item& item, int chunk) {
  int tokens = item.context_len, size = chunk_of_prefix(tokens, b.prefix_chunks);
  item.chunk = chunk, item.low = chunk * size, item.end = min(item.low + size, tokens), item.seq = item.start;
  item.end_tile = item.first < item.num_new && item.low < tokens ? (item.end + K_ROWS - 1) / K_ROWS : 0;
}

DEVICE Item item_of(const Batch& b, int index) {
  int heads = b.num_kv_heads * (GROUP / HEADS), span = b.num_tiles * b.group;
  int start_pair = index / span * b.group, in_group = index % span, size = min(b.group, pairs_of(b) - start_pair);
  Item item;
  int pair = start_pair + in_group % size, tile = b.num_tiles - 1 - in_group / size;
  item.seq = pair / heads, item.head = pair % heads * HEADS;
  item.first = (PREFIX ? tile / b.prefix_chunks : tile) * Q_TOKENS;
  item.start = b.query_starts[item.seq], item.num_new = b.query_starts[item.seq + 1] - item.start;
  item.context_len = PREFIX && !item.num_new ? 0 : b.context_lens[PREFIX ? item.start : item.seq];
  if (PREFIX) {
    cut_to_chunk(b, item, tile % b.prefix_chunks);
    return item;
  }
  item.end = item.context_len - item.num_new + min(item.first + Q_TOKENS, item.num_new);
  item.low = WINDOWED ? max(0, item.context_len - item.num_new + item.first + 1 - b.window) : 0;
  item.end_tile = item.first < item.num_new ? (item.end + K_ROWS - 1) / K_ROWS : 0;
  return item;
}

// A number that no thread block has drawn yet; `num_items` or more when there is none. One lane draws.
DEVICE int draw_item(int* counter, int num_items, int lane) {
  int drawn = num_items;
  if (counter && lane == 0) drawn = atomicAdd(counter, 1) + (int)gridDim.x;
  return drawn;
}

// The last thread block to end leaves the counters at zero.
DEVICE void end_draws(int* counter) {
  if (!counter || atomicAdd(counter + 1, 1) != (int)gridDim.x - 1) return;
  counter[0] = counter[1] = 0;
}

// Publishes the next item to the computing warps; a negative one ends their work.
DEVICE void publish_item(int* item_numbers, unsigned barriers, int index, int items, int lane) {
  wait_barrier(barriers + ITEM_FREE + items % 2 * 8, items / 2 % 2 ^ 1);
  if (lane == 0) {
    *(volatile int*)(item_numbers + items % 2) = index;
    arrive(barriers + ITEM_FULL + items % 2 * 8);
  }
}

// The number of the next item, for a computing warp. One lane reads it and arrives, in an order that racecheck accepts.
DEVICE int next_item(const char* shared, unsigned barriers, int items, int lane) {
  wait_barrier(barriers + ITEM_FULL + items % 2 * 8, items / 2 % 2);
  int index = 0;
  if (lane == 0) {
    index = *(const volatile int*)(shared + ITEMS_AT + items % 2 * 4);
    arrive(barriers + ITEM_FREE + items % 2 * 8);
  }
  return __shfl_sync(FULL_MASK, index, 0);
}
