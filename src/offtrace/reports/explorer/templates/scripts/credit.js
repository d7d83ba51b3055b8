// --- one trajectory: the ratios, the maps, two curves, the measures ----------------------------------------------------------------

const LOWEST = 1 / 16;
let chosen = 0, cursor = null, credits = [];

function heights(height) {
  const top = Math.max(1.3, Math.min(1 / state.mu, 16)), a = Math.log2(LOWEST), b = Math.log2(top);
  const room = height - 34;
  return {
    top,
    Y: (r) => 10 + room * (1 - (Math.log2(Math.max(r, LOWEST)) - a) / (b - a)),
    R: (y) => { const r = 2 ** (a + (1 - (y - 10) / room) * (b - a)); return r < LOWEST * 1.04 ? 0 : Math.min(short(r), top, 1 / state.mu); },
  };
}
function drawRatios() {
  const host = find("#ratios"), W = Math.max(260, widthOf(host)), H = 150, { Y, top } = heights(H), left = 34, step = (W - left) / state.T;
  let out = "";
  for (const r of [LOWEST, 0.25, 0.5, 1, 2, 4, 8, 16]) if (r <= top * 1.001) {
    out += `<line class="${r === 1 ? "axis" : "grid"}" x1="${left}" x2="${W}" y1="${Y(r)}" y2="${Y(r)}"/><text x="${left - 5}" y="${Y(r) + 4}" text-anchor="end">${r === LOWEST ? "0" : r === 0.25 ? "¼" : r === 0.5 ? "½" : r}</text>`;
  }
  const every = state.T * 18 < W ? 4 : 8;
  for (let t = 0; t < state.T; t += every) out += `<text x="${left + (t + 0.5) * step}" y="${H - 4}" text-anchor="middle">${t}</text>`;
  out += `<text x="0" y="${H - 4}">ρ, t</text>`;
  const [axes, above] = layers(host, W, H, 2);
  put(axes, out);
  put(above, '<rect rx="1.5"/>'.repeat(state.T));
  const one = Y(1), width = Math.max(2, step * 0.72), focused = document.activeElement === host;
  state.rho.forEach((r, t) => {
    const y = Y(r), bar = above.children[t], kind = (r > 1 ? "up" : "down") + (t === chosen && focused ? " chosen" : ""), now = `${kind} ${y} ${one} ${step}`;
    if (bar.written === now) return;
    bar.written = now;
    bar.setAttribute("class", kind);
    bar.setAttribute("x", (left + t * step + (step - width) / 2).toFixed(1));
    bar.setAttribute("width", width.toFixed(1));
    bar.setAttribute("y", Math.min(y, one).toFixed(1));
    bar.setAttribute("height", Math.max(1.5, Math.abs(y - one)).toFixed(1));
  });
  host.geometry = { left, step, W, H };
  host.setAttribute("aria-valuemin", "0");
  host.setAttribute("aria-valuemax", String(short(1 / state.mu)));
  host.setAttribute("aria-valuenow", String(state.rho[chosen]));
  host.setAttribute("aria-valuetext", `step ${chosen} of ${state.T}, ρ = ${format(state.rho[chosen])}`);
}
function ratiosListen() {
  const host = find("#ratios");
  const at = (event) => {
    const box = host.getBoundingClientRect(), { left, step, W, H } = host.geometry, k = W / box.width;
    return [clamp(Math.floor(((event.clientX - box.left) * k - left) / step), 0, state.T - 1), heights(H).R((event.clientY - box.top) * (H / box.height))];
  };
  const set = (t, r) => { chosen = t; state.rho[t] = clamp(r, 0, 1 / state.mu); changed({ mdp: false, inputs: false }); };
  let last = null;
  host.addEventListener("pointerdown", (event) => { host.setPointerCapture(event.pointerId); host.focus({ preventScroll: true }); last = at(event); set(...last); event.preventDefault(); });
  host.addEventListener("pointermove", (event) => {
    if (last === null || !host.hasPointerCapture(event.pointerId)) return;
    const now = at(event), [from, to] = [Math.min(last[0], now[0]), Math.max(last[0], now[0])];
    for (let t = from; t <= to; t++) state.rho[t] = clamp(now[1], 0, 1 / state.mu);  // a fast drag skips no step
    last = now;
    set(...now);
  });
  for (const end of ["pointerup", "pointercancel"]) host.addEventListener(end, () => { last = null; });
  for (const kind of ["focus", "blur"]) host.addEventListener(kind, drawRatios);
  host.addEventListener("keydown", (event) => {
    const r = state.rho[chosen], quarter = 2 ** 0.25, up = r === 0 ? LOWEST * 1.1 : r * quarter;
    const next = { ArrowUp: up, ArrowDown: r / quarter < LOWEST ? 0 : r / quarter, PageUp: up * 2, PageDown: r / 4 < LOWEST ? 0 : r / 4, 0: 0, 1: 1 }[event.key];
    const go = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1, Home: 0, End: state.T - 1 }[event.key];
    if (next !== undefined) set(chosen, next === 0 ? 0 : short(next));
    else if (go !== undefined) { chosen = clamp(go, 0, state.T - 1); changed({ mdp: false, inputs: false }); } else return;
    event.preventDefault();
  });
}

/** β of each slot, and what it says. */
function computeCredits() {
  const pi = pis(), mu = state.rho.map(() => state.mu);
  credits = state.rules.map((slot, i) => {
    const { rule, wrong } = ready(slot);
    if (wrong) return { wrong };
    const form = engine.factorsOf(rule, pi, mu, state.rho);
    if (form.wrong) return { wrong: `${form.wrong.name} is ${format(form.wrong.value)} at ρ = ${format(form.wrong.rho)}, π = ${format(form.wrong.pi)}, μ = ${format(form.wrong.mu)}: it must be a number of at least 0`, part: form.wrong.name };
    const beta = engine.coefficients(rule, form, credits[i]?.beta);
    return { beta, ...engine.diagnose(beta, state.T, state.gamma) };
  });
}
const rgb = (name) => { const c = html("canvas", { width: 1, height: 1 }).getContext("2d"); c.fillStyle = getComputedStyle(find(`#probe-${name}`)).color; c.fillRect(0, 0, 1, 1); return [...c.getImageData(0, 0, 1, 1).data]; };
let palette = null;
/** 256 colours for β in [0, 1] and 256 for log₂β in [0, 4], of the theme that is on. */
function colours() {
  if (palette) return palette;
  const [grid, blue, orange] = ["grid", "m0", "m1"].map(rgb), mix = (a, b, t) => a.map((x, i) => Math.round(x + (b[i] - x) * t));
  const of = (f) => Uint32Array.from({ length: 256 }, (_, i) => { const [r, g, b] = f(i / 255); return (255 << 24) | (b << 16) | (g << 8) | r; });
  return (palette = { below: of((t) => mix(grid, blue, t ** 0.7)), above: of((t) => mix(grid, orange, 0.45 + 0.55 * t)) });
}
function drawMaps() {
  const into = find(".maps"), { below, above } = colours(), T = state.T;
  while (into.children.length > state.rules.length) into.lastChild.remove();
  state.rules.forEach((slot, i) => {
    const map = into.children[i] ?? newMap(into, i), { beta, wrong } = credits[i], canvas = find("canvas", map);
    put(find("h3", map), `${swatch(i)} <span>${safe(FACTS.get(slot.name).title)}</span>`);
    const field = find(".field", map), complaint = find("p", map);
    field.setAttribute("aria-label", `β of ${labelOf(slot)}, ${T} starts by ${T} steps. Arrow keys read the values.`);
    complaint.textContent = wrong ?? "";
    if (canvas.width !== T) canvas.width = canvas.height = T;
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, T, T);
    if (!beta) return;
    const image = context.createImageData(T, T), pixels = new Uint32Array(image.data.buffer);
    for (let k = 0; k < T; k++) for (let t = k; t < T; t++) {
      const b = beta[k * T + t];
      pixels[k * T + t] = b <= 1.0000000001 ? below[Math.round(255 * Math.min(1, b))] : above[Math.round(255 * Math.min(1, Math.log2(b) / 4))];
    }
    context.putImageData(image, 0, 0);
    const at = find(".at", map);
    at.hidden = !cursor;
    if (cursor) Object.assign(at.style, { left: `${(100 * cursor.t) / T}%`, top: `${(100 * cursor.k) / T}%`, width: `${100 / T}%`, height: `${100 / T}%` });
  });
}
function newMap(into, i) {
  const map = html("div", { className: "map" }, into);
  html("h3", {}, map);
  const field = html("div", { className: "field", tabIndex: 0 }, map);
  field.setAttribute("role", "img");
  html("canvas", {}, field);
  html("div", { className: "at", hidden: true }, field);
  html("p", {}, field);
  const go = (k, t, x, y) => {
    const T = state.T;
    cursor = { k: clamp(k, 0, T - 1), t: clamp(t, 0, T - 1) };
    if (cursor.t < cursor.k) cursor = null;
    drawMaps();
    if (!cursor) return hideTip();
    const rows = state.rules.map((slot, j) => valueRow(j, FACTS.get(slot.name).title, credits[j].beta ? format(credits[j].beta[cursor.k * T + cursor.t]) : "–"));
    return showTip(`<strong>start ${cursor.k}, step ${cursor.t}: ρ = ${format(state.rho[cursor.t])}</strong><table>${rows.join("")}</table>`, x, y);
  };
  const leave = () => { cursor = null; drawMaps(); hideTip(); };
  field.addEventListener("pointermove", (event) => {
    const box = field.getBoundingClientRect(), T = state.T;
    go(Math.floor(((event.clientY - box.top) / box.height) * T), Math.floor(((event.clientX - box.left) / box.width) * T), event.clientX, event.clientY);
  });
  field.addEventListener("pointerleave", leave);
  field.addEventListener("blur", leave);
  field.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Escape") leave();
    if (!move) return;
    event.preventDefault();
    const was = cursor ?? { k: 0, t: 0 }, box = field.getBoundingClientRect();
    const k = clamp(was.k + (cursor ? move[0] : 0), 0, state.T - 1), t = clamp(Math.max(k, was.t + (cursor ? move[1] : 0)), 0, state.T - 1);
    go(k, t, box.left + (box.width * t) / state.T, box.top + (box.height * k) / state.T);
  });
  return map;
}
const MEASURES = [["magnitude", "Σγ^tβ, mean"], ["largest_magnitude", "Σγ^tβ, largest"], ["horizon", "reach"], ["cut", "share cut"], ["largest", "largest β"], ["effective", "effective starts"]];
const cell = (value, kind = "", text = null) => `<td class="${kind}" data-v="${value}">${text ?? format(value)}</td>`;
const nameCell = (slot, i) => `<th scope="row">${swatch(i)} ${safe(labelOf(slot))}</th>`;
function drawCredits() {
  drawMaps();
  const lines = (of, x) => state.rules.flatMap((slot, i) => (credits[i].beta ? [{ slot: i, name: FACTS.get(slot.name).title, x, y: of(credits[i]) }] : []));
  const steps = Array.from({ length: state.T }, (_, t) => t), wide = [0, state.T - 1];
  plot(find("#by-lag"), { lines: lines((c) => c.byLag, steps), x: wide, xlabel: "lag", ylabel: "mean β", label: "Mean of β by lag", floor: 0, steady: true });
  plot(find("#by-start"), { lines: lines((c) => c.sums, steps), x: wide, xlabel: "start", ylabel: "Σγᵗβ", label: "Sum of discounted β by start", floor: 0, steady: true });
  put(find("#measures thead"), `<tr><th class="t" scope="col">rule</th>${MEASURES.map(([, title]) => `<th scope="col">${formula(title)}</th>`).join("")}</tr>`);
  const rows = state.rules.map((slot, i) => `<tr>${nameCell(slot, i)}${credits[i].beta ? MEASURES.map(([name]) => cell(credits[i][name])).join("") : `<td class="history" colspan="6">${safe(credits[i].wrong)}</td>`}</tr>`).join("");
  put(find("#measures tbody"), rows);
}
