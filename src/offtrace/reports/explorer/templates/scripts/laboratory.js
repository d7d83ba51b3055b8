// --- on an MDP: a worker computes, the page shows what has come in --------------------------------------------------------------

const LAMBDAS = [0, 1, 0.5, 0.25, 0.75, 0.1, 0.9, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8, 0.05, 0.95, 0.15, 0.85, 0.35, 0.65, 0.45, 0.55];
const STEPS = 40;
const results = new Map();
let waiting = [], busy = null, worker = null;

/** A worker of the engine's own lines; where there are none, the page computes between two frames. */
function hire() {
  const text = `${find("#engine").textContent}\nonmessage = ({ data }) => postMessage(engine.compute(data));`;
  try {
    worker = new Worker(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
    worker.onmessage = ({ data }) => arrived(data);
    worker.onerror = (event) => { event.preventDefault(); worker = null; if (busy) ask(busy); };
  } catch { worker = null; }
}
function ask(job) {
  busy = job;
  if (worker) worker.postMessage(job.work);
  else setTimeout(() => arrived(engine.compute(job.work)), 0);
}
function arrived(result) {
  results.set(busy.key, result);
  if (results.size > 4000) results.delete(results.keys().next().value);
  const { kind } = busy.work;
  busy = null;
  next();
  if (kind === "point" && busy) drawSoon();
  else requestDraw();
}
let soon = 0;
/** Curves grow some times a second: to draw a frame takes longer than to compute a point. */
function drawSoon() { soon ||= setTimeout(() => { soon = 0; requestDraw(); }, 150); }
function next() {
  while (!busy && waiting.length) {
    const job = waiting.shift();
    if (!results.has(job.key)) ask(job);
  }
  const open = [busy, ...waiting].filter(Boolean), marks = document.documentElement.dataset;
  marks.known = String(!open.some(({ work }) => work.kind !== "point"));  // the tables are whole; curves may still grow
  marks.settled = String(!open.length);
}
/** The jobs of the present state: first the rules as they are, then control, then λ from coarse to fine. */
function jobs() {
  const mdp = MDPS.get(state.mdp), [pi, mu] = policies(), made = [];
  const add = (kind, described, extra = {}) => {
    const key = JSON.stringify([kind, described.name, Object.entries(described.numbers).map(([k, v]) => [k, spelled(v)]), described.own, state.mdp, state.p, state.m, state.gamma]);
    made.push({ key, work: { kind, rule: described, mdp, pi, mu, gamma: state.gamma, ...extra } });
    return key;
  };
  const slots = state.rules.map(ready).map(({ described }) => described);
  const shown = slots.map((d) => d && { all: add("all", d) });
  if (!mdp.still) slots.forEach((d, i) => { if (d) shown[i].control = add("control", d, { n: STEPS }); });
  for (const lam of LAMBDAS) slots.forEach((d, i) => {
    if (!d || !("lam" in d.numbers)) return;
    (shown[i].curve ??= []).push([lam, add("point", { ...d, numbers: { ...d.numbers, lam } })]);
  });
  return { made, shown };
}
let shownJobs = [];
function refreshLaboratory() {
  const { made, shown } = jobs();
  shownJobs = shown;
  waiting = made.filter(({ key }) => !results.has(key));
  next();
}
const OPERATOR = [["contraction", "‖Z‖"], ["radius", "spectral radius"], ["magnitude", "E Σγ^tβ"], ["variance", "variance"]];
function verdict({ contraction, radius }) {
  const edge = (x) => Math.abs(x - 1) < 1e-9;
  if (edge(radius)) return "at the edge";
  return radius > 1 ? "diverges" : contraction < 1 - 1e-9 ? "contracts" : edge(contraction) ? "converges, at the edge" : "converges, though it expands";
}
function historyOf(condition, mdp, bound) {
  if (condition.holds) return "<b>holds</b>";
  if (condition.holds === null) return `not violated by ${condition.tried.toLocaleString("en")} histories of up to ${condition.lag} steps; not proved`;
  const path = condition.pairs.map(([s, a]) => `(${safe(mdp.states[s])}, ${safe(mdp.actions[a])})`), shown = path.length > 6 ? [...path.slice(0, 3), "…", ...path.slice(-2)] : path;
  return `<b>fails</b> on ${shown.join(" → ")}: β<sub>${path.length - 1}</sub> = ${format(condition.beta)} > ${format(condition.bound)} = ${bound}`;
}
function drawLaboratory() {
  const mdp = MDPS.get(state.mdp), name = (i) => FACTS.get(state.rules[i].name).title;
  put(find("#operators thead"), `<tr><th class="t" scope="col">rule</th><th scope="col">iterating M</th>${OPERATOR.map(([, title]) => `<th scope="col">${formula(title)}</th>`).join("")}</tr>`);
  put(find("#conditions thead"), `<tr><th class="t" scope="col">for every history</th><th class="t" scope="col">${formula("recursive condition, β_t ≤ β_{t−1} ρ_t")}</th><th class="t" scope="col">${formula("product condition, β_t ≤ ∏ρ")}</th></tr>`);
  put(find("#conditions tbody"), state.rules.map((slot, i) => {
    const found = shownJobs[i] && results.get(shownJobs[i].all), [recursive, product] = [found?.recursive, found?.product];
    const cells = recursive ? [[recursive, formula("β_{t−1} ρ_t")], [product, "∏ρ"]].map(([c, bound]) => `<td class="history" data-holds="${c.holds}">${historyOf(c, mdp, bound)}</td>`) : [`<td class="history" colspan="2">${found ? "–" : "…"}</td>`];
    return `<tr>${nameCell(slot, i)}${cells.join("")}</tr>`;
  }).join(""));
  put(find("#operators tbody"), state.rules.map((slot, i) => {
    const found = shownJobs[i] ? results.get(shownJobs[i].all) : { failed: "see the fields of your own rule" };
    if (!found || found.failed) return `<tr>${nameCell(slot, i)}<td class="history" colspan="5">${found ? safe(found.failed) : "…"}</td></tr>`;
    const unsure = found.radiusTop > 1.001 * found.radius + 1e-9, rest = `below ${format(Number(found.radiusTop.toPrecision(1)) * 2)}`;
    const numbers = OPERATOR.map(([key]) => cell(found[key], (key === "contraction" || key === "radius") && found[key] > 1 + 1e-9 ? "over" : "", key === "radius" && unsure ? rest : null)).join("");
    return `<tr>${nameCell(slot, i)}<td class="${found.radius > 1 + 1e-9 ? "over" : ""}">${verdict(found)}</td>${numbers}</tr>`;
  }).join(""));
  for (const [key, title] of OPERATOR.filter(([key]) => key !== "magnitude")) {
    const lines = [], marks = [];
    shownJobs.forEach((jobs, i) => {
      const now = jobs && results.get(jobs.all);
      if (!jobs) return;
      const { lam } = state.rules[i].numbers;
      if (!jobs.curve) { if (now && key in now) lines.push({ slot: i, name: name(i), x: [0, 1], y: [now[key], now[key]] }); return; }
      const points = jobs.curve.map(([at, job]) => [at, results.get(job)?.[key]]).filter(([, y]) => y !== undefined).sort((a, b) => a[0] - b[0]);
      lines.push({ slot: i, name: name(i), x: points.map((p) => p[0]), y: points.map((p) => p[1]) });
      if (now && key in now) marks.push({ slot: i, x: lam, y: now[key] });
    });
    plot(find(`#curve-${key}`), { lines, marks, x: [0, 1], xlabel: "λ", ylabel: title, label: `${title} over λ`, floor: 0, reference: key === "variance" ? null : 1 });
  }
  find("#control-panel").hidden = Boolean(mdp.still);
  if (!mdp.still) {
    const lines = shownJobs.flatMap((jobs, i) => { const found = jobs && results.get(jobs.control); return found?.errors ? [{ slot: i, name: name(i), x: found.errors.map((_, k) => k), y: found.errors }] : []; });
    plot(find("#control"), { lines, x: [0, STEPS], xlabel: "k", ylabel: "‖Qₖ − Q*‖", label: "Distance to Q* over applications", floor: 0 });
  }
}
