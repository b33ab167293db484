// Painting: the colours and textures of slots, the grid of blocks, the strip of the whole time.

// Hues a golden angle apart in OKLCH, three lightnesses: colours with adjacent numbers never look alike.
const PALETTE = [
  "#4687d8", "#ea846f", "#008663", "#9d6dc7", "#ca9d33", "#007da5", "#c85e83", "#7bb764", "#5a66b9",
  "#c66a26", "#00beb7", "#965095", "#938a00", "#51adef", "#ad4a4e", "#189f64", "#ab93ed", "#9b5f00",
];
const MOST_MIXED = 0.7; // share of white or black in a colour beyond the palette
const WHITE = {[INTERNAL]: 0.9, [RESERVED]: 0.7, [LIVE]: 0}; // shares of it in a request's colour
let INK, FAINT, LINE, PAGE, RAISED, OF_SEVERAL, PLAIN;

function readColors() {
  const style = getComputedStyle(document.documentElement), read = name => style.getPropertyValue(`--${name}`);
  [INK, FAINT, LINE, PAGE, RAISED, OF_SEVERAL] = ["ink", "faint", "line", "page", "raised", "of-several"].map(read);
  PLAIN = {[CACHED]: read("cached"), [IN_TRANSIT]: read("in-transit"), [PINNED]: read("pinned")};
}

// The palette, then each colour of it lighter, darker, and so on by shares that never repeat (1/2, 1/4, 3/4, 1/8, ...).
function colorOf(number) {
  const hue = PALETTE[number % PALETTE.length], round = Math.floor(number / PALETTE.length);
  if (!round) return hue;
  let share = 0;
  for (let rest = Math.ceil(round / 2), part = 0.5; rest; rest >>= 1, part /= 2) share += part * (rest & 1);
  return `color-mix(in srgb, ${round % 2 ? "white" : "black"} ${100 * MOST_MIXED * share}%, ${hue})`;
}

class Painter {
  constructor(data) {
    this.data = data;
    this.seen = new Set([FREE]); // kinds of slots at any time, which the legend keeps
    readColors();
    this.textures = {
      [INTERNAL]: texture(7, "#d1495b", 0.9, "M-1 8L8-1M-1 1L1-1M6 8L8 6"),
      [ROUNDING]: texture(7, "#8b929c", 0.9, "M-1-1L8 8M-1 6L1 8M6-1L8 1"),
      [CACHED]: texture(6, "#ffffff", 2.3, "M2 2h0.01"),
    };
  }

  base(owner) {
    return owner === SEVERAL ? OF_SEVERAL : colorOf(this.data.colors[owner] ?? owner); // one of a legend may be gone
  }

  color(kind, owner) {
    if (kind === FREE || kind === ROUNDING) return kind === FREE ? RAISED : LINE;
    return PLAIN[kind] || `color-mix(in srgb, ${PAGE} ${100 * WHITE[kind]}%, ${this.base(owner)})`;
  }

  fill(pen, x, y, width, height, kind, owner, shared) {
    pen.fillStyle = this.color(kind, owner);
    pen.fillRect(x, y, width, height);
    pen.fillStyle = this.textures[shared && kind === LIVE ? CACHED : kind] || "transparent";
    if (height >= 6) pen.fillRect(x, y, width, height);
  }

  // One block as a bar of slots, runs of the same kind and owner at once.
  block(pen, slots, block, x, y, width, height) {
    const size = this.data.block_size, first = block * size, end = Math.min(first + size, this.data.num_slots);
    for (let slot = first, next = first + 1; slot < end; slot = next++) {
      const kind = slots.kind[slot], owner = slots.owner[slot], shared = slots.holders[slot] > 1;
      while (next < end && slots.kind[next] === kind && slots.owner[next] === owner
             && (slots.holders[next] > 1) === shared) next++;
      this.fill(pen, x + (slot - first) * width / size, y, (next - slot) * width / size, height, kind, owner, shared);
    }
  }

  // The whole time as an image: a column a frame's share of time, the first slots at the bottom.
  strip(canvas, order) {
    const pen = fitted(canvas), {width, height} = canvas, {start, end} = this.data, replay = new Replay(this.data);
    const step = Math.max(1, Math.floor(this.data.num_slots / height / 8));
    let column = null;
    pen.save();
    pen.resetTransform();
    for (let x = 0; x < width; x++) {
      const index = replay.frameAt(start + (x + 0.5) * (end - start) / width);
      if (index !== replay.index || !column) {
        replay.seek(index);
        column = this.column(paint(replay, order, step), height, order);
      }
      for (let low = 0, high = 1; low < height; low = high++) {
        while (high < height && column[high] === column[low]) high++;
        pen.fillStyle = this.color((column[low] + 32) % 16, Math.floor(column[low] / 16));
        pen.fillRect(x, height - high, 1, high - low);
      }
    }
    pen.restore();
    return pen.getImageData(0, 0, width, height);
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

function texture(size, strokeStyle, lineWidth, path) {
  const canvas = Object.assign(document.createElement("canvas"), {width: size, height: size});
  const pen = Object.assign(canvas.getContext("2d"), {strokeStyle, lineWidth, lineCap: "round"});
  pen.stroke(new Path2D(path));
  return pen.createPattern(canvas, "repeat");
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
