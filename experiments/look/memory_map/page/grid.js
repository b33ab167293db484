// The pool at one time: a list of blocks with their slots where they are few, else a map of cells.

const FEW = 24, MAX_HEIGHT = 560, GUTTER = 46, CAPTION = 24, NUMBERS = 24;

class Grid {
  constructor(canvas, painter) {
    this.canvas = canvas;
    this.painter = painter;
    this.numBlocks = Math.ceil(painter.data.num_slots / painter.data.block_size);
    this.isList = this.numBlocks <= FEW;
    this.top = this.isList ? CAPTION : 7; // half of an address is above the first row
  }

  // Columns as few, and so cells as large, as the height allows; a multiple of 8 makes addresses easy to find.
  measure() {
    const width = this.canvas.clientWidth - GUTTER;
    if (this.isList) {
      this.columns = 1;
      this.cellHeight = Math.min(44, MAX_HEIGHT / this.numBlocks);
      this.gap = Math.min(110, width * 0.18);
      this.cellWidth = Math.min((width - this.gap - NUMBERS) / 2, this.painter.data.block_size * this.cellHeight);
    } else {
      this.columns = 8;
      while (Math.ceil(this.numBlocks / this.columns) * width / this.columns > MAX_HEIGHT) this.columns += 8;
      this.cellWidth = this.cellHeight = width / this.columns;
    }
    this.rows = Math.ceil(this.numBlocks / this.columns);
  }

  // The place of each block in an order, by its fullest slot.
  arrange(slots, order) {
    const size = this.painter.data.block_size, blocks = [...Array(this.numBlocks).keys()];
    const ranks = order === "address" ? [] : blocks.map(block => Math.min(...Array.from(slots.kind.slice(block * size, (block + 1) * size),
      (kind, i) => rank(kind + 16 * slots.owner[block * size + i], order))));
    this.blocks = order === "address" ? blocks : blocks.sort((a, b) => ranks[a] === ranks[b] ? a - b : ranks[a] - ranks[b]);
    this.places = new Map(this.blocks.map((block, place) => [block, place]));
  }

  place(block) {
    const place = this.places.get(block), row = Math.floor(place / this.columns);
    return [GUTTER + (place % this.columns) * this.cellWidth, this.top + row * this.cellHeight];
  }

  blockAt(x, y) {
    const column = Math.floor((x - GUTTER) / this.cellWidth), row = Math.floor((y - this.top) / this.cellHeight);
    const inside = this.isList || (column >= 0 && column < this.columns);
    return inside ? this.blocks[row * this.columns + Math.max(column, 0)] ?? null : null;
  }

  draw(replay, slots, chosen) {
    this.measure();
    const pen = fitted(this.canvas, this.top + this.rows * this.cellHeight + 2);
    const gap = this.cellWidth > 9 ? 1 : 0.5;
    const logical = this.logicalBlocks(replay, chosen.request);
    for (let block = 0; block < this.numBlocks; block++) {
      const [x, y] = this.place(block);
      const width = this.cellWidth - gap, height = this.cellHeight - (this.isList ? 4 : gap);
      pen.globalAlpha = logical.size && !logical.has(block) ? 0.22 : 1;
      this.painter.block(pen, slots, block, x, y, width, height);
      pen.globalAlpha = 1;
      this.frame(pen, x, y, width, height, LINE, 0.6);
      if (logical.has(block) && !this.isList) this.number(pen, logical.get(block), x + width / 2, y + height / 2);
      if (this.isList && !logical.size) this.describe(pen, replay, block, x + width + 12, y + height / 2);
      if (this.isList || this.places.get(block) % this.columns === 0) this.address(pen, block, y + height / 2);
    }
    if (this.isList) this.text(pen, "Physical blocks", GUTTER, 9, "left", FAINT);
    if (this.isList && logical.size) drawTables(this, pen, slots, replay.sequencesOf(chosen.request));
    if (chosen.block !== null) {
      const [x, y] = this.place(chosen.block);
      for (const [color, width] of [[PAGE, 5], [INK, 2.5]]) {
        pen.strokeStyle = color;
        pen.lineWidth = width;
        pen.strokeRect(x - 0.5, y + (y ? -0.5 : 1), this.cellWidth, this.cellHeight - (this.isList ? 3 : 0));
      }
    }
  }

  frame(pen, x, y, width, height, color, lineWidth) {
    pen.strokeStyle = color;
    pen.lineWidth = lineWidth;
    if (this.cellWidth > 9) pen.strokeRect(x, y, width, height);
    if (!this.isList) return;
    const size = this.painter.data.block_size;
    for (let slot = 1; slot < size; slot++) pen.strokeRect(x, y, slot * width / size, height);
  }

  logicalBlocks(replay, request) {
    const numbers = new Map();
    for (const seq of this.painter.data.pool ? [] : replay.sequencesOf(request)) {
      for (const row of tableOf(seq, this.painter.data)) if (!row.host) numbers.set(row.block, row.logical);
    }
    return numbers;
  }

  number(pen, text, x, y) {
    const size = Math.min(12, this.cellWidth * 0.45);
    if (this.cellWidth >= 15) this.text(pen, text, x, y, "center", INK, `600 ${size}px`);
  }

  address(pen, block, y) {
    const row = Math.floor(this.places.get(block) / this.columns);
    if (!this.isList && row % Math.ceil(14 / this.cellHeight)) return;
    this.text(pen, block, GUTTER - 8, y, "right", FAINT);
  }

  describe(pen, replay, block, x, y) {
    const owners = ownersOf(replay, block);
    const text = owners.map(({seq, logical, filled}) =>
      `${replay.names.get(seq.id)}, logical block ${logical}: ${filled} filled`);
    this.text(pen, owners.length > 2 ? `${owners.length} sequences: ${text[0]}` : text.join("; "), x, y, "left", INK);
  }

  text(pen, text, x, y, textAlign, fillStyle, size = "12px") {
    const font = `${size} system-ui, "DejaVu Sans", sans-serif`;
    Object.assign(pen, {font, textAlign, fillStyle, textBaseline: "middle", strokeStyle: PAGE, lineWidth: 2.5});
    pen.strokeText(text, x, y);
    pen.fillText(text, x, y);
  }
}
