// --- one trajectory: x_{k:t} = ratio_t · x_{k:t-1} (then clipped, if recursive), β_{k:t} = (decay_{k+1} ··· decay_t) · min(cap_t, x) ---

/** decay, ratio and cap at each step of arrays π, μ, ρ, and what is wrong with them, if something is. */
function factorsOf(rule, pi, mu, rho) {
  const made = { decay: [], ratio: [], cap: [], share: 1, wrong: null };
  for (let t = 0; t < rho.length; t++) {
    const seen = rule.greedy ? (pi[t] > 0.5 ? 1 : 0) : pi[t];
    const [decay, ratio, cap, share] = rule.factors(seen, mu[t], rho[t]);
    for (const [name, value] of [["decay", decay], ["ratio", ratio], ["cap", cap]]) {
      made[name].push(value);
      if (!(value >= 0) || (name !== "cap" && value === Infinity)) {
        made.wrong ??= { name, value, pi: pi[t], mu: mu[t], rho: rho[t] };
      }
    }
    made.share = share;
  }
  return made;
}
const boundAt = (lags, lag) => (lags ? lags[Math.min(lag, lags.length) - 1] : Infinity);

/** β_{k:t}, row k, as one array of T·T numbers. */
function coefficients(rule, form, into = null) {
  const T = form.decay.length, beta = into && into.length === T * T ? into : new Float64Array(T * T);
  for (let k = 0; k < T; k++) {
    let x = 1, decay = 1;
    beta[k * T + k] = 1;
    for (let t = k + 1; t < T; t++) {
      x *= form.ratio[t];
      decay *= form.decay[t];
      const read = Math.min(form.cap[t], boundAt(rule.lags, t - k), x);
      if (rule.recursive) x = read;
      beta[k * T + t] = decay === 0 ? 0 : decay * read;
    }
  }
  return beta;
}
/** What `offtrace.diagnose` says of the trajectory, and two curves: mean β by lag, and Σγ^tβ by start. */
function diagnose(beta, T, gamma) {
  const byLag = new Float64Array(T), sums = new Float64Array(T);
  let lagged = 0, cut = 0, largest = 0;
  for (let k = 0; k < T; k++) {
    let discount = 1;
    for (let t = k; t < T; t++) {
      const b = beta[k * T + t];
      byLag[t - k] += b / (T - (t - k));
      sums[k] += discount * b;
      lagged += (t - k) * discount * b;
      discount *= gamma;
      if (b > largest) largest = b;
    }
    if (k < T - 1 && beta[k * T + T - 1] === 0) cut += 1;
  }
  const total = sum(sums), squares = sums.reduce((a, m) => a + m * m, 0);
  return {
    byLag, sums, magnitude: total / T, largest_magnitude: Math.max(...sums), horizon: lagged / total + 1,
    cut: T > 1 ? cut / (T - 1) : 0, largest, effective: total ** 2 / squares,
  };
}
