// A chart under the pointer shows the value of each curve there, read back from its path.
function valueAt([low, high, isLog], share) {
  return isLog ? low * (high / low) ** share : low + share * (high - low);
}

function pointBefore(path, x) {
  const points = path.getAttribute("d").slice(1).split(/[L\s]/).filter(text => /^[\d.-]+,/.test(text));
  return points.map(text => text.split(",").map(Number)).filter(point => point[0] <= x + 0.1).pop();
}

for (const chart of document.querySelectorAll("svg.chart[data-box]")) {
  const axis = name => JSON.parse(chart.dataset[name]), short = value => String(+value.toPrecision(3));
  const [left, right, bottom, top] = axis("box"), rule = chart.querySelector(".rule");
  const order = paths => "stacked" in chart.dataset ? paths.reverse() : paths;  // the top layer is painted first
  const output = chart.parentElement.querySelector("output");
  chart.onpointermove = event => {
    const x = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse()).x;
    if (x < left || x > right) return chart.onpointerleave();
    let below = 0;
    const values = order([...chart.querySelectorAll("path[data-name]")]).flatMap(path => {
      const point = pointBefore(path, x);
      if (!point) return [];
      const value = valueAt(axis("y"), (bottom - point[1]) / (bottom - top)), shown = value - below;
      if ("stacked" in chart.dataset) below = value;
      return [`${path.dataset.name} ${short(shown)}`];
    });
    rule.setAttribute("transform", `translate(${x})`);
    output.textContent = `${short(valueAt(axis("x"), (x - left) / (right - left)))}: ${values.join(", ")}`;
  };
  chart.onpointerleave = () => { rule.setAttribute("transform", "translate(-9)"); output.textContent = ""; };
}
