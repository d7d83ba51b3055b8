// --- whether β_t ≤ β_{t-1}ρ_t, or β_t ≤ ∏ρ, for every history on the MDP: as `operators.certify` decides it ---

/** To forty bits, so that equal values are equal. */
function rounded(x) {
  if (x === 0 || !Number.isFinite(x)) return x === 0 ? 0 : x;
  const scale = 2 ** (39 - Math.floor(Math.log2(Math.abs(x))));
  return Number.isFinite(scale) && scale > 0 ? Math.round(x * scale) / scale : x;
}
function condition(s, recursive) {
  if (recursive ? s.plain.recursive : s.plain.product) return { holds: true };
  const steps = ontoPairs(s, s.mu).map((row) => [...row.keys()].filter((y) => row[y] > 0));
  let level = [...steps.keys()].filter((z) => steps[z].length).map((z) => ({ pair: z, x: 1, decay: 1, beta: 1, product: 1, from: null }));
  const known = new Set();
  let tried = 0, whole = true, lag = 0;
  while (level.length) {
    lag += 1;
    if (lag >= s.horizon) break;
    const bound = boundAt(s.rule.lags, lag), grown = [];
    let worst = null;
    for (const past of level) for (const pair of steps[past.pair]) {
      const x = past.x * s.ratio[pair], decay = past.decay * s.decay[pair], read = Math.min(s.cap[pair], bound, x);
      const one = { pair, x: s.rule.recursive ? read : x, decay, beta: decay > 0 ? decay * read : 0, product: past.product * s.targetRho[pair], from: past };
      one.allowed = recursive ? past.beta * s.targetRho[pair] : one.product;
      if (one.beta > one.allowed * (1 + 1e-9) + 1e-300 && (!worst || one.beta - one.allowed > worst.beta - worst.allowed)) worst = one;
      grown.push(one);
    }
    tried += grown.length;
    if (worst) return { holds: false, pairs: pathTo(worst, s.A), beta: worst.beta, bound: worst.allowed };
    level = [];
    for (const one of grown) {
      if (!(one.x > 0 && one.decay > 0)) continue;
      const future = recursive ? [rounded(one.x), lag === 1] : [rounded(one.x), rounded(one.decay / one.product)];
      const key = `${one.pair} ${future.join(" ")} ${s.rule.lags && lag <= s.rule.lags.length ? lag : ""}`;
      if (!known.has(key)) { known.add(key); level.push(one); }
    }
    if (level.length > 4000) { level = level.sort((a, b) => b.beta - a.beta).slice(0, 4000); whole = false; }
    if (tried > 600000 || known.size > 60000 || lag >= 200) { whole = false; break; }
  }
  return { holds: whole ? true : null, tried, lag };
}
function pathTo(last, A) {
  const path = [];
  for (let one = last; one; one = one.from) path.unshift([Math.floor(one.pair / A), one.pair % A]);
  return path;
}

/** Q_{k+1} = M_k Q_k with π_k greedy in Q_k: ‖Q_k − Q*‖ for k = 0 … n. */
function control(rule, mdp, mu, gamma, n) {
  const greedy = (Q) => Q.map((q, z) => {
    const s = z - (z % mdp.A), row = Q.slice(s, s + mdp.A), level = Math.max(...row) - mdp.tie * Math.max(...row.map(Math.abs));
    return q >= level ? 1 / row.filter((x) => x >= level).length : 0;
  });
  const bellman = (Q, value) => Q.map((_, z) => mdp.R[z] + gamma * along(mdp.P[z], value));
  const values = (Q, pi) => Array.from({ length: mdp.S }, (_, s) => sum(Q.slice(s * mdp.A, s * mdp.A + mdp.A).map((q, a) => q * pi[s * mdp.A + a])));
  let best = mdp.R.map(() => 0);
  for (let k = 0; k < 3000; k++) best = bellman(best, values(best, greedy(best)));
  const known = new Map(), errors = [], distance = (Q) => Math.max(...Q.map((q, z) => Math.abs(q - best[z])));
  let Q = [...mdp.q0];
  errors.push(distance(Q));
  for (let k = 0; k < n; k++) {
    const pi = greedy(Q), key = pi.join("");
    if (!known.has(key)) known.set(key, operator(rule, mdp, pi, mu, gamma));
    const found = known.get(key);
    if (found.failed) return { failed: found.failed };
    const mixed = values(Q, found.setting.evaluated), d = bellman(Q, mixed).map((x, z) => x - Q[z]);
    Q = Q.map((q, z) => q + sum(Array.from(found.C[z], (c, y) => c * d[y])));
    errors.push(distance(Q));
    if (!(errors.at(-1) < 1e100)) break;
  }
  return { errors };
}

/** What a worker is asked for. */
function compute({ kind, rule: described, mdp, pi, mu, gamma, n }) {
  const rule = made(described);
  if (kind === "control") return control(rule, mdp, mu, gamma, n);
  const { setting, C, Z, ...numbers } = operator(rule, mdp, pi, mu, gamma);
  if (kind === "point") return numbers;
  return setting ? { ...numbers, recursive: condition(setting, true), product: condition(setting, false) } : numbers;
}
