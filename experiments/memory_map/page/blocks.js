// What every slot is at one time, and who holds a block. A slot of several kinds is the last of them.

const FREE = 0, ROUNDING = 1, CACHED = 2, PINNED = 3, INTERNAL = 4, RESERVED = 5, LIVE = 6;
const NO_OWNER = -1, SEVERAL = -2;

function paint(replay) {
  const size = replay.data.num_slots;
  const slots = {kind: new Uint8Array(size), owner: new Int32Array(size).fill(NO_OWNER), holders: new Uint16Array(size)};
  for (const [kind, name] of [[ROUNDING, "rounding"], [CACHED, "cached"], [PINNED, "pinned"]]) {
    for (const [start, length] of replay.nonSequenceSlots[name]) slots.kind.fill(kind, start, start + length);
  }
  for (const seq of replay.seqs.values()) paintSequence(slots, seq, replay.finalLength(seq.request));
  return slots;
}

function paintSequence(slots, seq, finalLength) {
  let logical = 0;
  for (const [start, length] of seq.device) {
    for (let slot = start; slot < start + length; slot++, logical++) {
      const kind = logical < seq.tokens ? LIVE : logical < finalLength ? RESERVED : INTERNAL;
      if (kind > slots.kind[slot]) slots.kind[slot] = kind;
      const owner = slots.owner[slot];
      slots.owner[slot] = owner === NO_OWNER || owner === seq.request ? seq.request : SEVERAL;
      slots.holders[slot]++;
    }
  }
}

// The table of a sequence by blocks: {logical, block, host, filled}.
function tableOf(seq, size) {
  const rows = [];
  let logical = 0;
  for (const [extents, host] of [[seq.device, false], [seq.host, true]]) {
    for (const [start, length] of extents) {
      for (let slot = start; slot < start + length;) {
        const end = Math.min((Math.floor(slot / size) + 1) * size, start + length);
        const filled = Math.max(0, Math.min(end - slot, seq.tokens - logical));
        rows.push({logical: Math.floor(logical / size), block: Math.floor(slot / size), host, filled});
        logical += end - slot;
        slot = end;
      }
    }
  }
  return rows;
}

// The sequences that hold a block on the device: {seq, logical, filled}.
function ownersOf(replay, block) {
  const owners = [];
  for (const seq of replay.seqs.values()) {
    const size = replay.data.block_size, low = block * size, high = low + size;
    if (!seq.device.some(([start, length]) => start < high && start + length > low)) continue;
    for (const row of tableOf(seq, size)) if (!row.host && row.block === block) owners.push({seq, ...row});
  }
  return owners;
}

function isPinned(replay, block) {
  const low = block * replay.data.block_size, high = low + replay.data.block_size;
  return [...replay.nonSequenceSlots.pinned].some(([start, length]) => start < high && start + length > low);
}

function referenceCount(replay, slots, block) {
  const size = replay.data.block_size, holders = slots.holders.slice(block * size, (block + 1) * size);
  return Math.max(...holders) + (isPinned(replay, block) ? 1 : 0);
}
