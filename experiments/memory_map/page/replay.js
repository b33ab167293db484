// The state of the pool at any time: frames are applied one after the other, from the start when time goes back.

class Replay {
  constructor(data) {
    this.data = data;
    this.times = data.frames.map(frame => frame.t);
    this.names = new Map(); // sequence id -> what people call it
    const counts = new Map();
    for (const id of Object.keys(data.owners).map(Number).sort((a, b) => a - b)) {
      const request = data.owners[id], index = counts.get(request) || 0;
      counts.set(request, index + 1);
      this.names.set(id, `request ${request}` + (data.requests[request][2] > 1 ? `.${index}` : ""));
    }
    this.reset();
  }

  reset() {
    this.index = -1;
    this.seqs = new Map(); // id -> {id, request, tokens, device: [[start, length]], host: [[start, length]]}
    this.nonSequenceSlots = {pinned: new Map(), cached: new Map(), rounding: new Map()};
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
    for (const [id, tokens, kept, device, host] of frame.seqs) {
      if (tokens === undefined) { this.seqs.delete(id); continue; }
      const before = this.seqs.get(id);
      const table = (before ? before.device.slice(0, kept) : []).concat(pairs(device));
      this.seqs.set(id, {id, request: this.data.owners[id], tokens, device: table, host: pairs(host)});
    }
    for (const kind in this.nonSequenceSlots) {
      if (!frame[kind]) continue;
      for (const [start] of pairs(frame[kind].drop)) this.nonSequenceSlots[kind].delete(start);
      for (const [start, length] of pairs(frame[kind].add)) this.nonSequenceSlots[kind].set(start, length);
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
