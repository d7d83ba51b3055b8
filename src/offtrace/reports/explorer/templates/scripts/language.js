// --- a rule of the visitor's own: expressions of the operations that a rule may use (`traces/symbols.py`), read by descent ---

const NAMES = { __proto__: null, rho: "rho", "ρ": "rho", pi: "pi", "π": "pi", mu: "mu", "μ": "mu", "µ": "mu", lam: "lam", "λ": "lam" };
const CONSTANTS = { __proto__: null, inf: Infinity, infinity: Infinity, "∞": Infinity };
const FUNCTIONS = {
  __proto__: null, min: ["minimum", 2, least], minimum: ["minimum", 2, least], max: ["maximum", 2, most], maximum: ["maximum", 2, most],
  abs: ["abs", 1, Math.abs], sqrt: ["sqrt", 1, Math.sqrt], exp: ["exp", 1, Math.exp], log: ["log", 1, Math.log], where: ["where", 3, null],
};
const COMPARISONS = {
  "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b, "==": (a, b) => a === b, "!=": (a, b) => a !== b,
};
const SAME = { "≤": "<=", "≥": ">=", "≠": "!=", "·": "*", "×": "*", "−": "-", "–": "-", "÷": "/" };

class Mistake extends Error {
  constructor(text, at, length = 1) { super(text); this.at = at; this.length = length; }
}
function tokens(text) {
  const found = [], pattern = /\s+|(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|([A-Za-z_ρπμµλ∞][\w]*)|(\*\*|<=|>=|==|!=|[-+*/<>()&|~,≤≥≠·×−–÷])/uy;
  while (pattern.lastIndex < text.length) {
    const at = pattern.lastIndex, match = pattern.exec(text);
    if (!match) {
      const sign = String.fromCodePoint(text.codePointAt(at));
      throw new Mistake(sign === "^" ? "a power is written **" : sign === "=" ? "equality is written ==" : `“${sign}” means nothing here`, at);
    }
    const [whole, number, name, sign] = match;
    if (number) found.push({ kind: "number", text: whole, at });
    else if (name) found.push({ kind: "name", text: whole, at });
    else if (sign) found.push({ kind: "sign", text: SAME[sign] ?? sign, at });
  }
  found.push({ kind: "end", text: "", at: text.length });
  return found;
}
/** {of(pi, mu, rho, lam) → number, python, reads}; raises a Mistake that knows its place. */
function parsed(text) {
  const given = tokens(text), reads = new Set();
  let i = 0;
  const peek = (...signs) => given[i].kind === "sign" && signs.includes(given[i].text);
  const take = () => given[i++];
  const asNumber = (x) => (x.condition ? { ...x, condition: false, of: (v) => (x.of(v) ? 1 : 0), python: `xp.where(${x.python}, 1.0, 0.0)` } : x);
  const asCondition = (x, what) => { if (!x.condition) throw new Mistake(`${what} wants a comparison, such as rho > 1`, x.at, x.length); return x; };
  const join = (a, b, extra) => ({ at: a.at, length: b.at + b.length - a.at, ...extra });
  function expect(sign) {
    if (!peek(sign)) throw new Mistake(given[i].kind === "end" ? `a “${sign}” is missing` : `“${sign}” is expected here`, given[i].at);
    return take();
  }
  function comparison() {
    const a = either();
    if (!peek(...Object.keys(COMPARISONS))) return a;
    const sign = take(), [l, r] = [asNumber(a), asNumber(either())], f = COMPARISONS[sign.text];
    if (peek(...Object.keys(COMPARISONS))) throw new Mistake("compare two at a time, and join them with &", given[i].at, given[i].text.length);
    return join(l, r, { condition: true, of: (v) => f(l.of(v), r.of(v)), python: `(${l.python} ${sign.text} ${r.python})` });
  }
  function logical(sign, inner, f) {
    let a = inner();
    while (peek(sign)) {
      take();
      const l = asCondition(a, sign), r = asCondition(inner(), sign);
      a = join(l, r, { condition: true, of: f(l, r), python: `(${l.python} ${sign} ${r.python})` });
    }
    return a;
  }
  const either = () => logical("|", both, (l, r) => (v) => l.of(v) || r.of(v));
  const both = () => logical("&", added, (l, r) => (v) => l.of(v) && r.of(v));
  function infix(inner, operations) {
    let a = inner();
    while (peek(...Object.keys(operations))) {
      const sign = take().text, [l, r] = [asNumber(a), asNumber(inner())], f = operations[sign];
      a = join(l, r, { of: (v) => f(l.of(v), r.of(v)), python: `(${l.python} ${sign} ${r.python})` });
    }
    return a;
  }
  const added = () => infix(multiplied, { "+": (a, b) => a + b, "-": (a, b) => a - b });
  const multiplied = () => infix(signed, { "*": (a, b) => a * b, "/": (a, b) => a / b });
  function signed() {
    if (!peek("-", "+", "~")) return raised();
    const sign = take(), x = signed(), place = { at: sign.at, length: x.at + x.length - sign.at };
    if (sign.text === "~") { const c = asCondition(x, "~"); return { ...place, condition: true, of: (v) => !c.of(v), python: `~${c.python}` }; }
    const n = asNumber(x);
    return sign.text === "+" ? { ...n, ...place } : { ...place, of: (v) => -n.of(v), python: `(-${n.python})` };
  }
  function raised() {
    const a = atom();
    if (!peek("**")) return a;
    take();
    const [l, r] = [asNumber(a), asNumber(signed())];
    return join(l, r, { of: (v) => power(l.of(v), r.of(v)), python: `(${l.python} ** ${r.python})` });
  }
  function called(name) {
    const [python, count, f] = FUNCTIONS[name.text], parts = [];
    expect("(");
    if (!peek(")")) do parts.push(comparison()); while (peek(",") && take());
    const close = expect(")");
    const place = { at: name.at, length: close.at + 1 - name.at };
    if (parts.length !== count) throw new Mistake(`${name.text} takes ${count} ${count > 1 ? "arguments" : "argument"}, not ${parts.length}`, place.at, place.length);
    if (f === null) {
      const [c, a, b] = [asCondition(parts[0], "where"), asNumber(parts[1]), asNumber(parts[2])];
      return { ...place, of: (v) => (c.of(v) ? a.of(v) : b.of(v)), python: `xp.where(${c.python}, ${a.python}, ${b.python})` };
    }
    const [a, b] = parts.map(asNumber);
    return { ...place, of: b ? (v) => f(a.of(v), b.of(v)) : (v) => f(a.of(v)), python: `xp.${python}(${[a, b].filter(Boolean).map((x) => x.python).join(", ")})` };
  }
  function atom() {
    const one = take(), place = { at: one.at, length: one.text.length };
    if (one.kind === "number") {
      const value = Number(one.text);
      return { ...place, of: () => value, python: /^\d+$/.test(one.text) ? `${value}.0` : one.text };
    }
    if (one.kind === "sign" && one.text === "(") {
      const inner = comparison();
      const close = expect(")");
      return { ...inner, at: one.at, length: close.at + 1 - one.at };
    }
    if (one.kind === "name") {
      if (one.text in FUNCTIONS) return called(one);
      if (one.text in CONSTANTS) return { ...place, of: () => CONSTANTS[one.text], python: "ot.INFINITY" };
      const name = NAMES[one.text];
      if (name) { reads.add(name); return { ...place, of: (v) => v[name], python: name }; }
      const hint = peek("(") ? `no function “${one.text}”: there are min, max, abs, sqrt, exp, log, where` : `no “${one.text}” here: there are rho, pi, mu, lam and inf`;
      throw new Mistake(`there is ${hint}`, one.at, one.text.length);
    }
    throw new Mistake(one.kind === "end" ? "something is missing here" : `“${one.text}” cannot stand here`, one.at, one.text.length || 1);
  }
  const made = asNumber(comparison());
  if (given[i].kind !== "end") throw new Mistake(`“${given[i].text}” cannot follow here`, given[i].at, given[i].text.length);
  return { of: made.of, python: made.python.replace(/^\((.*)\)$/, (all, inner) => (balanced(inner) ? inner : all)), reads };
}
function balanced(text) {
  let open = 0;
  for (const c of text) { open += c === "(" ? 1 : c === ")" ? -1 : 0; if (open < 0) return false; }
  return open === 0;
}

/** A rule that can be used, from {name, numbers} or, for one's own, {name: "Own", numbers, own}. Lists stand for numbers by lag. */
function made({ name, numbers, own }) {
  if (name === "Own") {
    const [decay, ratio, cap] = ["decay", "ratio", "cap"].map((part) => parsed(own[part]).of);
    const { lam } = numbers;
    return { recursive: own.recursive, perDecision: false, greedy: false, lags: null, factors: (pi, mu, rho) => { const v = { pi, mu, rho, lam }; return [decay(v), ratio(v), cap(v), 1]; } };
  }
  const rule = RULES[name], listed = Object.keys(numbers).find((key) => Array.isArray(numbers[key]));
  const factors = listed ? rule.byLag[listed] : rule.factors;
  return { ...rule, lags: listed ? numbers[listed] : null, factors: (pi, mu, rho) => factors(pi, mu, rho, numbers) };
}
return { least, most, power, made, parsed, Mistake, factorsOf, coefficients, diagnose, operator, condition, compute, RULES };
})();
