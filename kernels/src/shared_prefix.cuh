// Of decode.cu and prefill_tma.cu: how a prefix that sequences share is cut into chunks, whose partial results the second
// merges with those of what each sequence has alone.
#pragma once

#define PREFIX_TILE 128  // tokens; chunks of a prefix are whole tiles

// Tokens of each chunk of a prefix, but of the last.
DEVICE int chunk_of_prefix(int tokens, int max_chunks) {
  int tiles = (tokens + PREFIX_TILE - 1) / PREFIX_TILE;
  return (tiles + max_chunks - 1) / max_chunks * PREFIX_TILE;
}

DEVICE int chunks_of_prefix(int tokens, int max_chunks) {
  int chunk = chunk_of_prefix(tokens, max_chunks);
  return tokens ? (tokens + chunk - 1) / chunk : 0;
}
