// The keyboard: everything that a click does, a key does too; and what is focused stays so when the page is redrawn.

function pressed(app, event) {
  if (event.altKey || event.ctrlKey || event.metaKey) return false;
  const onButton = event.target.tagName === "BUTTON";
  if (event.target.id === "grid" && toBlock(app, event.key)) return true;
  if (event.key === "ArrowLeft" || event.key === "ArrowRight") app.step(event.key === "ArrowLeft" ? -1 : 1);
  else if (event.key === " " && !onButton) app.play();
  else if (event.key === "Escape") app.choose({block: null, request: null});
  else return false;
  return true;
}

// Among the blocks: one on, one row on, a page of rows on, the first and the last. Without a choice it starts at 0.
function toBlock(app, key) {
  const {columns, numBlocks} = app.grid, page = 8 * columns, last = numBlocks - 1;
  const steps = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, PageUp: -page, PageDown: page,
                 Home: -last, End: last};
  if (!(key in steps)) return false;
  const {block} = app.chosen;
  const next = block === null ? (key === "End" ? last : 0) : Math.min(Math.max(block + steps[key], 0), last);
  app.choose({block: next});
  return true;
}

// What the grid says of itself: the block that is chosen, who holds it, and how full it is.
function sayBlock(app) {
  const {block} = app.chosen, owned = block === null || $("owners").children.length;
  const text = block === null ? "no block chosen" : $("block").innerText + (owned ? "" : " no owner");
  const values = {valuemin: 0, valuemax: app.grid.numBlocks - 1, valuenow: block ?? 0, valuetext: text.trim()};
  for (const name in values) $("grid").setAttribute(`aria-${name}`, values[name]);
}
