// --- lines: learning curves, sweeps, ages; and points, for the contraction–variance map ------------------------------------

let clips = 0;
function frame(svg, W, H, x, y, options) {
  const yTicks = options.ylog ? logTicks(...y, 5) : ticks(...y, 5), yLabels = axisLabels(yTicks);
  const edge = { left: 12 + 7 * Math.max(...yLabels.map((label) => label.length)), right: 16, top: 22, bottom: 36 };
  const X = scale(...x, edge.left, W - edge.right, options.xlog), Y = scale(...y, H - edge.bottom, edge.top, options.ylog);
  svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
  yTicks.forEach((tick, i) => {
    node("line", { class: "grid", x1: edge.left, x2: W - edge.right, y1: Y(tick), y2: Y(tick) }, svg);
    node("text", { x: edge.left - 6, y: Y(tick) + 4, "text-anchor": "end" }, svg, yLabels[i]);
  });
  node("line", { class: "axis", x1: edge.left, x2: W - edge.right, y1: H - edge.bottom, y2: H - edge.bottom }, svg);
  const xTicks = options.xlog ? logTicks(...x, 5) : ticks(...x, clamp(Math.floor(W / 75), 3, 6)), xLabels = axisLabels(xTicks);
  xTicks.forEach((tick, i) => {
    node("line", { class: "axis", x1: X(tick), x2: X(tick), y1: H - edge.bottom, y2: H - edge.bottom + 4 }, svg);
    const room = 3.4 * xLabels[i].length;  // half of the label: at the right edge it must not be cut
    const anchor = X(tick) + room > W ? "end" : "middle";
    node("text", { x: anchor === "end" ? W : X(tick), y: H - edge.bottom + 17, "text-anchor": anchor }, svg, xLabels[i]);
  });
  node("text", { x: 2, y: 11 }, svg, options.ylabel);
  node("text", { x: W - edge.right, y: H - 3, "text-anchor": "end" }, svg, options.xlabel);
  const id = `clip${clips++}`;
  node("rect", { x: edge.left - 6, y: edge.top - 4, width: W - edge.left - edge.right + 12, height: H - edge.top - edge.bottom + 5 },
    node("clipPath", { id }, node("defs", {}, svg)));
  const box = { left: edge.left, right: W - edge.right, top: edge.top, bottom: H - edge.bottom };
  return { X, Y, edge, box, area: node("g", { "clip-path": `url(#${id})` }, svg) };
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
// Lines less the one of a chosen trace, with intervals as if runs were independent: ± √(a² + b²) of the two half-widths.
function lessOf(chosen, found) {
  const own = found.find((line) => line.method === chosen);
  if (!own) return found;
  const of = (line, x) => (line.level ? 0 : line.x.indexOf(x));
  const half = (line, i) => (given(line.low[i]) && given(line.high[i]) ? (line.high[i] - line.low[i]) / 2 : null);
  return found.filter((line) => line !== own).map((line) => {
    const x = line.level ? own.x : line.x, y = [], low = [], high = [];
    for (const each of x) {
      const i = of(line, each), j = of(own, each), known = given(line.y[i]) && given(own.y[j]);
      const gap = known ? line.y[i] - own.y[j] : null, [a, b] = [half(line, i), half(own, j)];
      y.push(gap);
      low.push(known && given(a) && given(b) ? gap - Math.hypot(a, b) : null);
      high.push(known && given(a) && given(b) ? gap + Math.hypot(a, b) : null);
    }
    return { ...line, x, y, low, high, level: line.level && own.level };
  });
}
function lines(source, given_options) {
  return (svg, W) => {
    const H = Math.round(clamp(W * 0.6, 215, 400)), everything = source();
    const less = given_options.compares && against && everything.some((line) => line.method === against);
    const options = less ? { ...given_options, reference: 0, ylabel: `${given_options.ylabel}, less ${against}` } : given_options;
    const shown = (less ? lessOf(against, everything) : everything).filter((line) => !hidden.has(line.method));
    const sloped = shown.filter((line) => !line.level);
    const xs = [...new Set(sloped.flatMap((line) => line.x))].sort((a, b) => a - b);
    if (!xs.length) return nothing(svg, W, H);
    const wide = xs.length > 1 ? [xs[0], xs.at(-1)] : [xs[0] - 0.5, xs[0] + 0.5];
    const high = options.domain || body([...shown.flatMap((line) => [...line.y, ...line.low, ...line.high]), options.reference], options.ylog);
    const { X, Y, edge, box, area } = frame(svg, W, H, wide, high, options);
    if (given(options.reference)) node("line", { class: "ref", x1: edge.left, x2: W - edge.right, y1: Y(options.reference), y2: Y(options.reference) }, svg);
    for (const line of shown.filter((line) => line.level)) [line.x, line.y, line.low, line.high] = [wide, ...["y", "low", "high"].map((k) => [line[k][0], line[k].at(-1)])];
    if (options.bands !== false) for (const line of shown) node("path", { class: "band", d: band(line, X, Y), fill: colour(line.method) }, group(area, line));
    for (const line of shown) {
      const into = group(area, line);
      node("path", { class: "line", d: path(line, X, Y), stroke: colour(line.method), "stroke-dasharray": dash(line.method) }, into);
      const every = Math.ceil(line.x.length / 9), start = line.x.length > 20 ? styleOf(line.method) % every : 0;
      for (let i = start; i < line.x.length; i += every) if (given(line.y[i])) mark(into, line.method, X(line.x[i]), Y(line.y[i]));
    }
    for (const line of shown) leaving(svg, line, { X, Y, box });
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
/** A triangle at the edge where a line leaves its panel, or comes back. */
function leaving(svg, line, { X, Y, box }) {
  const at = (i) => given(line.x[i]) && given(line.y[i]) && [X(line.x[i]), Y(line.y[i])];
  for (let i = 1; i < line.x.length; i++) {
    const [a, b] = [at(i - 1), at(i)];
    if (!a || !b) continue;
    for (const [way, edge, sign, turn] of [[0, box.left, -1, 90], [0, box.right, 1, -90], [1, box.top, -1, 180], [1, box.bottom, 1, 0]]) {
      const outside = [a, b].map((point) => sign * (point[way] - edge));
      if (Math.max(...outside) < 0.5 || Math.min(...outside) >= 0) continue;
      const [x, y] = a.map((from, k) => from + ((edge - a[way]) / (b[way] - a[way])) * (b[k] - from));
      if (x < box.left - 1 || x > box.right + 1 || y < box.top - 1 || y > box.bottom + 1) continue;
      node("path", { class: "leaves series", "data-method": line.method, d: "M-5 -3H5L0 5Z", fill: colour(line.method), transform: `translate(${x.toFixed(1)} ${y.toFixed(1)}) rotate(${turn})` }, svg);
    }
  }
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
    const { X, Y, box, area } = frame(svg, W, H, body(stops.map((p) => p.x), false), body(stops.map((p) => p.y), ylog), { ylog, xlabel: "contraction (0 fastest)", ylabel: "variance" });
    for (const cloud of shown) {
      const into = group(area, cloud);
      node("path", { class: "line", d: path(cloud, X, Y), stroke: colour(cloud.method), "stroke-dasharray": dash(cloud.method) }, into);
      cloud.x.forEach((x, i) => given(x) && given(cloud.y[i]) && mark(into, cloud.method, X(x), Y(cloud.y[i]), 0.8 + (0.9 * i) / Math.max(1, cloud.x.length - 1)));
    }
    for (const cloud of shown) leaving(svg, cloud, { X, Y, box });
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

