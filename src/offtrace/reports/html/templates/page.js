// The figures of a report, drawn as SVG from the JSON of the page. No library. A panel is a function that draws itself into a
// box of the width it finds, and answers to the pointer and to the arrow keys through one cursor (`interactive`).
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const byName = new Map(data.methods.map((m) => [m.name, m]));
const hidden = new Set();
const redraws = [];
const tip = document.getElementById("tip");
const find = (selector, root = document) => root.querySelector(selector);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

// --- small things -----------------------------------------------------------------------------------------------------

function node(tag, attributes = {}, parent = null, text = null) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}
function html(tag, properties = {}, parent = null) {
  const made = Object.assign(document.createElement(tag), properties);
  if (parent) parent.append(made);
  return made;
}
const given = (x) => x !== null && x !== undefined;
const clamp = (x, low, high) => Math.max(low, Math.min(high, x));
const safe = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
function format(x) {
  if (!given(x)) return "–";
  const size = Math.abs(x);
  if (size >= 1e6 && size < 1e9) return `${format(x / 1e6)}M`;
  if (size !== 0 && (size < 1e-3 || size >= 1e9)) return x.toExponential(1).replace("e+", "e").replace("-", "−");
  return Number(x.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 6, useGrouping: size >= 1e4 }).replace("-", "−");
}
const range = (low, high) => (given(low) && given(high) ? `[${format(low)}, ${format(high)}]` : "");

// --- how a method looks: colour, dash and marker together, so that no one of them has to be seen --------------------------

const DASHES = ["", "7 3", "2 3.5", "9 3 2 3", "4.5 2.5", "1 3", "12 3", "7 2 1.5 2 1.5 2", "3 1.5"];
const MARKERS = [
  "M-3.4 0A3.4 3.4 0 1 0 3.4 0A3.4 3.4 0 1 0 -3.4 0Z",
  "M-3 -3H3V3H-3Z",
  "M0 -4L3.8 2.9H-3.8Z",
  "M0 -4.3L4.3 0L0 4.3L-4.3 0Z",
  "M0 4L3.8 -2.9H-3.8Z",
  "M-1.4 -4H1.4V-1.4H4V1.4H1.4V4H-1.4V1.4H-4V-1.4H-1.4Z",
  "M-4 -2.9L2.9 0L-4 2.9ZM-4 -2.9L4 0L-4 2.9Z",
  "M-3.8 -2L-2 -3.8L0 -1.8L2 -3.8L3.8 -2L1.8 0L3.8 2L2 3.8L0 1.8L-2 3.8L-3.8 2L-1.8 0Z",
  "M0 -4.2L1.3 -1.3L4.2 0L1.3 1.3L0 4.2L-1.3 1.3L-4.2 0L-1.3 -1.3Z",
];
const styleOf = (name) => (byName.get(name) || { style: 0 }).style;
const colour = (name) => `var(--m${styleOf(name) % 9})`;
const dash = (name) => DASHES[(styleOf(name) + Math.floor(styleOf(name) / 9)) % 9];
const marker = (name) => MARKERS[(styleOf(name) + 2 * Math.floor(styleOf(name) / 9)) % 9];
function swatch(name) {
  return `<svg width="26" height="12" viewBox="-13 -6 26 12" aria-hidden="true"><path d="M-13 0H13" stroke="${colour(name)}" stroke-width="2"` +
    ` stroke-dasharray="${dash(name)}" fill="none"/><path d="${marker(name)}" fill="${colour(name)}"/></svg>`;
}

// --- scales -----------------------------------------------------------------------------------------------------------

function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((k) => k >= raw * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(Number((k * step).toPrecision(12)));
  return found;
}
function logTicks(low, high, count) {
  const found = [];
  const every = Math.max(1, Math.ceil(Math.log10(high / low) / count));
  for (let k = Math.ceil(Math.log10(low) - 1e-9); 10 ** k <= high * 1.000001; k += every) found.push(10 ** k);
  return found.length > 1 ? found : ticks(low, high, count).filter((x) => x > 0);
}
function scale(low, high, from, to, log) {
  const f = log ? Math.log : (x) => x;
  const [a, b] = [f(low), f(high)];
  return (x) => from + ((f(x) - a) / (b - a || 1)) * (to - from);
}
/** The range that shows the body of the values: what lies further than six interquartile ranges from the median leaves the panel. */
function body(values, log) {
  const found = values.filter((x) => given(x) && (!log || x > 0)).map((x) => (log ? Math.log(x) : x)).sort((a, b) => a - b);
  if (!found.length) return [log ? 0.1 : 0, 1];
  const at = (p) => found[Math.round(p * (found.length - 1))];
  const reach = 6 * (at(0.75) - at(0.25)) || Infinity;
  let low = Math.max(found[0], at(0.5) - reach), high = Math.min(found.at(-1), at(0.5) + reach);
  const pad = (high - low) * 0.06 || Math.abs(low) * 0.05 || 0.5;
  low -= pad; high += pad;
  return log ? [Math.exp(low), Math.exp(high)] : [low, high];
}

// --- the tip, and one cursor for pointer and keys -----------------------------------------------------------------------

function showTip(content, x, y) {
  tip.innerHTML = content;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const fit = (place, room) => clamp(place, 6, Math.max(6, room - 6));
  const narrow = box.width > innerWidth * 0.55; // then it stands where the figure does not: at the lower or upper edge
  const left = x + 16 + box.width > innerWidth ? x - 16 - box.width : x + 16;
  const top = narrow ? (y > innerHeight / 2 ? 54 : innerHeight) : y - box.height / 2;
  tip.style.transform = `translate(${fit(left, innerWidth - box.width)}px,${fit(top, innerHeight - box.height)}px)`;
}
function hideTip() { tip.hidden = true; }
addEventListener("touchmove", hideTip, { passive: true });
/** `at(x, y)` finds the stop nearest a point, `step(stop, dx, dy)` the next one, `show(stop)` draws it and says what it is and where. */
function interactive(svg, { at, step, show, clear, first }) {
  let stop = null;
  const point = (event) => {
    const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
    return [((event.clientX - box.left) / box.width) * view.width, ((event.clientY - box.top) / box.height) * view.height];
  };
  const go = (next) => {
    if (!given(next)) return leave();
    stop = next;
    const said = show(stop);
    if (!said) return leave();
    const box = svg.getBoundingClientRect(), k = box.width / svg.viewBox.baseVal.width;
    return showTip(said.text, box.left + said.x * k, box.top + said.y * k);
  };
  const leave = () => { stop = null; clear(); hideTip(); };
  svg.addEventListener("pointermove", (event) => go(at(...point(event))));
  svg.addEventListener("pointerdown", (event) => go(at(...point(event))));
  svg.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") leave(); }); // a finger leaves at once
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (move) { event.preventDefault(); go(given(stop) ? step(stop, ...move) : first); }
    if (event.key === "Escape") leave();
  });
}
/** A box for one plot, drawn again when its width or what it shows changes. */
function panel(parent, title, note, label, draw) {
  const box = html("div", { className: "panel" }, parent);
  if (title) html("h3", { textContent: title }, box);
  if (note) html("p", { textContent: note }, box);
  const host = html("div", { className: "plot" }, box);
  let width = 0;
  const redraw = () => {
    width = host.clientWidth;
    if (!width) return;
    const svg = node("svg", { tabindex: 0, role: "img", "aria-label": `${label}. Arrow keys read the values.` });
    draw(svg, width);
    host.replaceChildren(svg);
  };
  new ResizeObserver(() => { if (host.clientWidth !== width) redraw(); }).observe(host);
  redraws.push(redraw);
  redraw();
}

// --- lines: learning curves, sweeps, ages; and points, for the contraction–variance map ------------------------------------

let clips = 0;
function frame(svg, W, H, x, y, options) {
  const long = (values) => Math.max(...values.map((v) => format(v).length));
  const yTicks = options.ylog ? logTicks(...y, 5) : ticks(...y, 5);
  const edge = { left: 12 + 7 * long(yTicks), right: 16, top: 22, bottom: 36 };
  const X = scale(...x, edge.left, W - edge.right, options.xlog), Y = scale(...y, H - edge.bottom, edge.top, options.ylog);
  svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
  for (const tick of yTicks) {
    node("line", { class: "grid", x1: edge.left, x2: W - edge.right, y1: Y(tick), y2: Y(tick) }, svg);
    node("text", { x: edge.left - 6, y: Y(tick) + 4, "text-anchor": "end" }, svg, format(tick));
  }
  node("line", { class: "axis", x1: edge.left, x2: W - edge.right, y1: H - edge.bottom, y2: H - edge.bottom }, svg);
  const xTicks = options.xlog ? logTicks(...x, 5) : ticks(...x, clamp(Math.floor(W / 75), 3, 6));
  for (const tick of xTicks) {
    node("line", { class: "axis", x1: X(tick), x2: X(tick), y1: H - edge.bottom, y2: H - edge.bottom + 4 }, svg);
    const room = 3.4 * format(tick).length;  // half of the label: at the right edge it must not be cut
    const anchor = X(tick) + room > W ? "end" : "middle";
    node("text", { x: anchor === "end" ? W : X(tick), y: H - edge.bottom + 17, "text-anchor": anchor }, svg, format(tick));
  }
  node("text", { x: 2, y: 11 }, svg, options.ylabel);
  node("text", { x: W - edge.right, y: H - 3, "text-anchor": "end" }, svg, options.xlabel);
  const id = `clip${clips++}`;
  node("rect", { x: edge.left - 6, y: edge.top - 4, width: W - edge.left - edge.right + 12, height: H - edge.top - edge.bottom + 5 },
    node("clipPath", { id }, node("defs", {}, svg)));
  return { X, Y, edge, area: node("g", { "clip-path": `url(#${id})` }, svg) };
}
function path(line, X, Y) {
  let pen = "M", d = "";
  line.x.forEach((x, i) => {
    if (!given(line.y[i])) { pen = "M"; return; }
    d += `${pen}${X(x).toFixed(1)} ${Y(line.y[i]).toFixed(1)}`;
    pen = "L";
  });
  return d;
}
function band(line, X, Y) {
  const stops = line.x.map((_, i) => i).filter((i) => given(line.low[i]) && given(line.high[i]));
  if (stops.length < 2) return "";
  const at = (i, side) => `${X(line.x[i]).toFixed(1)} ${Y(line[side][i]).toFixed(1)}`;
  return `M${stops.map((i) => at(i, "high")).join("L")}L${stops.reverse().map((i) => at(i, "low")).join("L")}Z`;
}
function lines(source, options) {
  return (svg, W) => {
    const H = Math.round(clamp(W * 0.6, 215, 400));
    const shown = source().filter((line) => !hidden.has(line.method));
    const sloped = shown.filter((line) => !line.level);
    const xs = [...new Set(sloped.flatMap((line) => line.x))].sort((a, b) => a - b);
    if (!xs.length) return nothing(svg, W, H);
    const wide = xs.length > 1 ? [xs[0], xs.at(-1)] : [xs[0] - 0.5, xs[0] + 0.5];
    const high = options.domain || body([...shown.flatMap((line) => [...line.y, ...line.low, ...line.high]), options.reference], options.ylog);
    const { X, Y, edge, area } = frame(svg, W, H, wide, high, options);
    if (given(options.reference)) node("line", { class: "ref", x1: edge.left, x2: W - edge.right, y1: Y(options.reference), y2: Y(options.reference) }, svg);
    for (const line of shown.filter((line) => line.level)) [line.x, line.y, line.low, line.high] = [wide, ...["y", "low", "high"].map((k) => [line[k][0], line[k].at(-1)])];
    for (const line of shown) node("path", { class: "band", d: band(line, X, Y), fill: colour(line.method) }, group(area, line));
    for (const line of shown) {
      const into = group(area, line);
      node("path", { class: "line", d: path(line, X, Y), stroke: colour(line.method), "stroke-dasharray": dash(line.method) }, into);
      const every = Math.ceil(line.x.length / 9), start = line.x.length > 20 ? styleOf(line.method) % every : 0;
      for (let i = start; i < line.x.length; i += every) if (given(line.y[i])) mark(into, line.method, X(line.x[i]), Y(line.y[i]));
    }
    const over = node("g", {}, svg);
    interactive(svg, {
      first: 0,
      at: (x) => xs.reduce((best, v, i) => (Math.abs(X(v) - x) < Math.abs(X(xs[best]) - x) ? i : best), 0),
      step: (i, dx, dy) => clamp(i + dx - dy, 0, xs.length - 1),
      clear: () => over.replaceChildren(),
      show: (stop) => {
        over.replaceChildren();
        const x = xs[stop];
        node("line", { class: "guide", x1: X(x), x2: X(x), y1: edge.top, y2: H - edge.bottom }, over);
        const found = shown.map((line) => ({ line, i: line.level ? 0 : line.x.indexOf(x) })).filter(({ line, i }) => i >= 0 && given(line.y[i]));
        found.sort((a, b) => (options.better ?? data.better) * (b.line.y[b.i] - a.line.y[a.i]));
        for (const { line, i } of found) if (Y(line.y[i]) >= edge.top - 4 && Y(line.y[i]) <= H - edge.bottom) mark(over, line.method, X(x), Y(line.y[i]), 1.35);
        const rows = found.map(({ line, i }) => row(line.method, format(line.y[i]), `${range(line.low[i], line.high[i])} ${settings(line, i)}`));
        return { x: X(x), y: H / 2, text: `<strong>${safe(options.xname)} ${format(x)}</strong><table>${rows.join("")}</table>` };
      },
    });
  };
}
function nothing(svg, W, H) {
  svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
  node("text", { x: W / 2, y: H / 2, "text-anchor": "middle" }, svg, "Nothing to show");
}
const group = (parent, line) => node("g", { class: "series", "data-method": line.method }, parent);
const mark = (parent, method, x, y, size = 1) =>
  node("path", { class: "mark", d: marker(method), fill: colour(method), transform: `translate(${x.toFixed(1)} ${y.toFixed(1)}) scale(${size})` }, parent);
const row = (method, value, further) => `<tr><td>${swatch(method)} ${safe(method)}</td><td class="v">${value}</td><td class="i">${safe(further)}</td></tr>`;
function settings(line, i) {
  const one = (v) => (Array.isArray(v) ? v[i] : v);
  return [["λ", one(line.lam)], ["α", one(line.alpha)]].filter(([, v]) => given(v)).map(([k, v]) => `${k} ${format(v)}`).join(", ");
}
function points(clouds) {
  return (svg, W) => {
    const H = Math.round(clamp(W * 0.72, 260, 460));
    const shown = clouds.filter((cloud) => !hidden.has(cloud.method));
    const stops = shown.flatMap((cloud) => cloud.x.map((x, i) => ({ cloud, i, x, y: cloud.y[i] })).filter((p) => given(p.x) && given(p.y)));
    if (!stops.length) return nothing(svg, W, H);
    const ylog = stops.every((p) => p.y > 0) && Math.max(...stops.map((p) => p.y)) > 20 * Math.min(...stops.map((p) => p.y));
    const { X, Y, area } = frame(svg, W, H, body(stops.map((p) => p.x), false), body(stops.map((p) => p.y), ylog), { ylog, xlabel: "contraction (0 fastest)", ylabel: "variance" });
    for (const cloud of shown) {
      const into = group(area, cloud);
      node("path", { class: "line", d: path(cloud, X, Y), stroke: colour(cloud.method), "stroke-dasharray": dash(cloud.method) }, into);
      cloud.x.forEach((x, i) => given(x) && given(cloud.y[i]) && mark(into, cloud.method, X(x), Y(cloud.y[i]), 0.8 + (0.9 * i) / Math.max(1, cloud.x.length - 1)));
    }
    const over = node("g", {}, svg);
    const away = (p, x, y) => (X(p.x) - x) ** 2 + (Y(p.y) - y) ** 2;
    interactive(svg, {
      first: 0,
      at: (x, y) => { const k = stops.reduce((best, p, i) => (away(p, x, y) < away(stops[best], x, y) ? i : best), 0); return stops.length && away(stops[k], x, y) < 3600 ? k : null; },
      step: (k, dx, dy) => clamp(k + dx + dy, 0, stops.length - 1),
      clear: () => over.replaceChildren(),
      show: (k) => {
        const { cloud, i, x, y } = stops[k];
        over.replaceChildren();
        node("circle", { class: "cursor", cx: X(x), cy: Y(y), r: 9 }, over);
        const facts = [["contraction", `${format(x)} ${cloud.upper[i] - cloud.lower[i] > 1e-4 ? range(cloud.lower[i], cloud.upper[i]) : ""}`], ["variance", format(y)], ["bias", format(cloud.bias[i])]];
        return { x: X(x), y: Y(y), text: `<strong>${swatch(cloud.method)} ${safe(cloud.method)}${given(cloud.lam[i]) ? `, λ = ${format(cloud.lam[i])}` : ""}</strong><table>${facts.map(([a, b]) => `<tr><td>${a}</td><td class="v">${b}</td></tr>`).join("")}</table>` };
      },
    });
  };
}

// --- intervals, one under the other -----------------------------------------------------------------------------------------

const two = (x) => (Math.round(x * 100) / 100 + 0).toFixed(2).replace("-", "−");
function forest(rows, options) {
  return (svg, W) => {
    const shown = rows.filter((r) => !hidden.has(r.method));
    if (!shown.length) return nothing(svg, W, 80);
    const gap = 27, top = 6, bottom = 36, H = top + gap * Math.max(1, shown.length) + bottom;
    const value = (r) => r.shown ?? two(r.value);
    const left = Math.min(W * 0.42, 14 + 7 * Math.max(4, ...shown.map((r) => r.method.length))), right = Math.max(46, 22 + 7 * Math.max(...shown.map((r) => value(r).length)));
    const ends = options.domain || shown.flatMap((r) => [r.value, r.low, r.high, ...(options.include || [])]).filter(given);
    const [low, high] = [Math.min(...ends), Math.max(...ends)], pad = options.domain ? 0 : (high - low) * 0.04 || 0.1;
    const X = scale(low - pad, high + pad, left, W - right), inside = (x) => clamp(x, low - pad, high + pad);
    svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
    for (const tick of ticks(low - pad, high + pad, clamp(Math.floor((W - left - right) / 55), 2, 5))) {
      node("line", { class: "grid", x1: X(tick), x2: X(tick), y1: top, y2: H - bottom }, svg);
      node("text", { x: X(tick), y: H - bottom + 16, "text-anchor": "middle" }, svg, format(tick));
    }
    if (given(options.reference)) node("line", { class: "ref", x1: X(options.reference), x2: X(options.reference), y1: top, y2: H - bottom }, svg);
    node("text", { x: W - right, y: H - 4, "text-anchor": "end" }, svg, options.xlabel);
    const Y = (i) => top + gap * (i + 0.5);
    if (options.shaded) node("rect", { class: "shaded", x: X(inside(options.shaded.low)), y: top, width: Math.max(1, X(inside(options.shaded.high)) - X(inside(options.shaded.low))), height: H - bottom - top }, svg);
    shown.forEach((r, i) => {
      const into = group(svg, r);
      const label = node("text", { class: "name", x: left - 12, y: Y(i) + 4, "text-anchor": "end" }, into, r.method);
      if (r.method.length * 7 > left - 6) { label.setAttribute("textLength", left - 14); label.setAttribute("lengthAdjust", "spacingAndGlyphs"); }
      if (given(r.low) && given(r.high)) node("line", { x1: X(inside(r.low)), x2: X(inside(r.high)), y1: Y(i), y2: Y(i), stroke: colour(r.method), "stroke-width": given(r.value) ? 7 : 2, "stroke-linecap": "round", opacity: given(r.value) ? 0.32 : 1 }, into);
      const parts = [r.low, r.high, r.value].filter(given), arrow = (x, way) => node("path", { class: "mark", d: `M${7 * way} 0L${-2 * way} -6V6Z`, fill: colour(r.method), transform: `translate(${x} ${Y(i)})` }, into);
      if (Math.min(...parts) < low - pad) arrow(left, -1);
      if (Math.max(...parts) > high + pad) arrow(W - right, 1);
      if (given(r.value) && inside(r.value) === r.value) mark(into, r.method, X(r.value), Y(i), 1.35);
      node("text", { class: "strong", x: W - 2, y: Y(i) + 4, "text-anchor": "end" }, into, value(r));
    });
    const over = node("rect", { class: "cursor", x: 1, width: W - 2, height: gap - 2, rx: 5, visibility: "hidden", "stroke-opacity": 0.25 }, svg);
    interactive(svg, {
      first: 0,
      at: (x, y) => { const i = Math.floor((y - top) / gap); return i >= 0 && i < shown.length ? i : null; },
      step: (i, dx, dy) => clamp(i + dx + dy, 0, shown.length - 1),
      clear: () => over.setAttribute("visibility", "hidden"),
      show: (i) => {
        over.setAttribute("visibility", "visible");
        over.setAttribute("y", Y(i) - gap / 2 + 1);
        const r = shown[i];
        return { x: X(inside(r.value ?? (r.low + r.high) / 2)), y: Y(i), text: `<strong>${options.says(r)}</strong><table>${row(r.method, r.shown ?? format(r.value), r.said ?? range(r.low, r.high))}</table>` };
      },
    });
  };
}

// --- cells: α–λ maps and the matrix of improvements ---------------------------------------------------------------------------

const CIVIDIS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];
function cividis(t) {
  const k = clamp(t, 0, 1) * (CIVIDIS.length - 1), i = Math.min(CIVIDIS.length - 2, Math.floor(k));
  const part = (text, j) => parseInt(text.slice(1 + 2 * j, 3 + 2 * j), 16);
  return `rgb(${[0, 1, 2].map((j) => Math.round(part(CIVIDIS[i], j) + (k - i) * (part(CIVIDIS[i + 1], j) - part(CIVIDIS[i], j)))).join(",")})`;
}
/** From the worst to the best colour; the worst tenth shares one, so that a few failures do not wash out the rest. */
function goodness(grids) {
  const found = grids.flatMap((grid) => grid.values.flat()).filter(given).sort((a, b) => data.better * (a - b));
  const worst = found[Math.floor(found.length * 0.1)] ?? 0, best = found.at(-1) ?? 1;
  return { worst, best, of: (v) => (best === worst ? 1 : (v - worst) / (best - worst)) };
}
function cellsAt(svg, spec) {
  const { left, top, side, tall, columns, rows } = spec;
  const over = node("rect", { class: "cursor", width: side, height: tall, rx: 2, visibility: "hidden" }, svg);
  interactive(svg, {
    first: 0,
    at: (x, y) => { const j = Math.floor((x - left) / side), i = Math.floor((y - top) / tall); return j >= 0 && i >= 0 && j < columns && i < rows ? i * columns + j : null; },
    step: (k, dx, dy) => clamp(Math.floor(k / columns) + dy, 0, rows - 1) * columns + clamp((k % columns) + dx, 0, columns - 1),
    clear: () => over.setAttribute("visibility", "hidden"),
    show: (k) => {
      const i = Math.floor(k / columns), j = k % columns, text = spec.says(i, j);
      if (!text) return null;
      for (const [key, value] of [["x", left + j * side], ["y", top + i * tall], ["visibility", "visible"]]) over.setAttribute(key, value);
      return { x: left + (j + 0.5) * side, y: top + (i + 0.5) * tall, text };
    },
  });
}
function heat(grid, good) {
  return (svg, W) => {
    const left = 30, top = 2, columns = grid.lam.length, rows = grid.alpha.length;
    const side = (W - left - 8) / columns, tall = clamp(150 / rows, 12, 30), H = top + rows * tall + 20;
    svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
    const up = (i) => rows - 1 - i; // the largest α stands on top
    grid.values.forEach((line, i) => line.forEach((value, j) => {
      node("rect", { class: "cell", x: left + j * side + 0.5, y: top + up(i) * tall + 0.5, width: Math.max(1, side - 1), height: tall - 1, rx: 1.5, fill: given(value) ? cividis(good.of(value)) : "var(--grid)" }, svg);
      if (!given(value)) node("text", { x: left + (j + 0.5) * side, y: top + (up(i) + 0.5) * tall + 4, "text-anchor": "middle" }, svg, "×");
    }));
    grid.chosen.forEach((i, j) => given(i) && ["chosen under", "chosen"].forEach((kind) => node("circle", { class: kind, cx: left + (j + 0.5) * side, cy: top + (up(i) + 0.5) * tall, r: Math.min(5, tall / 3.2) }, svg)));
    const thin = (n, room) => Math.ceil(n / Math.max(1, Math.floor(room)));
    grid.alpha.forEach((a, i) => { if (i % thin(rows, (rows * tall) / 15) === 0) node("text", { x: left - 5, y: top + (up(i) + 0.5) * tall + 4, "text-anchor": "end" }, svg, format(a)); });
    grid.lam.forEach((l, j) => { if (j % thin(columns, (W - left) / 30) === 0) node("text", { x: left + (j + 0.5) * side, y: H - 4, "text-anchor": "middle" }, svg, format(l)); });
    node("text", { x: W - 1, y: H - 4, "text-anchor": "end" }, svg, "λ");
    node("text", { x: 2, y: H - 4 }, svg, "α");
    cellsAt(svg, { left, top, side, tall, columns, rows, says: (k, j) => {
      const i = up(k), value = grid.values[i][j];
      return `<strong>${safe(grid.method)}</strong>λ ${format(grid.lam[j])}, α ${format(grid.alpha[i])}: <b>${given(value) ? format(value) : "failed or not run"}</b>${grid.chosen[j] === i ? " (tuned)" : ""}`;
    } });
  };
}
function matrix(names, pairs) {
  const of = new Map(pairs.map((p) => [`${p.better}\n${p.worse}`, p]));
  return (svg, W) => {
    const shown = names.filter((name) => !hidden.has(name)), n = shown.length;
    if (!n) return nothing(svg, W, 80);
    const left = Math.min(W * 0.42, 14 + 7 * Math.max(4, ...shown.map((name) => name.length))), top = 22, tall = 27, side = (W - left - 2) / Math.max(1, n), H = top + n * tall + 2;
    svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
    shown.forEach((name, i) => {
      const label = node("text", { class: "name", x: left - 8, y: top + (i + 0.5) * tall + 4, "text-anchor": "end" }, svg, name);
      if (name.length * 7 > left - 4) { label.setAttribute("textLength", left - 10); label.setAttribute("lengthAdjust", "spacingAndGlyphs"); }
      mark(svg, name, left + (i + 0.5) * side, 11, 1.3);
      shown.forEach((other, j) => {
        const p = of.get(`${name}\n${other}`);
        if (!p) return;
        const away = Math.round(Math.min(1, Math.abs(p.probability - 0.5) * 2) * 78);
        node("rect", { class: "cell", x: left + j * side + 1, y: top + i * tall + 1, width: Math.max(1, side - 2), height: tall - 2, rx: 3, fill: `color-mix(in oklab, var(${p.probability >= 0.5 ? "--good" : "--bad"}) ${away}%, var(--grid))` }, svg);
        const text = node("text", { x: left + (j + 0.5) * side, y: top + (i + 0.5) * tall + 4, "text-anchor": "middle" }, svg, p.probability.toFixed(2).replace(/^0/, ""));
        text.style.fill = "var(--ink)";
      });
    });
    cellsAt(svg, { left, top, side, tall, columns: n, rows: n, says: (i, j) => {
      const p = of.get(`${shown[i]}\n${shown[j]}`);
      return p && `${safe(p.better)} better than ${safe(p.worse)}: <b>${format(p.probability)}</b> ${range(p.low, p.high)}`;
    } });
  };
}

// --- bars: what share of the episodes, and of their weight, has a weight of this size ------------------------------------------

const percent = (x) => `${format(Number((100 * x).toPrecision(3)))}%`;
const SUPERSCRIPT = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const power = (k) => (Number.isInteger(k) && k >= -3 && k <= 3 ? format(10 ** k) : `10${[...String(k)].map((c) => SUPERSCRIPT[c] ?? c).join("")}`);
function bars(bins, names) {
  return (svg, W) => {
    const H = Math.round(clamp(W * 0.6, 215, 400)), extra = bins.zero > 0 ? 1 : 0, n = bins.episodes.length + extra; // weights of 0 stand to the left
    const all = bins.episodes.map((episodes, i) => ({ i: i + extra, shares: [episodes, bins.weight[i]], said: `10^${two(bins.first + i * bins.width)} to 10^${two(bins.first + (i + 1) * bins.width)}` }));
    if (extra) all.unshift({ i: 0, shares: [bins.zero, 0], said: "0" });
    const top = Math.max(...all.flatMap((bar) => bar.shares));
    const edge = { left: 46, right: 16, top: 22, bottom: 36 }, side = (W - edge.left - edge.right) / n;
    const Y = scale(0, top * 1.05, H - edge.bottom, edge.top);
    svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
    for (const tick of ticks(0, top * 1.05, 4)) {
      node("line", { class: "grid", x1: edge.left, x2: W - edge.right, y1: Y(tick), y2: Y(tick) }, svg);
      node("text", { x: edge.left - 6, y: Y(tick) + 4, "text-anchor": "end" }, svg, percent(tick));
    }
    const at = (k) => edge.left + ((k - bins.first) / bins.width + extra) * side;
    const every = [1, 2, 5, 10, 20, 50, 100, 1000].find((step) => step * (side / bins.width) > 52) ?? 1000;
    for (let k = Math.ceil(bins.first / every) * every; at(k) <= W - edge.right + 1; k += every) {
      node("line", { class: k === 0 ? "ref" : "axis", x1: at(k), x2: at(k), y1: k === 0 ? edge.top : H - edge.bottom, y2: H - edge.bottom + 4 }, svg);
      node("text", { x: at(k), y: H - edge.bottom + 17, "text-anchor": "middle" }, svg, power(k));
    }
    if (extra) node("text", { x: edge.left + side / 2, y: H - edge.bottom + 17, "text-anchor": "middle" }, svg, "0");
    node("line", { class: "axis", x1: edge.left, x2: W - edge.right, y1: H - edge.bottom, y2: H - edge.bottom }, svg);
    node("text", { x: 2, y: 11 }, svg, "share");
    node("text", { x: W - edge.right, y: H - 3, "text-anchor": "end" }, svg, "weight W of an episode");
    for (const { i, shares } of all) {
      shares.forEach((share, j) => share > 0 && node("rect", { class: "cell", x: edge.left + side * (i + 0.08 + 0.42 * j), y: Y(share), width: Math.max(1, side * 0.42), height: Math.max(1, Y(0) - Y(share)), fill: colour(names[j]) }, svg));
    }
    cellsAt(svg, { left: edge.left, top: edge.top, side, tall: H - edge.top - edge.bottom, columns: n, rows: 1, says: (_, j) => {
      const bar = all.find(({ i }) => i === j);
      return bar && `<strong>W ${safe(bar.said)}</strong><table>${names.map((name, k) => row(name, percent(bar.shares[k]), "")).join("")}</table>`;
    } });
  };
}
/** What the lines or bars of a panel are. */
const key = (into, names) => html("p", { className: "key", innerHTML: names.map((name) => `<span>${swatch(name)} ${safe(name)}</span>`).join("") }, into.lastElementChild);

// --- the page ---------------------------------------------------------------------------------------------------------------

const FIGURES = {
  standing(into) {
    const iqm = data.iqm.map((r) => ({ ...r, value: r.iqm }));
    panel(into, "Interquartile mean", "Of the scaled scores of all runs", "Interquartile means with intervals", forest(iqm, { xlabel: "scaled score", says: () => "Interquartile mean" }));
    const first = data.iqm[0].method;
    const against = data.improvement.filter((p) => p.better === first).map((p) => ({ ...p, method: p.worse, value: p.probability }));
    panel(into, `${first} against the others`, "Probability that a run of it is the better one", "Probabilities of improvement with intervals",
      forest(against, { reference: 0.5, include: [0.5], xlabel: "probability", says: () => `P(${safe(first)} better)` }));
    if (data.reference && data.reference !== first) {
      const over = data.iqm.flatMap((r) => data.improvement.filter((p) => p.better === r.method && p.worse === data.reference));
      panel(into, `The others against ${data.reference}`, `Probability that a run is better than one of ${data.reference}`, `Probabilities of improvement over ${data.reference} with intervals`,
        forest(over.map((p) => ({ ...p, method: p.better, value: p.probability })), { reference: 0.5, include: [0.5], xlabel: "probability", says: (r) => `P(${safe(r.method)} better than ${safe(data.reference)})` }));
    }
    panel(into, "Each trace against each", "Probability that a run of the row is better", "Probabilities of improvement of all pairs", matrix(data.iqm.map((r) => r.method), data.improvement));
  },
  learning(into) {
    const control = find('[data-control="learning"]'), age = find('[data-control="age"]');
    const wanted = (line) => (!control || control.value === "best" ? line.best : line.lam === null || line.lam === Number(control.value)) && (!age || line.age === Number(age.value));
    for (const env of data.learning) {
      panel(into, env.name, "", `Learning curves, ${env.name}`, lines(() => env.lines.filter(wanted), { xlabel: data.step, xname: data.step, ylabel: data.curve }));
    }
    for (const one of [control, age]) one?.addEventListener("change", () => redraws.forEach((redraw) => redraw()));
  },
  measured(into) {
    const env = find('[data-control="measured"]'), age = find('[data-control="measured-age"]');
    data.measured[0].forEach((first, i) => panel(into, first.name, "", `${first.name} over the updates`,
      lines(() => data.measured[Number(env.value)][i].lines.filter((line) => line.age === Number(age.value)), { xlabel: data.step, xname: data.step, ylabel: first.name, better: i < 2 ? 1 : 0 })));
    for (const one of [env, age]) one.addEventListener("change", () => redraws.forEach((redraw) => redraw()));
  },
  sweeps(into) {
    for (const env of data.sweeps) panel(into, env.name, "", `${data.metric} over λ, ${env.name}`, lines(() => env.lines.map((line) => ({ ...line })), { xlabel: "λ", xname: "λ", ylabel: data.metric }));
  },
  ages(into) {
    for (const env of data.ages) panel(into, env.name, "", `${data.metric} over age, ${env.name}`, lines(() => env.lines, { xlabel: data.age.label, xname: "age", xlog: data.age.log, ylabel: data.metric }));
  },
  aged(into) {
    const from = (name) => (name.startsWith("P(") ? 0.5 : name.startsWith("Difference") ? 0 : null);
    for (const one of data.aged) panel(into, one.name, "", `${one.name} over age`, lines(() => one.lines, { xlabel: data.age.label, xname: "age", xlog: data.age.log, ylabel: from(one.name) === 0.5 ? "probability" : "scaled score", reference: from(one.name), better: 1 }));
  },
  estimates(into) {
    const { rows, domain, percent: level } = data.estimates, shaded = rows.find((r) => r.family === "conservative");
    panel(into, "", "", "Estimates with intervals", forest(rows, { domain, shaded, xlabel: "V(π)", says: (r) => (given(r.value) ? `V(π), ${level} bootstrap interval` : `V(π), ${level} conservative interval`) }));
    const found = [...new Set(rows.map((r) => r.family))];
    key(into, found);
  },
  weights(into) {
    const { bins, heaviest, effective } = data.weights;
    panel(into, "Weights", "What share of the episodes has which weight, and how much of all weight they hold", "Histogram of weights", bars(bins, ["episodes", "importance weights"]));
    key(into, ["episodes", "importance weights"]);
    panel(into, "The heaviest episodes", "What share the n heaviest hold together", "Share of the heaviest episodes", lines(() => heaviest.map((line) => ({ ...line })), { xlog: true, xlabel: "n heaviest episodes", xname: "heaviest", ylabel: "share", domain: [0, 1.02], better: 1 }));
    key(into, heaviest.map((line) => line.method));
    if (effective.length) panel(into, "Step by step", "What the episodes are worth with the weights up to a step", "Effective episodes by step", lines(() => effective.map((line) => ({ ...line })), { ylog: true, xlabel: "step t", xname: "step", ylabel: "effective episodes", domain: [0.8, 1.2].map((k, i) => k * (i ? Math.max : Math.min)(...effective[0].y.filter((y) => y > 0))), better: 1 }));
  },
  credit(into) {
    panel(into, "", "", "Share of credit within n steps", lines(() => data.credit.map((line) => ({ ...line })), { xlog: true, xlabel: "first n steps", xname: "n =", ylabel: "share of credit", domain: [0, 1.02], better: 1 }));
    key(into, data.credit.map((line) => line.method));
  },
  tradeoff(into) {
    for (const env of data.tradeoff) panel(into, env.name, "", `Contraction and variance, ${env.name}`, points(env.lines));
  },
  heat(into) {
    const control = find('[data-control="heat"]'), legend = find(".scale");
    const show = () => {
      const env = data.heat[control.value], good = goodness(env.lines);
      redraws.splice(0, redraws.length, ...redraws.filter((redraw) => !redraw.heat));
      into.replaceChildren();
      const before = redraws.length;
      for (const grid of env.lines) panel(into, grid.method, "", `${grid.method}, ${env.name}: ${data.metric} over λ and α`, heat(grid, good));
      redraws.slice(before).forEach((redraw) => { redraw.heat = true; });
      legend.innerHTML = `${format(good.worst)}${data.better > 0 ? " or less" : " or more"} <i style="background:linear-gradient(90deg,${CIVIDIS.join(",")})"></i> ${format(good.best)} <b></b> tuned α`;
    };
    control.addEventListener("change", show);
    show();
  },
};

function legend() {
  const into = find(".legend");
  if (!into) return;
  const reset = html("button", { type: "button", className: "all", textContent: "Show all", hidden: true });
  const buttons = data.methods.map(({ name }) => {
    const button = html("button", { type: "button", innerHTML: `${swatch(name)}${safe(name)}`, title: "Click to hide or show; with Shift to show it alone" }, into);
    button.addEventListener("click", (event) => {
      if (event.shiftKey) data.methods.forEach((m) => (m.name === name ? hidden.delete(m.name) : hidden.add(m.name)));
      else if (!hidden.delete(name)) hidden.add(name);
      update();
    });
    const focus = (on) => () => {
      document.body.classList.toggle("focus", on && !hidden.has(name));
      all(".plot .series").forEach((series) => series.classList.toggle("lit", on && series.dataset.method === name));
    };
    button.addEventListener("pointerenter", focus(true));
    button.addEventListener("pointerleave", focus(false));
    return button;
  });
  const update = () => {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(!hidden.has(data.methods[i].name))));
    reset.hidden = hidden.size === 0;
    document.body.classList.remove("focus");
    redraws.forEach((redraw) => redraw());
  };
  reset.addEventListener("click", () => { hidden.clear(); update(); });
  into.append(reset);
  update();
}

function sortable(table) {
  const body = table.tBodies[0], heads = all("thead th", table);
  heads.forEach((head, column) => find("button", head).addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = (line) => line.cells[column].dataset.v;
    const compare = (a, b) => (a === "" || b === "" ? (a === "") - (b === "") : (up ? 1 : -1) * (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b));
    body.append(...[...body.rows].sort((a, b) => compare(value(a), value(b))));
  }));
}

function theme() {
  const root = document.documentElement;
  const kept = (set) => { try { if (set) localStorage.setItem("offtrace-theme", set); return localStorage.getItem("offtrace-theme"); } catch { return set; } };
  if (kept()) root.dataset.theme = kept();
  find("#theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    kept(root.dataset.theme);
  });
}

theme();
for (const into of all("[data-figure]")) FIGURES[into.dataset.figure](into);
legend();
all("table.data").forEach(sortable);
})();
