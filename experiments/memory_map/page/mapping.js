// To the right of a short list of physical blocks: the logical blocks of the chosen request, joined to their places.

class Mapping {
  constructor(grid, pen, slots) {
    Object.assign(this, {grid, pen, slots, painter: grid.painter});
    this.pitch = grid.cellWidth + 64;
  }

  // As many sequences side by side as fit; those on the host are left out.
  draw(seqs) {
    const first = GUTTER + this.grid.cellWidth + this.grid.gap, width = this.grid.canvas.clientWidth - first;
    const here = seqs.filter(seq => !seq.host.length);
    const shown = here.slice(0, Math.max(1, Math.floor(width / this.pitch)));
    for (const draw of ["join", "table"]) shown.forEach((seq, i) => this[draw](seq, first + i * this.pitch));
  }

  table(seq, x) {
    const {grid, pen} = this, height = grid.cellHeight - 4;
    const name = app.replay.names.get(seq.id), long = `Logical blocks of ${name}`;
    grid.text(pen, pen.measureText(long).width > grid.canvas.clientWidth - x ? name : long, x, 9, "left", FAINT);
    for (const row of tableOf(seq, this.painter.data)) {
      const y = grid.top + row.logical * grid.cellHeight;
      this.painter.block(pen, this.slots, row.block, x, y, grid.cellWidth - 1, height);
      grid.frame(pen, x, y, grid.cellWidth - 1, height, LINE, 0.6);
      grid.number(pen, row.logical, x + grid.cellWidth + 12, y + height / 2);
    }
  }

  join(seq, x) {
    for (const row of tableOf(seq, this.painter.data)) {
      this.curve(row.block, x, this.grid.top + (row.logical + 0.5) * this.grid.cellHeight - 2);
    }
  }

  curve(block, x, y) {
    const {grid, pen} = this, [left, top] = grid.place(block);
    const from = [left + grid.cellWidth, top + grid.cellHeight / 2 - 2], middle = (from[0] + x) / 2;
    pen.strokeStyle = this.painter.base(this.slots.owner[block * this.painter.data.block_size]);
    pen.lineWidth = 1.6;
    pen.beginPath();
    pen.moveTo(...from);
    pen.bezierCurveTo(middle, from[1], middle, y, x - 3, y);
    pen.stroke();
  }
}
