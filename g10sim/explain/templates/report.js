"use strict";
// The charts and tables of a report. DATA is what g10sim/explain/report.py describes.
const DATA = JSON.parse(document.getElementById("data").textContent);
const KEYS = DATA.keys, POLICY = KEYS.findIndex(key => key.name === "policy");
const SPARE = ["#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000", "#882255", "#999933"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"], MOST_BARS = 60, MOST_PANELS = 24;
const $ = id => document.getElementById(id);

function make(tag, text, attributes) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  return Object.assign(element, attributes || {});
}

function select(id, title, options, chosen) {
  const label = make("label", title + " "), box = make("select", undefined, { id });
  options.forEach(([value, text]) => box.append(make("option", text, { value, selected: value === chosen })));
  label.append(box);
  $("controls").append(label);
  return box;
}

// The value of a key with the unit that the title of the key ends with.
function withUnit(key, value) {
  const unit = key.numbers.length ? key.title.match(/ \(([^()]+)\)$/) : null;
  return unit ? `${key.texts[value]} ${unit[1]}` : key.texts[value];
}

// A number with about three digits.
function brief(value) { return Number(value.toPrecision(3)).toLocaleString("en"); }

// Charts ------------------------------------------------------------------------------------------------------
const names = KEYS.map((key, place) => [String(place), key.title]);
const numeric = KEYS.findIndex(key => key.numbers.length > 1);
const trace = KEYS.findIndex(key => key.name === "trace");
const first = numeric >= 0 ? numeric : trace >= 0 ? trace : Math.max(POLICY, 0);
const xBox = select("x", "axis", names, String(first));
const yBox = select("y", "value", DATA.metrics.map((name, place) => [String(place), name]), "0");
const hueBox = select("hue", "lines", [["", "none"], ...names], POLICY >= 0 && POLICY !== first ? String(POLICY) : "");
const colBox = select("col", "panels", [["", "none"], ...names], trace >= 0 && trace !== first ? String(trace) : "");
const kindBox = select("kind", "as", [["line", "lines"], ["bar", "bars"]], numeric >= 0 ? "line" : "bar");
const others = $("others");

// The keys that are neither axis, lines nor panels: one value each.
function showOthers() {
  const kept = {};
  others.querySelectorAll("select").forEach(box => { kept[box.dataset.key] = box.value; });
  others.replaceChildren();
  const used = [xBox.value, hueBox.value, colBox.value];
  KEYS.forEach((key, place) => {
    if (used.includes(String(place))) return;
    const label = make("label", key.title + " = "), box = make("select");
    box.dataset.key = place;
    key.texts.forEach((text, value) => box.append(make("option", text, { value, selected: kept[place] === String(value) })));
    box.addEventListener("change", draw);
    label.append(box);
    others.append(label);
  });
}

function chosenRows() {
  const boxes = [...others.querySelectorAll("select")];
  return DATA.rows.filter(row => boxes.every(box => row.at[box.dataset.key] === Number(box.value)));
}

function colourOf(hue, value) {
  if (hue === POLICY) return DATA.policies[Object.keys(DATA.policies)[value]].colour;
  return SPARE[value % SPARE.length];
}

function draw() {
  const x = Number(xBox.value), y = Number(yBox.value), isPerformance = y === 0;
  const hue = hueBox.value === "" ? -1 : Number(hueBox.value), col = colBox.value === "" ? -1 : Number(colBox.value);
  const rows = chosenRows(), ran = rows.filter(row => row.values[y] !== null);
  const panels = col < 0 ? [-1] : KEYS[col].texts.map((_, place) => place).slice(0, MOST_PANELS);
  const width = $("chart").clientWidth, columns = Math.max(1, Math.min(panels.length, Math.floor(width / 380)));
  const count = Math.ceil(panels.length / columns), traces = [];
  const layout = {
    grid: { rows: count, columns, pattern: "independent", ygap: 0.35, xgap: 0.14 }, width, height: 160 + 270 * count,
    margin: { l: 60, r: 10, t: 100, b: 60 }, annotations: [], barmode: "group", hovermode: "closest",
    legend: { orientation: "h", y: 1 + 45 / (270 * count), yanchor: "bottom" }, font: { size: 12 }
  };
  const lines = hue < 0 ? [-1] : KEYS[hue].texts.map((_, place) => place);
  const top = 1.05 * Math.max(isPerformance ? 1 : 0, ...ran.map(row => row.values[y]));
  const shown = new Set();
  panels.forEach((panel, place) => {
    const axis = place === 0 ? "" : String(place + 1);
    const mine = rows.filter(row => col < 0 || row.at[col] === panel);
    const toPoint = row => ({ x: escaped(KEYS[x].texts[row.at[x]]), y: row.values[y], row });
    lines.forEach(line => {
      const points = mine.filter(row => (hue < 0 || row.at[hue] === line) && row.at[x] >= 0);
      points.sort((one, other) => one.at[x] - other.at[x]);
      if (!points.length) return;
      const isIdeal = hue === POLICY && points[0].policy === DATA.unlimited;
      if (isIdeal && isPerformance) return;
      const name = escaped(hue < 0 ? DATA.metrics[y] : KEYS[hue].texts[line]), colour = colourOf(hue, Math.max(0, line));
      const found = points.map(toPoint);
      traces.push({
        type: kindBox.value === "bar" ? "bar" : "scatter", mode: "lines+markers", name, legendgroup: name,
        showlegend: !shown.has(name), xaxis: "x" + axis, yaxis: "y" + axis, x: found.map(p => p.x), y: found.map(p => p.y),
        line: { color: colour, dash: DASHES[Math.max(0, line) % DASHES.length] },
        marker: { color: colour }, customdata: found.map(p => p.row.cell),
        hovertemplate: "%{x}: %{y}<br>cell %{customdata}<extra>" + name + "</extra>"
      });
      shown.add(name);
    });
    if (isPerformance) addLines(traces, mine, x, hue, axis, shown);
    layout["xaxis" + axis] = Object.assign(layout["xaxis" + axis] || {}, {
      type: "category", categoryorder: "array", categoryarray: KEYS[x].texts.map(escaped),
      title: { text: escaped(KEYS[x].title), font: { size: 11 } }
    });
    layout["yaxis" + axis] = { range: [0, top || 1], title: place % columns ? "" : { text: escaped(DATA.metrics[y]), font: { size: 11 } } };
    if (col >= 0) layout.annotations.push({
      text: escaped(KEYS[col].texts[panel]), xref: "x" + axis + " domain", yref: "y" + axis + " domain", x: 0.5, y: 1.12,
      showarrow: false, font: { size: 13 }
    });
  });
  Plotly.react("chart", traces, layout, { displaylogo: false, responsive: false });
  $("chart-note").textContent = col >= 0 && KEYS[col].texts.length > MOST_PANELS
    ? `The first ${MOST_PANELS} of ${KEYS[col].texts.length} panels.` : "";
  drawPivot(rows, y);
}

// Unlimited GPU memory, and what no policy can exceed: lines, or a dash where there is one place alone.
function addLines(traces, rows, x, hue, axis, shown) {
  addLine("Ideal", new Map(rows.map(row => [row.at[x], 1])), "#000000", "dash");
  const bound = DATA.metrics.indexOf("bound (of ideal)");
  if (bound < 0 || (hue >= 0 && hue !== POLICY)) return;
  const best = new Map();
  rows.forEach(row => {
    if (row.values[bound] !== null) best.set(row.at[x], Math.max(best.get(row.at[x]) || 0, row.values[bound]));
  });
  addLine("Bound", best, "#117733", "dot");

  function addLine(name, heights, color, dash) {
    const places = [...heights.keys()].filter(place => place >= 0).sort((one, other) => one - other);
    if (!places.length) return;
    traces.push({
      type: "scatter", mode: places.length > 1 ? "lines" : "markers", name, legendgroup: name, showlegend: !shown.has(name),
      xaxis: "x" + axis, yaxis: "y" + axis, x: places.map(place => escaped(KEYS[x].texts[place])), y: places.map(place => heights.get(place)),
      line: { color, dash, width: 1.5 }, marker: { color, symbol: "line-ew-open", size: 14 }
    });
    shown.add(name);
  }
}

function escaped(text) { return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;"); }

// The best policy for every combination of the axis and the panels (or another key) -----------------------------
function drawPivot(rows, y) {
  const place = $("pivot"), x = Number(xBox.value);
  const across = x !== POLICY ? x : -1, down = colBox.value === "" || Number(colBox.value) === POLICY ? -1 : Number(colBox.value);
  const lower = /\(ms\)|stalled|moved|faults|peak/.test(DATA.metrics[y]), table = make("table");
  const head = make("tr");
  head.append(make("th", [down, across].filter(key => key >= 0).map(key => KEYS[key].title).join(" / ")));
  const columns = across < 0 ? [-1] : KEYS[across].texts.map((_, value) => value);
  columns.forEach(value => head.append(make("th", value < 0 ? "" : KEYS[across].texts[value])));
  table.append(head);
  (down < 0 ? [-1] : KEYS[down].texts.map((_, value) => value)).forEach(line => {
    const tr = make("tr");
    tr.append(make("th", line < 0 ? "" : KEYS[down].texts[line]));
    columns.forEach(column => {
      const found = DATA.rows.filter(row => row.policy !== DATA.unlimited && row.values[y] !== null
        && (down < 0 || row.at[down] === line) && (across < 0 || row.at[across] === column) && fixed(row, [across, down]));
      found.sort((one, other) => (lower ? 1 : -1) * (one.values[y] - other.values[y]));
      const td = make("td");
      if (found.length) {
        const look = DATA.policies[found[0].policy];
        const apart = row => Math.abs(row.values[y] - found[0].values[y]) > 5e-4 * Math.abs(found[0].values[y]);
        const equal = new Set(found.filter(row => !apart(row)).map(row => row.policy)).size - 1;
        td.append(make("b", look.label), make("span", (equal ? ` and ${equal} more: ` : " ") + brief(found[0].values[y])));
        td.title = found.map(row => `${DATA.policies[row.policy].label} ${brief(row.values[y])} (cell ${row.cell})`).join("\n");
        td.style.borderLeft = "6px solid " + look.colour;
        const next = found.find(row => row.policy !== found[0].policy && apart(row));
        if (next) td.append(make("small", `then ${DATA.policies[next.policy].label} ${brief(next.values[y])}`));
      }
      tr.append(td);
    });
    table.append(tr);
  });
  place.replaceChildren(table);
  $("pivot-title").textContent = "Best policy by " + DATA.metrics[y];
}

function fixed(row, free) {
  return [...others.querySelectorAll("select")].every(box => Number(box.dataset.key) === POLICY
    || free.includes(Number(box.dataset.key)) || row.at[box.dataset.key] === Number(box.value));
}

// Where the time went: the cells that the table shows ----------------------------------------------------------
function drawParts() {
  const visible = new Set([...$("results").tBodies[0].rows].filter(row => !row.hidden).map(row => row.cells[0].textContent));
  const ran = DATA.rows.filter(row => row.values[1] !== null && visible.has(String(row.cell)));
  const rows = ran.slice(0, MOST_BARS).reverse();
  const labels = rows.map(row => `${row.cell}: ` + KEYS.map((key, place) => withUnit(key, row.at[place])).filter(Boolean).join(", "));
  const traces = DATA.parts.map((part, number) => ({
    type: "bar", orientation: "h", name: escaped(part.title), y: labels.map(escaped), x: rows.map(row => row.parts[number]),
    marker: { color: part.colour, line: { color: "#555", width: 0.5 } }, hovertemplate: "%{x} ms<extra>" + escaped(part.title) + "</extra>"
  }));
  const longest = Math.max(0, ...labels.map(label => label.length));
  Plotly.react("parts", traces, {
    barmode: "stack", width: $("parts").clientWidth, height: 130 + 20 * rows.length, font: { size: 11 },
    margin: { l: Math.min(420, 20 + 6 * longest), r: 10, t: 60, b: 40 }, xaxis: { title: { text: "time of an iteration (ms)" } },
    legend: { orientation: "h", y: 1.0, yanchor: "bottom", traceorder: "normal" }
  }, { displaylogo: false });
  $("parts-note").textContent = ran.length > MOST_BARS ? `The first ${MOST_BARS} of ${ran.length} cells of the table.` : "";
}

// Tables that sort and filter ----------------------------------------------------------------------------------
function number(text) { return /^[-+]?[\d,.]+(e[-+]?\d+)?\s*%?$/i.test(text) ? parseFloat(text.replace(/,/g, "")) : NaN; }

function sortBy(table, column, header) {
  const up = header.getAttribute("aria-sort") !== "ascending", rows = [...table.tBodies[0].rows];
  [...table.tHead.rows[0].cells].forEach(cell => cell.removeAttribute("aria-sort"));
  header.setAttribute("aria-sort", up ? "ascending" : "descending");
  const value = row => row.cells[column].textContent.trim();
  rows.sort((one, other) => {
    const a = value(one), b = value(other), difference = number(a) - number(b);
    return (up ? 1 : -1) * (Number.isNaN(difference) ? a.localeCompare(b, "en", { numeric: true }) : difference);
  });
  table.tBodies[0].append(...rows);
}

// A filter is a part of a text, or a comparison such as >50.
function matches(text, filter) {
  const comparison = filter.match(/^([<>]=?)\s*([-\d.]+)/);
  if (!comparison) return text.toLowerCase().includes(filter.toLowerCase());
  const value = number(text), limit = Number(comparison[2]);
  return { "<": value < limit, "<=": value <= limit, ">": value > limit, ">=": value >= limit }[comparison[1]];
}

function filterRows(table) {
  const filters = [...table.tHead.rows[1].cells].map(cell => cell.firstChild.value.trim());
  let count = 0;
  [...table.tBodies[0].rows].forEach(row => {
    row.hidden = !filters.every((filter, column) => !filter || matches(row.cells[column].textContent.trim(), filter));
    count += !row.hidden;
  });
  if (table.id === "results") {
    $("count").textContent = `${count} of ${table.tBodies[0].rows.length} rows`;
    drawParts();
  }
}

document.querySelectorAll("table.explore").forEach(table => {
  const filters = make("tr");
  [...table.tHead.rows[0].cells].forEach((header, column) => {
    header.addEventListener("click", () => sortBy(table, column, header));
    const cell = make("td");
    const box = make("input", undefined, { type: "search", placeholder: "filter", ariaLabel: "filter " + header.textContent });
    box.addEventListener("input", () => filterRows(table));
    cell.append(box);
    filters.append(cell);
  });
  table.tHead.append(filters);
});

// Start: the library is unpacked first -------------------------------------------------------------------------
async function start() {
  const packed = Uint8Array.from(atob($("library").textContent), letter => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const code = await new Response(stream).text();
  document.head.append(make("script", code));
  [xBox, yBox, hueBox, colBox, kindBox].forEach(box => box.addEventListener("change", () => { showOthers(); draw(); }));
  showOthers();
  draw();
  filterRows($("results"));
  let waiting;
  window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => { draw(); drawParts(); }, 200); });
  document.body.dataset.ready = "yes";
}
start();
