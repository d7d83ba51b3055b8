const COLOURS = [0, 1, 2, 3].map((i) => `var(--m${i})`), DASHES = ["", "7 3", "2 3.5", "9 3 2 3"];
const swatch = (i) => `<svg width="22" height="10" viewBox="0 -5 22 10" aria-hidden="true"><path d="M0 0H22" stroke="${COLOURS[i]}" stroke-width="2.4" stroke-dasharray="${DASHES[i]}"/></svg>`;
/** A formula with its indices set low and its powers high: β_{t-1}, γ^t. */
const formula = (text) => safe(text).replace(/-(?=\d)/g, "−").replace(/_\{([^}]+)\}|_([\p{L}\d])/gu, (_, a, b) => `<sub>${(a ?? b).replace("-", "−")}</sub>`).replace(/\^([\p{L}\d])/gu, "<sup>$1</sup>");

/** Write only what is new: a frame while dragging has a few milliseconds, and parsing is most of them. */
function put(host, content) {
  if (host.written === content) return;
  host.innerHTML = host.written = content;
}
/** As many layers of an SVG as asked for, which stay while its size does. */
function layers(host, W, H, count) {
  put(host, `<svg viewBox="0 0 ${W} ${H}" aria-hidden="true">${"<g></g>".repeat(count)}</svg>`);
  return host.firstChild.children;
}
/** The width of an element. To ask for it after something was written would make the browser lay out the page at once. */
const widths = new ResizeObserver((entries) => { for (const { target } of entries) target.width = target.clientWidth; dirty.credit = dirty.draw = true; schedule(); });
function widthOf(host) {
  if (host.width === undefined) { host.width = host.clientWidth; widths.observe(host); }
  return host.width;
}
/** A number at an axis; powers of ten, where the axis has them, as such. */
const SMALL = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const tick = (x, log) => (log && (x < 0.01 || x >= 1e4) ? `10${[...String(Math.round(Math.log10(x)))].map((c) => SMALL[c]).join("")}` : format(x));
const valueRow = (i, name, value) => `<tr><td>${swatch(i)} ${safe(name)}</td><td class="v">${value}</td></tr>`;

/** The first tick that is not below: an axis that ends there stays as it is while its lines move a little. */
function nextTick(low, high, count) {
  const found = ticks(low, high, count), step = found[1] - found[0];
  return found.length < 2 || found.at(-1) >= high ? high : found.at(-1) + step;
}
/** Lines [{slot, name, x, y}] in a box of its host's width; a steady one keeps a linear axis, others choose. What is drawn stays readable by pointer and by arrow keys. */
function plot(host, { lines, xlabel, ylabel, label, x: wide, reference = null, floor = null, marks = [], steady = false }) {
  const W = Math.max(180, widthOf(host)), H = Math.round(clamp(W * 0.56, 165, 270));
  const finite = lines.flatMap((l) => [...l.y]).filter((y) => Number.isFinite(y));
  const positive = finite.filter((y) => y > 1e-12);
  const log = !steady && positive.length > 3 && positive.length >= 0.7 * finite.length && Math.max(...positive) > 60 * [...positive].sort((a, b) => a - b)[Math.floor(positive.length / 2)];
  const shown = log ? positive : finite;
  let low = Math.min(...shown, ...(reference === null ? [] : [reference])), high = Math.max(...shown, ...(reference === null ? [] : [reference]));
  if (!shown.length) [low, high] = [0, 1];
  if (log) { low = Math.max(low, high * 1e-7); [low, high] = [low / 1.3, high * 1.3]; } else {
    if (floor !== null) low = Math.min(floor, low);
    const pad = (high - low) * 0.06 || 0.5;
    high += pad; if (low !== floor) low -= pad;
    if (steady) high = nextTick(low, high, 4);
  }
  const yTicks = log ? logTicks(low, high) : ticks(low, high, 4), edge = { left: 12 + 7 * Math.max(1, ...yTicks.map((v) => tick(v, log).length)), right: 12, top: 20, bottom: 34 };
  const f = log ? Math.log : (v) => v;
  const X = (v) => edge.left + ((v - wide[0]) / (wide[1] - wide[0] || 1)) * (W - edge.left - edge.right);
  const Y = (v) => H - edge.bottom - ((f(v) - f(low)) / (f(high) - f(low) || 1)) * (H - edge.top - edge.bottom);
  const inside = (y) => Number.isFinite(y) && (!log || y > 0) && y >= low;
  let out = "";
  for (const v of yTicks) out += `<line class="grid" x1="${edge.left}" x2="${W - edge.right}" y1="${Y(v)}" y2="${Y(v)}"/><text x="${edge.left - 6}" y="${Y(v) + 4}" text-anchor="end">${tick(v, log)}</text>`;
  out += `<line class="axis" x1="${edge.left}" x2="${W - edge.right}" y1="${H - edge.bottom}" y2="${H - edge.bottom}"/>`;
  for (const v of ticks(wide[0], wide[1], clamp(Math.floor(W / 70), 2, 6))) out += `<text x="${X(v)}" y="${H - edge.bottom + 16}" text-anchor="middle">${format(v)}</text>`;
  out += `<text x="2" y="11">${safe(ylabel)}</text><text x="${W - edge.right}" y="${H - 3}" text-anchor="end">${safe(xlabel)}</text>`;
  const [axes, drawn, over] = layers(host, W, H, 3);
  put(axes, out);
  out = "";
  if (reference !== null) out += `<line class="ref" x1="${edge.left}" x2="${W - edge.right}" y1="${Y(reference)}" y2="${Y(reference)}"/>`;
  for (const line of lines) {
    let d = "", pen = "M";
    line.x.forEach((v, i) => { if (!inside(line.y[i])) { pen = "M"; return; } d += `${pen}${X(v).toFixed(1)} ${Y(line.y[i]).toFixed(1)}`; pen = "L"; });
    if (d) out += `<path class="line" d="${d}" stroke="${COLOURS[line.slot]}" stroke-dasharray="${DASHES[line.slot]}"/>`;
  }
  for (const { slot, x, y } of marks) if (inside(y)) out += `<circle class="mark" cx="${X(x).toFixed(1)}" cy="${Y(y).toFixed(1)}" r="4" fill="${COLOURS[slot]}"/>`;
  put(drawn, out);
  put(over, `<line class="guide" y1="${edge.top}" y2="${H - edge.bottom}" visibility="hidden"/>`);
  host.setAttribute("role", "img");
  host.tabIndex = 0;
  host.setAttribute("aria-label", `${label}. Arrow keys read the values.`);
  host.drawn = { lines, X, W, H, xlabel, stops: [...new Set(lines.flatMap((l) => [...l.x]))].sort((a, b) => a - b) };
  if (!host.listens) readable(host);
}
function readable(host) {
  host.listens = true;
  let stop = null;
  const guide = () => find(".guide", host);
  const leave = () => { stop = null; guide()?.setAttribute("visibility", "hidden"); hideTip(); };
  const show = () => {
    const { lines, X, W, H, stops, xlabel } = host.drawn;
    if (stop === null || !stops.length) return leave();
    const x = stops[stop = clamp(stop, 0, stops.length - 1)], box = host.getBoundingClientRect();
    for (const [key, value] of [["x1", X(x)], ["x2", X(x)], ["visibility", "visible"]]) guide().setAttribute(key, value);
    const rows = lines.filter((l) => [...l.x].includes(x)).map((l) => valueRow(l.slot, l.name, format(l.y[[...l.x].indexOf(x)])));
    showTip(`<strong>${safe(xlabel)} ${format(x)}</strong><table>${rows.join("")}</table>`, box.left + (X(x) / W) * box.width, box.top + box.height * 0.5);
  };
  host.addEventListener("pointermove", (event) => {
    const box = host.getBoundingClientRect(), { X, W, stops } = host.drawn, x = ((event.clientX - box.left) / box.width) * W;
    stop = stops.reduce((best, v, i) => (Math.abs(X(v) - x) < Math.abs(X(stops[best]) - x) ? i : best), 0);
    show();
  });
  host.addEventListener("pointerleave", leave);
  host.addEventListener("blur", leave);
  host.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move) { event.preventDefault(); stop = stop === null ? 0 : stop + move; show(); }
    if (event.key === "Escape") leave();
  });
}
