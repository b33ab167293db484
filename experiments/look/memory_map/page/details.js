// What the chosen block and request are at this time, in words and tables.

function element(tag, options = {}, ...children) {
  const node = Object.assign(document.createElement(tag), options);
  node.append(...children);
  return node;
}

const hint = text => element("p", {className: "hint"}, text);

function chip(app, place, request, text) {
  const mark = element("i");
  mark.style.background = app.painter.base(request);
  const chosen = app.chosen.request === request;
  const options = {id: `${place} ${text}`, className: chosen ? "chip chosen" : "chip", ariaPressed: chosen};
  const node = element("button", options, mark, text);
  node.dataset.request = request;
  node.onclick = () => app.choose({request: chosen ? null : request});
  return node;
}

function blockDetails(app) {
  const {replay, slots, chosen: {block}} = app, size = replay.data.block_size;
  if (block === null) return [hint("Click a block to see its owners.")];
  const count = referenceCount(replay, slots, block);
  const kinds = [...slots.kind.slice(block * size, (block + 1) * size)];
  const filled = kinds.filter(kind => kind === LIVE).length;
  const state = count ? `${filled} of ${kinds.length} slots filled` : KINDS[Math.max(...kinds)];
  const owners = ownersOf(replay, block).map(owner => element("li", {},
    chip(app, "owner", owner.seq.request, replay.names.get(owner.seq.id)),
    ` logical block ${owner.logical}, ${owner.filled} filled`));
  if (isPinned(replay, block)) owners.push(element("li", {}, "a registered prefix"));
  return [
    element("p", {className: "facts"}, element("b", {}, `Block ${block}`), `: reference count ${count}; ${state}`),
    element("ul", {id: "owners"}, ...owners),
  ];
}

function requestDetails(app) {
  const {replay, chosen: {request}} = app;
  if (request === null) return [hint("Click a request to see its block table.")];
  const [prompt, output, count] = replay.data.requests[request];
  const facts = `: prompt ${prompt}, output ${output} tokens` + (count > 1 ? `, ${count} sequences` : "");
  const tables = replay.sequencesOf(request).map(seq => blockTable(app, seq));
  return [
    element("p", {className: "facts"}, chip(app, "chosen", request, `request ${request}`), facts),
    tables.length ? element("div", {className: "tables"}, ...tables) : hint("It holds nothing at this time."),
  ];
}

function blockTable(app, seq) {
  const {replay, slots} = app, where = seq.host.length ? "on the host" : "on the device";
  const head = ["Logical block", "Physical block", "# filled", "Refs"].map(text => element("th", {scope: "col"}, text));
  const rows = tableOf(seq, replay.data).map(row => {
    const cells = [row.logical, row.host ? `host ${row.block}` : blockButton(app, seq, row.block), row.filled,
                   row.host || replay.data.pool ? "" : referenceCount(replay, slots, row.block)];
    const node = element("tr", {}, ...cells.map(cell => element("td", {}, cell instanceof Node ? cell : String(cell))));
    if (!row.host) node.onclick = () => { app.view(0); app.choose({block: row.block}); };
    if (!row.host && !replay.data.pool && row.block === app.chosen.block) node.className = "chosen";
    return node;
  });
  const caption = element("caption", {}, `${replay.names.get(seq.id)}, ${where}: ${seq.tokens} tokens`);
  return element("table", {}, caption, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
}

function blockButton(app, seq, block) {
  const options = {id: `sequence ${seq.id} block ${block}`, className: "cell", ariaPressed: block === app.chosen.block};
  return element("button", {...options, ariaLabel: `Block ${block}`}, String(block));
}

function hostDetails(app) {
  const {replay} = app, blocks = new Map();
  for (const seq of replay.seqs.values()) {
    if (seq.host.length && !blocks.has(seq.request)) blocks.set(seq.request, new Set());
    for (const row of tableOf(seq, replay.data)) if (row.host) blocks.get(seq.request).add(row.block);
  }
  const items = [...blocks].map(([request, held]) => element("li", {}, chip(app, "host", request, `request ${request}`),
    ` host ${held.size === 1 ? "block" : "blocks"} ${ranges([...held].sort((a, b) => a - b))}`));
  return items.length ? [element("ul", {}, ...items)] : [hint("No request.")];
}

function ranges(numbers) {
  const parts = [];
  for (const number of numbers) {
    if (parts.at(-1)?.[1] === number - 1) parts.at(-1)[1] = number; else parts.push([number, number]);
  }
  return parts.map(([from, to]) => from === to ? from : `${from}\u2013${to}`).join(", ");
}
