// To the right of a short list of physical blocks: the logical blocks of the chosen request, joined to their places.

// As many sequences side by side as fit; those on the host are left out.
function drawTables(grid, pen, slots, seqs) {
  const first = GUTTER + grid.cellWidth + grid.gap, pitch = grid.cellWidth + 64;
  const number = Math.max(1, Math.floor((grid.canvas.clientWidth - first) / pitch));
  const shown = seqs.filter(seq => !seq.host.length).slice(0, number);
  for (const draw of [joinBlocks, drawTable]) shown.forEach((seq, i) => draw(grid, pen, slots, seq, first + i * pitch));
}

function drawTable(grid, pen, slots, seq, x) {
  const name = app.replay.names.get(seq.id), long = `Logical blocks of ${name}`, height = grid.cellHeight - 4;
  grid.text(pen, pen.measureText(long).width > grid.canvas.clientWidth - x ? name : long, x, 9, "left", FAINT);
  for (const row of tableOf(seq, grid.painter.data)) {
    const y = grid.top + row.logical * grid.cellHeight;
    grid.painter.block(pen, slots, row.block, x, y, grid.cellWidth - 1, height);
    grid.frame(pen, x, y, grid.cellWidth - 1, height, LINE, 0.6);
    grid.number(pen, row.logical, x + grid.cellWidth + 12, y + height / 2);
  }
}

function joinBlocks(grid, pen, slots, seq, x) {
  pen.lineWidth = 1.6;
  for (const row of tableOf(seq, grid.painter.data)) {
    const [left, top] = grid.place(row.block), from = left + grid.cellWidth, middle = (from + x) / 2;
    const above = top + grid.cellHeight / 2 - 2, below = grid.top + (row.logical + 0.5) * grid.cellHeight - 2;
    pen.strokeStyle = grid.painter.base(slots.owner[row.block * grid.painter.data.block_size]);
    pen.stroke(new Path2D(`M${from} ${above}C${middle} ${above} ${middle} ${below} ${x - 3} ${below}`));
  }
}
