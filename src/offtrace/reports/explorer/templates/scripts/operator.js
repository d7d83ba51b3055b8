// --- the operator on a small MDP: C = Σγ^tK_t, Z = I − C(I − γP_π). Arrays are over live pairs z = s·A + a; what is left of a row of P ends ---

const EPS = 2 ** -52, MOST = 300000, FINE = 1e-12;

function settingOf(rule, mdp, pi, mu, gamma) {
  const n = mdp.S * mdp.A, took = mu.map((m) => m > 0);
  const rho = pi.map((p, z) => (took[z] ? p / mu[z] : 0));
  if (rule.greedy && pi.some((p) => p > 0 && p < 1)) return { failed: "needs a greedy target: let π take the marked action with probability 1" };
  const form = factorsOf(rule, pi, mu.map((m, z) => (took[z] ? m : 1)), rho);
  if (form.wrong && took.some((t, z) => t && [form.decay[z], form.ratio[z], form.cap[z]].some((f) => !(f >= 0)))) {
    return { failed: "its factors are no numbers of at least 0 here", wrong: form.wrong };
  }
  for (const name of ["decay", "ratio", "cap"]) form[name] = form[name].map((f, z) => (took[z] ? f : 0));
  const evaluated = pi.map((p, z) => form.share * p + (1 - form.share) * mu[z]);
  const capped = form.cap.some((c, z) => took[z] && c < Infinity);
  const perDecision = !rule.lags && (rule.perDecision || !capped);
  const ends = rule.lags && rule.lags.at(-1) === 0 ? rule.lags.reduce((last, d, i) => (d > 0 ? i + 1 : last), 0) + 1 : Infinity;
  const dead = !took.some((t, z) => t && form.decay[z] > 0 && form.ratio[z] > 0 && form.cap[z] > 0);
  const setting = { rule, mdp, n, S: mdp.S, A: mdp.A, gamma, pi, mu, rho, took, evaluated, perDecision, ...form, horizon: dead ? 1 : ends };
  setting.targetRho = evaluated.map((e, z) => (took[z] ? e / mu[z] : 0));
  const oneStep = took.every((t, z) => !t || form.decay[z] * form.ratio[z] <= setting.targetRho[z] * (1 + 8 * EPS));
  setting.plain = { product: oneStep || setting.horizon === 1, recursive: setting.horizon === 1 || (oneStep && !rule.lags && (perDecision || rule.recursive)) };
  return setting;
}
/** P[z, s'] · weight[s', a'], over pairs. */
function ontoPairs(s, weight, factor = 1) {
  const made = zeros(s.n);
  for (let z = 0; z < s.n; z++) for (const [to, p] of s.mdp.P[z]) for (let a = 0; a < s.A; a++) made[z][to * s.A + a] = factor * p * weight[to * s.A + a];
  return made;
}
/** The transitions as flat arrays, which inner loops go through: those of pair z are from[z] … from[z + 1] − 1. */
function edgesOf(s, δ) {
  const from = [0], to = [], p = [], pd = [];
  for (let z = 0; z < s.n; z++) {
    s.mdp.P[z].forEach(([state, chance], i) => { to.push(state); p.push(chance); pd.push(δ.carried[z][i][1]); });
    from.push(to.length);
  }
  return { from: Int32Array.from(from), to: Int32Array.from(to), p: Float64Array.from(p), pd: Float64Array.from(pd) };
}
/** δ = r + γv(s') − q by transition: its mean, its square's mean, and P·δ, which leads on to a state. */
function differences(s, Q) {
  const value = new Float64Array(s.S);
  for (let z = 0; z < s.n; z++) value[Math.floor(z / s.A)] += s.evaluated[z] * Q[z];
  const mean = new Float64Array(s.n), square = new Float64Array(s.n);
  const carried = s.mdp.P.map((row, z) => {
    const ended = s.mdp.R[z] - Q[z], left = s.mdp.ends[z];
    mean[z] = left * ended; square[z] = left * ended ** 2;
    return row.map(([to, p]) => {
      const d = s.mdp.R[z] + s.gamma * value[to] - Q[z];
      mean[z] += p * d; square[z] += p * d * d;
      return [to, p * d];
    });
  });
  return { mean, square, carried };
}
const along = (row, values) => row.reduce((total, [to, p]) => total + p * values[to], 0);

/** Per-decision rules: C = (I − γP_{cμ})⁻¹, c = decay · ratio, and the variance by second moments. */
function closedForm(s, δ) {
  const c = s.decay.map((d, z) => d * s.ratio[z]);
  const G = ontoPairs(s, s.mu.map((m, z) => m * c[z]), s.gamma), C = resolvent(G, identity(s.n));
  if (!C) return { failed: "Σγ^tβ has an infinite mean here: there is no operator" };
  const m = times(C, [...δ.mean].map((x) => [x])).map((row) => row[0]);
  const first = new Float64Array(s.S), second = new Float64Array(s.S);
  for (let z = 0; z < s.n; z++) {
    first[Math.floor(z / s.A)] += s.mu[z] * c[z] * m[z];
    second[Math.floor(z / s.A)] += s.mu[z] * (c[z] * m[z]) ** 2;
  }
  const size = s.mdp.P.map((row, z) => δ.square[z] + s.gamma ** 2 * along(row, second));
  const w = size.map((x, z) => x + 2 * s.gamma * along(δ.carried[z], first) - m[z] ** 2).map((x, z) => (x > 1e-13 * (size[z] + m[z] ** 2) ? x : 0));
  return { C, variance: [...spreadOut(ontoPairs(s, s.mu.map((x, z) => x * c[z] ** 2), s.gamma ** 2), w)], method: "closed form" };
}
/** v = w + Gv, infinite where a class of pairs whose radius is 1 or more can be reached and reaches some w > 0. */
function spreadOut(G, w) {
  const n = w.length;
  let reach = G.map((row, i) => Array.from(row, (x, j) => x > 0 || i === j));
  for (let k = 0; k < n; k++) for (let i = 0; i < n; i++) if (reach[i][k]) for (let j = 0; j < n; j++) if (reach[k][j]) reach[i][j] = true;
  const feeds = w.map((_, i) => w.some((x, j) => x > 0 && reach[i][j]));
  const bad = w.map((_, i) => {
    const group = w.map((_, j) => j).filter((j) => reach[i][j] && reach[j][i]);
    return feeds[i] && radius(group.map((a) => group.map((b) => G[a][b]))) >= 1 - 1e-12;
  });
  const infinite = w.map((_, i) => bad.some((b, j) => b && reach[i][j]));
  const inner = w.map((_, i) => i).filter((i) => feeds[i] && !infinite[i]);
  const v = w.map((_, i) => (infinite[i] ? Infinity : 0));
  if (inner.length) {
    const found = resolvent(inner.map((i) => inner.map((j) => G[i][j])), inner.map((i) => [w[i]]));
    inner.forEach((i, k) => { v[i] = found ? found[k][0] : Infinity; });
  }
  return v;
}

/** The values of x at each lag after a start at `first`, equal ones merged: level by level, and where each step leads to.
    −1 is nowhere (x = 0), −2 beyond the range that is followed, −3 − r the r-th cap: a trace that is clipped there begins anew. */
function levelsFrom(s, first, caps, lags, top) {
  const kinds = new Map(), kind = s.ratio.map((ratio, z) => {
    if (!s.took[z]) return -1;
    const cap = s.rule.recursive ? s.cap[z] : Infinity, key = `${ratio} ${cap}`;
    if (!kinds.has(key)) kinds.set(key, { index: kinds.size, ratio, cap });
    return kinds.get(key).index;
  });
  const ways = [...kinds.values()], K = ways.length, levels = [];
  let x = [first], nodes = 1;
  for (let lag = 0; lag < lags && x.length; lag++) {
    const after = [], next = new Int32Array(x.length * K), place = new Int32Array(K);  // x ascends, and so does each ratio · x: they are merged
    for (let left = x.length * K; left > 0; left--) {
      let least = Infinity, k = 0;
      for (let i = 0; i < K; i++) if (place[i] < x.length && !(x[place[i]] * ways[i].ratio >= least)) { least = x[place[i]] * ways[i].ratio; k = i; }
      const at = place[k]++ * K + k;
      if (least >= ways[k].cap) next[at] = ways[k].cap > 0 ? -3 - caps.indexOf(ways[k].cap) : -1;
      else if (least > 1e-13 && least < top) {
        if (!(least <= after.at(-1) * (1 + 1e-11))) after.push(least);
        next[at] = after.length - 1;
      } else next[at] = least > 0 ? -2 : -1;
    }
    levels.push({ x, next });
    x = after;
    nodes += x.length;
    if (nodes > MOST) return null;
  }
  return { levels, kind, K };
}
/** Rules with caps, on a range of x that is wide enough. */
function chain(s, δ) {
  const narrow = chainBelow(s, δ, 1e13);
  return narrow.lost ? chainBelow(s, δ, 1e300) : narrow;
}
/** H(s, x) = Σ_a μ decay [read + γ Σ P H(s', x')], backward over the levels; a clipped trace goes on as every other
    that is clipped at the same cap, so that these values W are the unknowns of one small linear system. */
function chainBelow(s, δ, top) {
  const strength = Math.max(...s.decay.filter((_, z) => s.took[z])), rate = s.gamma * Math.min(1, strength);
  let lags = s.horizon < Infinity ? s.horizon - 1 : rate > 0 ? Math.ceil(Math.log(FINE * (1 - rate)) / Math.log(rate)) : 1;
  lags = Math.max(0, Math.min(lags, 4000));
  const caps = s.rule.recursive ? [...new Set(s.cap.filter((c, z) => s.took[z] && c > 0 && c < Infinity))] : [];
  const starts = caps.map((first) => levelsFrom(s, first, caps, lags, top));
  starts.push(caps.includes(1) ? starts[caps.indexOf(1)] : levelsFrom(s, 1, caps, lags, top));
  if (starts.includes(null)) return { failed: `more than ${MOST.toLocaleString("en")} products of ratios do not merge: operators.certify bounds it` };
  const { n, S, gamma } = s, U = caps.length * S, M = n, E = n + 1;
  const once = (make) => { const done = new Map(); return starts.map((start) => done.get(start) ?? (done.set(start, make(start)), done.get(start))); };
  const roots = once((start) => linear(s, δ, start, U));
  let W = [], V = [];
  if (U) {
    const rows = roots.slice(0, -1).flat();
    W = resolvent(rows.map((row) => row.slice(n + 2)), rows.map((row) => row.slice(0, n + 2)));
    if (!W) return { failed: "Σγ^tβ has an infinite mean here: there is no operator" };
  }
  const means = W.map((row) => row[M]), squares = once((start) => second(s, δ, start, U, means));
  if (U) {
    const rows = squares.slice(0, -1).flat();
    V = resolvent(rows.map((row) => row.slice(2)), rows.map((row) => [row[1]]));
    if (!V) return { failed: "the variance is infinite here" };
  }
  const from1 = roots.at(-1).map((row) => row.slice(0, n + 2).map((x, col) => x + W.reduce((total, w, u) => total + row[n + 2 + u] * w[col], 0)));
  const square = squares.at(-1).map((row) => row[1] + V.reduce((total, v, u) => total + row[2 + u] * v[0], 0));
  const C = identity(n), variance = [];
  let error = 0;
  for (let z = 0; z < n; z++) {
    let mean = δ.mean[z], whole = δ.square[z], lost = 0;
    for (const [to, p] of s.mdp.P[z]) {
      for (let y = 0; y < n; y++) C[z][y] += gamma * p * from1[to][y];
      mean += gamma * p * from1[to][M];
      whole += gamma * gamma * p * square[to];
      lost += gamma * p * from1[to][E];
    }
    for (const [to, pd] of δ.carried[z]) whole += 2 * gamma * pd * from1[to][M];
    variance.push(Math.max(0, whole - mean * mean));
    error = Math.max(error, lost);
  }
  return error < 1e-10 ? { C, variance, method: "exact chain" } : { lost: error, failed: "products of its ratios leave the range that this page follows: operators.certify bounds it" };
}
/** Goes back over the levels: `fill(now, at, z, read, j, to, after)` adds what pair z contributes at a node; S rows of W numbers come back. */
function backward(s, { levels, kind, K }, W, fill) {
  const { S, A, n } = s, most = Math.max(1, ...levels.map((level) => level.x.length));
  const ratio = Float64Array.from(s.ratio), cap = Float64Array.from(s.cap);
  let after = new Float64Array(most * S * W), now = new Float64Array(most * S * W);
  for (let lag = levels.length; lag >= 1; lag--) {
    const { x, next } = levels[lag - 1], bound = boundAt(s.rule.lags, lag), last = lag === levels.length;
    now.fill(0, 0, x.length * S * W);
    for (let i = 0; i < x.length; i++) for (let z = 0; z < n; z++) {
      if (kind[z] < 0) continue;
      const to = x[i] * ratio[z], j = next[i * K + kind[z]];
      fill(now, (i * S + Math.floor(z / A)) * W, z, Math.min(cap[z], bound, to), last && j >= 0 ? -1 : j, to, after);
    }
    [now, after] = [after, now];
  }
  return Array.from({ length: S }, (_, state) => after.slice(state * W, state * W + W));
}
/** For each state, at the start of the levels: reads of each pair, the mean of Δ, a bound on what is lost, and the weights of the unknowns. */
function linear(s, δ, start, U) {
  const { S, n, gamma } = s, { from, to: into, p } = s.edges, M = n, E = n + 1, W = n + 2 + U, largest = Math.max(...s.cap.filter((c) => c < Infinity), 1);
  const weight = Float64Array.from(s.mu, (m, z) => m * s.decay[z]);
  return backward(s, start, W, (now, at, z, read, j, to, after) => {
    const w = weight[z];
    now[at + z] += w * read;
    now[at + M] += w * read * δ.mean[z];
    if (j === -1) return;
    for (let e = from[z]; e < from[z + 1]; e++) {
      const f = w * gamma * p[e];
      if (j >= 0) for (let y = at, k = (j * S + into[e]) * W; y < at + W; y++, k++) now[y] += f * after[k];
      else if (j === -2) now[at + E] += f * Math.min(largest / (1 - gamma), to < 1 ? to * s.growth : Infinity);
      else now[at + n + 2 + (-3 - j) * S + into[e]] += f;
    }
  });
}
/** The same for the second moment of Δ, where the means W are known: [mean, second moment, weights of the unknowns]. */
function second(s, δ, start, U, means) {
  const { S, gamma } = s, { from, to: into, p, pd } = s.edges, W = 2 + U;
  return backward(s, start, W, (now, at, z, read, j, _, after) => {
    const w = s.mu[z] * s.decay[z], twice = w * s.decay[z];
    now[at] += w * read * δ.mean[z];
    now[at + 1] += twice * read * read * δ.square[z];
    if (j === -1 || j === -2) return;
    for (let e = from[z]; e < from[z + 1]; e++) {
      const f = twice * gamma * gamma * p[e], k = (j * S + into[e]) * W;
      const mean = j >= 0 ? after[k] : means[(-3 - j) * S + into[e]];
      now[at] += w * gamma * p[e] * mean;
      now[at + 1] += 2 * twice * gamma * read * pd[e] * mean;
      if (j >= 0) for (let y = 1; y < W; y++) now[at + y] += f * after[k + y];
      else now[at + 2 + (-3 - j) * S + into[e]] += f;
    }
  });
}

/** ‖Z‖, the spectral radius, E[Σγ^tβ] and the variance of Δ, means over pairs. */
function operator(rule, mdp, pi, mu, gamma) {
  const s = settingOf(rule, mdp, pi, mu, gamma);
  if (s.failed) return s;
  const δ = differences(s, mdp.Q), c = s.mu.map((m, z) => m * s.decay[z] * s.ratio[z]);
  const grown = s.perDecision ? null : resolvent(ontoPairs(s, c, gamma), zeros(s.n, 1).map(() => [1]));
  s.growth = grown ? 1 + Math.max(...grown.map((row) => row[0])) * Math.max(1, ...s.ratio.map((r, z) => r * s.decay[z])) : Infinity;
  s.edges = edgesOf(s, δ);
  const found = s.perDecision ? closedForm(s, δ) : chain(s, δ);
  if (found.failed) return { ...found, setting: s };
  const D = ontoPairs(s, s.evaluated, -gamma).map((row, i) => { row[i] += 1; return row; });
  const Z = times(found.C, D).map((row, i) => row.map((x, j) => (i === j ? 1 : 0) - x));
  const rows = found.C.map(sum), live = rows.length, off = found.method === "closed form" ? 1e-14 : 2e-12;
  const shifted = (by) => radius(Z.map((row) => row.map((x) => x + by)));
  return {
    // Where eigenvalues nearly coincide, as at a radius of 0, what rounding leaves in Z moves them much: `radiusTop` says how far up.
    C: found.C, Z, contraction: norm(Z), radius: radius(Z), radiusTop: Math.max(shifted(off), shifted(-off)), magnitude: sum(rows) / live, largest: Math.max(...rows),
    variance: sum(found.variance) / live, variances: found.variance, method: found.method, setting: s,
  };
}
