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
    const xTicks = ticks(low - pad, high + pad, clamp(Math.floor((W - left - right) / 55), 2, 5)), labels = axisLabels(xTicks);
    xTicks.forEach((tick, i) => {
      node("line", { class: "grid", x1: X(tick), x2: X(tick), y1: top, y2: H - bottom }, svg);
      node("text", { x: X(tick), y: H - bottom + 16, "text-anchor": "middle" }, svg, labels[i]);
    });
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
        if (side < 22) return; // no room for a number: pointing at the cell tells it
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

