// The page: time and choice, and everything that shows them.

const $ = id => document.getElementById(id);

class App {
  constructor(data) {
    this.data = data;
    this.replay = new Replay(data);
    this.chosen = {block: null, request: null};
    this.order = "address";
    this.time = data.start;
    this.digits = Math.max(0, Math.min(6, 4 - Math.floor(Math.log10(data.end - data.start))));
    const count = Object.keys(data.requests).length;
    $("summary").textContent = `${count.toLocaleString("en")} requests, `
      + `${data.frames.length.toLocaleString("en")} of ${data.num_states.toLocaleString("en")} states of the pool`;
    Object.assign($("slider"), {min: data.start, max: data.end, step: (data.end - data.start) / 4000});
    $("pool-choice").replaceChildren(...data.pools.map(([name], i) => element("option", {value: i}, name)));
    $("pool-label").hidden = data.pools.length < 2;
    if (data.parts.length < 2) $("order").remove(3);
  }

  // Show the device's pool, or that of a tier below; the choice of a block is one of that pool.
  view(pool) {
    if (pool === this.data.pool) return;
    Object.assign(this.data, {pool, num_slots: this.data.pools[pool][1]});
    this.chosen.block = null;
    this.painter = new Painter(this.data);
    this.grid = new Grid($("grid"), this.painter);
    $("pool-choice").value = pool;
    this.redraw();
  }

  redraw() {
    readColors();
    this.strip = this.painter.strip($("timeline"), this.order);
    this.show(this.time);
  }

  show(time) {
    this.time = Math.min(Math.max(time, this.data.start), this.data.end);
    this.replay.seek(this.replay.frameAt(this.time));
    this.slots = paint(this.replay, this.order);
    this.refresh();
  }

  choose(change) {
    Object.assign(this.chosen, change);
    this.refresh();
  }

  refresh() {
    const focused = document.activeElement.id; // a button is made anew
    $("slider").value = this.time;
    $("time").textContent = `${this.time.toFixed(this.digits)} s`;
    $("slider").setAttribute("aria-valuetext", $("time").textContent);
    this.drawCursor();
    this.grid.arrange(this.slots, this.order);
    this.grid.draw(this.replay, this.slots, this.chosen);
    $("block").replaceChildren(...blockDetails(this));
    $("request").replaceChildren(...requestDetails(this));
    const all = [...this.replay.seqs.values()], here = all.filter(seq => !seq.host.length);
    const requests = [...new Set(here.map(seq => seq.request))];
    $("device").replaceChildren(...requests.map(request => chip(this, "device", request, `request ${request}`)));
    $("host").replaceChildren(...hostDetails(this));
    $("device-count").textContent = requests.length || "";
    $("host-count").textContent = new Set(all.map(seq => seq.request)).size - requests.length || "";
    $("legend").replaceChildren(...this.legend());
    sayBlock(this);
    if (focused) ($(focused) || $("grid")).focus({preventScroll: true});
    const parts = [`t=${this.time.toFixed(6)}`, ...(this.data.pool ? [`pool=${this.data.pool}`] : [])];
    for (const key of ["block", "request"]) if (this.chosen[key] !== null) parts.push(`${key}=${this.chosen[key]}`);
    history.replaceState(null, "", "#" + parts.join("&"));
  }

  drawCursor() {
    const canvas = $("timeline"), pen = canvas.getContext("2d");
    const x = (this.time - this.data.start) / (this.data.end - this.data.start) * canvas.clientWidth;
    pen.putImageData(this.strip, 0, 0);
    pen.fillStyle = INK;
    pen.fillRect(Math.min(x, canvas.clientWidth - 2), 0, 2, canvas.clientHeight);
  }

  legend() {
    const total = this.data.num_slots, counts = new Array(KINDS.length).fill(0), groups = this.data.parts.map(() => 0);
    this.slots.kind.forEach((kind, slot) => {
      const shared = this.slots.owner[slot] === SEVERAL ? SHARED_BY_REQUESTS : SHARED;
      counts[kind === LIVE && this.slots.holders[slot] > 1 ? shared : kind]++;
      if (this.order === "group" && this.slots.owner[slot] >= 0) groups[this.slots.owner[slot]]++;
    });
    for (const kind in counts) if (counts[kind]) this.painter.seen.add(+kind);
    const kinds = [LIVE, SHARED, SHARED_BY_REQUESTS, RESERVED, INTERNAL, ROUNDING, CACHED, IN_TRANSIT, PINNED, FREE];
    const entry = (kind, owner, text, count) => {
      const swatch = element("canvas", {width: 30, height: 14, ariaHidden: "true"}), share = 100 * count / total;
      const percent = share && share < 0.1 ? "< 0.1%" : `${share.toFixed(1)}%`;
      this.painter.fill(swatch.getContext("2d"), 0, 0, 30, 14, Math.min(kind, LIVE), owner, kind >= SHARED);
      return element("span", {className: "kind"}, swatch, text, element("b", {}, percent));
    };
    const owner = kind => kind === SHARED_BY_REQUESTS ? SEVERAL : 0;
    return [
      ...kinds.filter(kind => this.painter.seen.has(kind)).map(kind => entry(kind, owner(kind), KINDS[kind], counts[kind])),
      ...(this.order === "group" ? groups.map((count, i) => entry(LIVE, i, `group ${this.data.parts[i][0]}`, count)) : []),
    ];
  }

  step(direction) {
    const index = Math.min(Math.max(this.replay.index + direction, 0), this.replay.times.length - 1);
    this.show(this.replay.times[index]);
  }

  play() {
    this.playing = !this.playing;
    $("play").textContent = this.playing ? "\u23f8" : "\u25b6";
    $("play").ariaLabel = this.playing ? "Pause" : "Play";
    if (this.playing && this.time >= this.data.end) this.time = this.data.start;
    let last = performance.now();
    const tick = now => {
      if (!this.playing) return;
      this.show(this.time + (now - last) / 25000 * (this.data.end - this.data.start));
      last = now;
      if (this.time >= this.data.end) this.play(); else requestAnimationFrame(tick);
    };
    if (this.playing) requestAnimationFrame(tick);
  }

  open(hash) {
    const wanted = new URLSearchParams(hash.slice(1));
    const number = key => wanted.has(key) && Number.isFinite(+wanted.get(key)) ? +wanted.get(key) : null;
    const block = number("block"), request = number("request"), pool = number("pool");
    this.view(pool in this.data.pools ? pool : 0);
    if (block !== null && block >= 0 && block < this.grid.numBlocks) this.chosen.block = Math.floor(block);
    if (request in this.data.requests) this.chosen.request = request;
    this.show(number("t") ?? this.data.fullest);
  }
}

const app = new App(JSON.parse($("data").textContent));
app.open(location.hash);
$("slider").oninput = event => app.show(+event.target.value);
$("play").onclick = () => app.play();
$("grid").onclick = event => app.choose({block: app.grid.blockAt(event.offsetX, event.offsetY)});
$("timeline").onclick = event => {
  app.show(app.data.start + event.offsetX / $("timeline").clientWidth * (app.data.end - app.data.start));
};
window.onresize = () => app.redraw();
matchMedia("(prefers-color-scheme: dark)").onchange = () => app.redraw();
$("pool-choice").onchange = event => app.view(+event.target.value);
$("order").onchange = event => { app.order = event.target.value; app.redraw(); };
document.onkeydown = event => {
  if (pressed(app, event)) event.preventDefault();
};
