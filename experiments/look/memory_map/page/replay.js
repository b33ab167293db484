// The state of the pool at any time: frames are applied one after the other, from the start when time goes back.

class Replay {
  constructor(data) {
    this.data = data;
    this.times = data.frames.map(frame => frame.t);
    this.names = new Map(); // sequence id -> what people call it
    const known = {}, {parts} = data; // known: the sequences of each request; keys of an object are in numeric order
    for (const [id, request] of Object.entries(data.owners)) {
      const seqs = known[request] ??= new Set(), part = parts.length > 1 ? `, ${parts[id % parts.length][0]}` : "";
      seqs.add(Math.floor(id / parts.length));
      const index = data.requests[request][2] > 1 ? `.${seqs.size - 1}` : "";
      this.names.set(+id, `request ${request}${index}${part}`);
    }
    this.reset();
  }

  reset() {
    this.index = -1;
    this.seqs = new Map(); // id -> {id, part, each, first, request, tokens, device: [[start, length]], host: ...}
    this.others = {}; // slots of no sequence: kind and pool -> first slot -> length
    for (const [, kind] of OTHERS) this.data.pools.forEach((_, i) => { this.others[kind + (i || "")] = new Map(); });
  }

  frameAt(time) {
    return Math.max(0, this.times.findLastIndex(start => start <= time));
  }

  seek(index) {
    if (index < this.index) this.reset();
    while (this.index < index) this.apply(this.data.frames[++this.index]);
  }

  apply(frame) {
    const named = new Set(frame.seqs.map(entry => entry[0]));
    for (const seq of this.seqs.values()) if (!named.has(seq.id)) seq.tokens += frame.step;
    for (const [id, tokens, kept, device, host, first] of frame.seqs) {
      if (tokens === undefined) { this.seqs.delete(id); continue; }
      const table = [...(this.seqs.get(id)?.device.slice(0, kept) ?? []), ...pairs(device)];
      const part = id % this.data.parts.length, each = this.data.parts[part][1], request = this.data.owners[id];
      this.seqs.set(id, {id, part, each, first, request, tokens, device: table, host: pairs(host)});
    }
    for (const kind in this.others) {
      if (!frame[kind]) continue;
      for (const [start] of pairs(frame[kind].drop)) this.others[kind].delete(start);
      for (const [start, length] of pairs(frame[kind].add)) this.others[kind].set(start, length);
    }
  }

  sequencesOf(request) {
    return [...this.seqs.values()].filter(seq => seq.request === request).sort((a, b) => a.id - b.id);
  }
}

function pairs(numbers) {
  return Array.from({length: numbers.length / 2}, (_, i) => [numbers[2 * i], numbers[2 * i + 1]]);
}
