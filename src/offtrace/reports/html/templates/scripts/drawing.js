// The figures of a report, drawn as SVG from the JSON of the page. No library. A panel is a function that draws itself into a
// box of the width it finds, and answers to the pointer and to the arrow keys through one cursor (`interactive`).
const byName = new Map(data.methods.map((m) => [m.name, m]));
const hidden = new Set();
let against = "";  // the trace that others are compared with, in figures that compare
const redraws = [];

// --- small things -----------------------------------------------------------------------------------------------------

function node(tag, attributes = {}, parent = null, text = null) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}
const given = (x) => x !== null && x !== undefined;
/** Numbers at an axis, with as many digits as it takes to tell them apart. */
function axisLabels(values) {
  for (let digits = 4; ; digits++) {
    const labels = values.map((x) => format(x, digits));
    if (digits === 12 || new Set(labels).size === labels.length) return labels;
  }
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

