// What every slot is at one time, and who holds a block. A slot of several kinds is the last of them.

const KINDS = [
  "free", "external fragmentation (rounding)", "cached (unreferenced, findable)",
  "in transit (a transfer reads or writes it)", "registered prefix", "internal fragmentation (never used)",
  "reserved, will be used", "token states, colour by request", "shared by sequences of a request", "shared by several requests",
];
const FREE = 0, ROUNDING = 1, CACHED = 2, IN_TRANSIT = 3, PINNED = 4, INTERNAL = 5, RESERVED = 6, LIVE = 7;
const SHARED = 8, SHARED_BY_REQUESTS = 9; // LIVE ones, in the legend
const OTHERS = [[ROUNDING, "rounding"], [CACHED, "cached"], [IN_TRANSIT, "in_transit"], [PINNED, "pinned"]];
const NO_OWNER = -1, SEVERAL = -2;

// Every step-th slot of the pool that is shown; the owners are requests or, by group, parts of their tables.
function paint(replay, order, step = 1) {
  const {pool} = replay.data, size = Math.ceil(replay.data.num_slots / step);
  const slots = {kind: new Uint8Array(size), owner: new Int32Array(size).fill(NO_OWNER), holders: new Uint16Array(size)};
  for (const [kind, name] of OTHERS) {
    for (const [start, length] of replay.others[name + (pool || "")]) {
      slots.kind.fill(kind, Math.ceil(start / step), Math.ceil((start + length) / step));
    }
  }
  for (const seq of pool ? [] : replay.seqs.values()) {
    const [prompt, output] = replay.data.requests[seq.request];
    paintSequence(slots, seq, prompt + output, order === "group" ? seq.part : seq.request, step);
  }
  return slots;
}

function paintSequence(slots, seq, finalLength, painted, step) {
  let before = 0;
  for (const [start, length] of seq.device) {
    for (let at = Math.ceil(start / step), end = (start + length) / step; at < end; at++) {
      const logical = before + at * step - start;
      const token = seq.each ? seq.first + Math.floor(logical / seq.each) : 0; // a state is always stored
      const kind = token < seq.tokens ? LIVE : token < finalLength ? RESERVED : INTERNAL;
      if (kind > slots.kind[at]) slots.kind[at] = kind;
      const owner = slots.owner[at];
      slots.owner[at] = owner === NO_OWNER || owner === painted ? painted : SEVERAL;
      slots.holders[at]++;
    }
    before += length;
  }
}

// The table of a sequence by blocks: {logical, block, host, filled}.
function tableOf(seq, {block_size: size, tokens_per_block: tokens}) {
  const rows = [], live = seq.each ? (seq.tokens - seq.first) * seq.each : Infinity;
  let logical = 0;
  for (const [extents, host] of [[seq.device, false], [seq.host, true]]) {
    for (const [start, length] of extents) {
      for (let slot = start; slot < start + length;) {
        const end = Math.min((Math.floor(slot / size) + 1) * size, start + length);
        const filled = Math.max(0, Math.min(end - slot, live - logical));
        const first = seq.first + (seq.each && Math.floor(logical / seq.each));
        rows.push({logical: Math.floor(first / tokens), block: Math.floor(slot / size), host, filled});
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
  for (const seq of replay.data.pool ? [] : replay.seqs.values()) {
    if (!meets(seq.device, block, replay.data.block_size)) continue;
    for (const row of tableOf(seq, replay.data)) if (!row.host && row.block === block) owners.push({seq, ...row});
  }
  return owners;
}

function isPinned(replay, block) {
  return !replay.data.pool && meets(replay.others.pinned, block, replay.data.block_size);
}

function meets(extents, block, size) {
  return [...extents].some(([start, length]) => start < (block + 1) * size && start + length > block * size);
}

function referenceCount(replay, slots, block) {
  const size = replay.data.block_size, holders = slots.holders.slice(block * size, (block + 1) * size);
  return Math.max(...holders) + (isPinned(replay, block) ? 1 : 0);
}
