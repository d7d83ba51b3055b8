// --- the state: what a link holds ---------------------------------------------------------------------------------------------

const TOP = 4;  // rules at a time
const FACTS = new Map(data.rules.map((rule) => [rule.name, rule]));
FACTS.set("Own", { name: "Own", title: "Your own rule", formula: "from the three fields below", citation: "", numbers: [{ name: "lam", letter: "λ", start: 0.9, unit: true, byLag: false }] });
const MDPS = new Map(data.mdps.map((mdp) => [mdp.key, mdp]));
const OWN = { decay: "1", ratio: "lam * rho ** 0.5", cap: "lam", recursive: true };
let state = null, misread = [];  // what the page cannot take of a link

const short = (x) => Number(x.toPrecision(3));
const fromText = (x) => (x === "inf" ? Infinity : x);
const numbersOf = (given) => Object.fromEntries(Object.entries(given).map(([key, value]) => [key, Array.isArray(value) ? value.map(fromText) : fromText(value)]));
const starting = (name) => ({ name, numbers: numbersOf(Object.fromEntries(FACTS.get(name).numbers.map((n) => [n.name, n.start]))) });

/** Numbers that look like chance and are the same each time. */
const scattered = (t) => Math.imul(Math.imul(t + 11, 0x9e3779b1) ^ ((t + 7) << 9), 0x85ebca6b) >>> 17;
function pattern(name, T, mu) {
  const high = Math.min(1 / mu, 16), at = (t) => {
    if (name === "recover") return t === Math.round(T * 0.3) || t === Math.round(T * 0.6) ? 0.15 : t % 4 === 1 ? 0.8 : 1.3;
    if (name === "near") return t % 3 === 1 ? 0.9 : 1.1;
    if (name === "random") return scattered(t) % 2 ? 1.6 : 0.4;
    if (name === "powers") return [0.5, 2, 0.5, 0.25, 8, 0.5, 0.125, 2][scattered(t) % 8];
    return 1;
  };
  return Array.from({ length: T }, (_, t) => short(Math.min(high, at(t))));
}
function fromPreset(preset) {
  const T = state?.T ?? 32, mu = preset.rho === "powers" ? 0.1 : 0.2;
  return {
    T, mu, gamma: preset.gamma, rho: pattern(preset.rho, T, mu), mdp: preset.mdp, p: preset.p, m: preset.m, own: state?.own ?? { ...OWN },
    rules: preset.rules.map(({ name, numbers }) => ({ name, numbers: { ...starting(name).numbers, ...numbersOf(numbers) } })),
  };
}
const spelled = (x) => (Array.isArray(x) ? x.map(spelled).join(",") : x === Infinity ? "inf" : String(x));
function toHash(s) {
  const rules = s.rules.map(({ name, numbers }) => [name, ...Object.entries(numbers).map(([key, value]) => `${key}:${spelled(value)}`)].join(" ")).join(";");
  const own = s.rules.some((rule) => rule.name === "Own") || ["decay", "ratio", "cap", "recursive"].some((k) => s.own[k] !== OWN[k]);
  const parts = { rules, gamma: s.gamma, mu: s.mu, rho: s.rho.join(","), mdp: s.mdp, p: s.p, m: s.m };
  if (own) Object.assign(parts, { decay: s.own.decay, ratio: s.own.ratio, cap: s.own.cap, recursive: Number(s.own.recursive) });
  return `#${new URLSearchParams(Object.entries(parts).map(([k, v]) => [k, String(v)]))}`;
}
/** The state of a link. What it does not say is as in the first preset; what it says wrongly too, and `misread` names it. */
function fromHash(hash) {
  const base = fromPreset(data.presets[0]), given = new URLSearchParams(hash.slice(1));
  misread = [];
  const taken = (key, good) => { if (given.get(key) && !good) misread.push(`${key}=${given.get(key)}`); return given.get(key) && good; };
  const within = (key, low, high) => { const x = Number(given.get(key)); return taken(key, x >= low && x <= high) ? x : base[key]; };
  Object.assign(base, { gamma: within("gamma", 0, 0.98), mu: within("mu", 0.05, 1), p: within("p", 0, 1), m: within("m", 0, 1) });
  const rho = (given.get("rho") ?? "").split(",").map(Number);
  if (taken("rho", rho.length >= 8 && rho.length <= 64 && rho.every((r) => r >= 0 && r <= 1000))) [base.rho, base.T] = [rho, rho.length];
  base.rho = base.rho.map((r) => Math.min(r, 1 / base.mu));
  if (taken("mdp", MDPS.has(given.get("mdp")))) base.mdp = given.get("mdp");
  const rules = (given.get("rules") ?? "").split(";").filter(Boolean).map(readRule).filter(Boolean);
  misread.push(...rules.splice(TOP).map((rule) => rule.name));
  if (rules.length) base.rules = rules;
  for (const key of ["decay", "ratio", "cap"]) if (given.has(key)) base.own = { ...base.own, [key]: given.get(key).slice(0, 200) };
  if (given.has("recursive")) base.own = { ...base.own, recursive: given.get("recursive") === "1" };
  return base;
}
function readRule(text) {
  const [name, ...parts] = text.split(" ");
  if (!FACTS.has(name)) { misread.push(name); return null; }
  const made = starting(name);
  for (const part of parts) {
    const [key, value = ""] = part.split(":"), number = FACTS.get(name).numbers.find((n) => n.name === key), read = number && readNumber(value, number);
    if (read !== null && read !== undefined) made.numbers[key] = read; else misread.push(`${part} of ${name}`);
  }
  return made;
}
/** A number of a rule, or a list by lag, from its text; null where it is none that the rule takes. */
function readNumber(text, { unit, byLag }) {
  const values = text.split(",").map((part) => part.trim()).map((part) => (/^(inf|infinity|∞)$/i.test(part) ? Infinity : part === "" ? NaN : Number(part)));
  if (values.some((x) => !(x >= 0) || (unit && x > 1))) return null;
  return values.length === 1 ? values[0] : byLag ? values : null;
}

/** What the engine makes of a slot: a rule, or what is wrong with it. */
function ready(slot) {
  try {
    const described = slot.name === "Own" ? { ...slot, own: state.own } : slot;
    return { described, rule: engine.made(described) };
  } catch (error) {
    if (!(error instanceof engine.Mistake)) throw error;
    return { wrong: "see the fields of your own rule" };
  }
}
const pis = () => state.rho.map((r) => Math.min(1, r * state.mu));
function labelOf({ name, numbers }) {
  const facts = FACTS.get(name), shown = facts.numbers.map((n) => `${n.letter} = ${Array.isArray(numbers[n.name]) ? `(${numbers[n.name].map(format).join(", ")})` : format(numbers[n.name])}`);
  return shown.length ? `${facts.title}, ${shown.join(", ")}` : facts.title;
}
function policies() {
  const mdp = MDPS.get(state.mdp);
  if (mdp.tables) return mdp.tables;
  const taking = (q) => Array.from({ length: mdp.S * mdp.A }, (_, z) => (z % mdp.A === mdp.marked[Math.floor(z / mdp.A)] ? q : (1 - q) / (mdp.A - 1)));
  return [taking(state.p), taking(state.m)];
}
