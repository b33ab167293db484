// Painting: the colours and textures of slots, the grid of blocks, the strip of the whole time.

let INK, FAINT, LINE, PAGE, RAISED;

function readColors() {
  const style = getComputedStyle(document.documentElement);
  const names = ["--ink", "--faint", "--line", "--page", "--raised"];
  [INK, FAINT, LINE, PAGE, RAISED] = names.map(name => hex(style.getPropertyValue(name)));
}

function hex(color) {
  return color.length > 4 ? color : color.replace(/[0-9a-f]/g, "$&$&");
}

class Painter {
  constructor(data) {
    this.data = data;
    this.seen = new Set([FREE]); // kinds of slots at any time, which the legend keeps
    readColors();
    this.textures = {
      [INTERNAL]: texture(7, pen => stroke(pen, data.lines[INTERNAL], 0, 7, 7, 0)),
      [ROUNDING]: texture(7, pen => stroke(pen, data.lines[ROUNDING], 0, 0, 7, 7)),
      [CACHED]: texture(6, pen => dot(pen, "#ffffff", 1.2)),
      shared: texture(6, pen => dot(pen, "#ffffff", 1.1)),
    };
  }

  base(owner) {
    if (owner === SEVERAL) return this.data.several;
    return this.data.palette[owner % this.data.palette.length];
  }

  color(kind, owner) {
    if (kind === FREE || kind === ROUNDING) return kind === FREE ? RAISED : LINE;
    return this.data.plain[kind] || mix(this.base(owner), this.data.tints[kind]);
  }

  fill(pen, x, y, width, height, kind, owner, shared) {
    pen.fillStyle = this.color(kind, owner);
    pen.fillRect(x, y, width, height);
    const pattern = shared && kind === LIVE ? this.textures.shared : this.textures[kind];
    if (!pattern || height < 6) return;
    pen.fillStyle = pattern;
    pen.fillRect(x, y, width, height);
  }

  // One block as a bar of slots, runs of the same kind and owner at once.
  block(pen, slots, block, x, y, width, height) {
    const size = this.data.block_size, first = block * size, end = Math.min(first + size, this.data.num_slots);
    for (let slot = first; slot < end;) {
      const kind = slots.kind[slot], owner = slots.owner[slot], shared = slots.holders[slot] > 1;
      let next = slot + 1;
      while (next < end && slots.kind[next] === kind && slots.owner[next] === owner
             && (slots.holders[next] > 1) === shared) next++;
      const left = x + (slot - first) * width / size;
      this.fill(pen, left, y, (next - slot) * width / size, height, kind, owner, shared);
      slot = next;
    }
  }

  // The whole time as an image: a column a frame's share of time, the first slots at the bottom.
  strip(canvas, order) {
    const pen = fitted(canvas), {width, height} = canvas, {start, end} = this.data;
    const image = pen.createImageData(width, height), replay = new Replay(this.data), colors = new Map();
    const step = Math.max(1, Math.floor(this.data.num_slots / height / 8));
    let column = null;
    for (let x = 0; x < width; x++) {
      const index = replay.frameAt(start + (x + 0.5) * (end - start) / width);
      if (index !== replay.index || !column) {
        replay.seek(index);
        column = this.column(paint(replay, order, step), height, order);
      }
      for (let y = 0; y < height; y++) {
        const key = column[height - 1 - y];
        if (!colors.has(key)) colors.set(key, channels(this.color((key + 32) % 16, Math.floor(key / 16))));
        image.data.set(colors.get(key), 4 * (y * width + x));
      }
    }
    return image;
  }

  // Kind and owner of as many slots as a column has pixels, in an order.
  column(slots, height, order) {
    const size = slots.kind.length;
    const keys = Array.from({length: height}, (_, y) => {
      const slot = Math.floor((y + 0.5) * size / height);
      this.seen.add(slots.kind[slot]);
      return slots.kind[slot] + 16 * slots.owner[slot];
    });
    return order === "address" ? keys : keys.sort((a, b) => rank(a, order) - rank(b, order));
  }
}

// Where a slot of this kind and owner comes in an order; free ones are last.
function rank(key, order) {
  const kind = (key + 32) % 16, owner = Math.floor(key / 16);
  if (kind === FREE) return Infinity;
  return order === "kind" ? 1e9 * (LIVE - kind) + owner : 16 * owner - kind;
}

function texture(size, draw) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size;
  const pen = canvas.getContext("2d");
  draw(pen);
  return pen.createPattern(canvas, "repeat");
}

function stroke(pen, color, x0, y0, x1, y1) {
  pen.strokeStyle = color;
  pen.lineWidth = 0.9;
  for (const shift of [-7, 0, 7]) {
    pen.beginPath();
    pen.moveTo(x0 + shift, y0);
    pen.lineTo(x1 + shift, y1);
    pen.stroke();
  }
}

function dot(pen, color, radius) {
  pen.fillStyle = color;
  pen.beginPath();
  pen.arc(2, 2, radius, 0, 7);
  pen.fill();
}

function channels(color) {
  return [...[1, 3, 5].map(i => parseInt(color.slice(i, i + 2), 16)), 255];
}

function mix(color, white) {
  const page = channels(PAGE);
  const parts = channels(color).slice(0, 3).map((value, i) => Math.round(value * (1 - white) + page[i] * white));
  return "#" + parts.map(value => value.toString(16).padStart(2, "0")).join("");
}

// A canvas with as many pixels as the screen has there; its pen draws in CSS pixels.
function fitted(canvas, height = canvas.clientHeight) {
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(canvas.clientWidth * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  return pen;
}
