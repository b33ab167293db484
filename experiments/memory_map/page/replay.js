// The state of the pool at any time: frames are applied one after the other, from the start when time goes back.

class Replay {
  constructor(data) {
    this.data = data;
    this.times = data.frames.map(frame => frame.t);
    this.names = new Map(); // sequence id -> what people call it
    const known = new Map(), {parts} = data; // known: the sequences of each request
    for (const id of Object.keys(data.owners).map(Number).sort((a, b) => a - b)) {
      const request = data.owners[id], seqs = known.get(request) || [], number = Math.floor(id / parts.length);
      if (!seqs.includes(number)) known.set(request, [...seqs, number]);
      const index = data.requests[request][2] > 1 ? `.${known.get(request).indexOf(number)}` : "";
      this.names.set(id, `request ${request}${index}` + (parts.length > 1 ? `, ${parts[id % parts.length][0]}` : ""));
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
    let low = 0, high = this.times.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.times[middle] <= time) low = middle; else high = middle;
    }
    return low;
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
      const before = this.seqs.get(id);
      const table = (before ? before.device.slice(0, kept) : []).concat(pairs(device));
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

  finalLength(request) {
    const [prompt, output] = this.data.requests[request];
    return prompt + output;
  }
}

function pairs(numbers) {
  const result = [];
  for (let i = 0; i < numbers.length; i += 2) result.push([numbers[i], numbers[i + 1]]);
  return result;
}
