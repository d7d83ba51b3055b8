// --- a sketch of the MDP: states in a row, an arc for each transition, those of marked actions in colour ---------------------------------

function sketch(mdp) {
  const ending = mdp.ends.some((p) => p > 1e-12), places = mdp.S + (ending ? 1 : 0), gap = places > 3 ? 88 : 110, W = gap * places, R = 15;
  let top = -R - 3, bottom = R + 3;
  const X = (i) => gap * (i + 0.5), drawn = new Map();
  const arcs = mdp.P.flatMap((row, z) => {
    const marked = mdp.marked?.[Math.floor(z / mdp.A)] === z % mdp.A;
    const out = row.map(([to, p]) => ({ from: Math.floor(z / mdp.A), to, p, marked }));
    return mdp.ends[z] > 1e-12 ? [...out, { from: Math.floor(z / mdp.A), to: mdp.S, p: mdp.ends[z], marked }] : out;
  }).sort((a, b) => a.marked - b.marked);
  const path = ({ from, to }) => {
    const key = `${from} ${to}`, nth = drawn.get(key) ?? 0, up = to >= from ? -1 : 1;
    drawn.set(key, nth + 1);
    if (from === to) { const s = 13 + 9 * nth; top = Math.min(top, -R - 1.35 * s - 3); return `M${X(from) - 7} ${2 - R}C${X(from) - s} ${-R - 1.7 * s} ${X(from) + s} ${-R - 1.7 * s} ${X(from) + 8} ${-R}`; }
    const [a, b] = [X(from) - up * 9, X(to) + up * 9], bend = (16 + 13 * Math.abs(to - from) + 15 * nth) * up;
    [top, bottom] = [Math.min(top, up * 12 + bend * 0.65 - 3), Math.max(bottom, up * 12 + bend * 0.65 + 3)];
    return `M${a} ${up * 12}Q${(a + b) / 2} ${up * 12 + bend * 1.25} ${b} ${up * 13}`;
  };
  const lines = arcs.map((arc) => `<path d="${path(arc)}" class="${arc.marked ? "marked" : ""}" stroke-width="${(1 + 1.6 * arc.p).toFixed(2)}" marker-end="url(#tip-${arc.marked ? "marked" : "other"})"/>`).join("");
  const state = (i) => `<circle cx="${X(i)}" cy="0" r="${R}"/><text x="${X(i)}" y="4" text-anchor="middle">${safe(mdp.states[i].replace(/[() ]/g, ""))}</text>`;
  const tips = ["marked", "other"].map((name) => `<marker id="tip-${name}" class="${name}" viewBox="0 0 8 8" refX="6.5" refY="4" markerWidth="8" markerHeight="8" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8Z"/></marker>`);
  const end = ending ? `<rect x="${X(mdp.S) - 15}" y="-12" width="30" height="24" rx="3"/><text x="${X(mdp.S)}" y="4" text-anchor="middle">end</text>` : "";
  return `<svg viewBox="0 ${top} ${W} ${bottom - top}" style="width:${W}px" role="img" aria-label="${safe(`Sketch of the MDP: ${mdp.S} states, ${mdp.A} actions. ${mdp.text}`)}"><defs>${tips.join("")}</defs>${lines}${Array.from({ length: mdp.S }, (_, i) => state(i)).join("")}${end}</svg>`;
}
