// --- the page ---------------------------------------------------------------------------------------------------------------

const CLEAN = { credit: false, mdp: false, draw: false, inputs: false };
let dirty = { ...CLEAN }, frame = 0, writing = 0;

/** Something of the state is another one. The next frame computes and draws; a link follows when there is rest. */
function changed({ mdp = true, slots = false, inputs = true } = {}) {
  dirty.credit = true;
  dirty.mdp ||= mdp;
  dirty.inputs ||= inputs;
  if (slots) drawSlots();
  if (mdp) Object.assign(document.documentElement.dataset, { known: "false", settled: "false" });
  schedule();
  document.documentElement.dataset.linked = "false";
  clearTimeout(writing);
  writing = setTimeout(writeLink, slots ? 0 : 300);
}
function requestDraw() { dirty.draw = true; schedule(); }
function schedule() { frame ||= requestAnimationFrame(redraw); }
function redraw() {
  frame = 0;
  const was = dirty;
  dirty = { ...CLEAN };
  if (was.credit) { computeCredits(); drawRatios(); drawCredits(); }
  if (was.inputs) drawInputs();
  if (was.inputs || state.rules.some((rule) => rule.name === "Own")) drawOwn();
  if (was.mdp) refreshLaboratory();
  if (was.mdp || was.draw) drawLaboratory();
  if (aim) find(aim).scrollIntoView({ block: aim === "#trajectory" ? "nearest" : "start" });
  if (document.documentElement.dataset.known === "true") aim = "";
}
/** What a preset shows: it is in view once it is drawn, unless somebody scrolls before. */
let aim = "";
for (const kind of ["wheel", "touchmove", "keydown"]) addEventListener(kind, () => { aim = ""; });
function writeLink() {
  document.documentElement.dataset.linked = "true";
  const hash = toHash(state);
  if (hash !== location.hash && (location.hash || hash !== toHash(fromHash("")))) history.replaceState(null, "", hash);
  const at = data.presets.find((preset) => toHash(fromPreset(preset)) === hash);
  for (const button of all("[data-preset]")) button.setAttribute("aria-pressed", String(button.dataset.preset === at?.key));
  const left = misread.length ? `This page cannot read a part of the link: ${misread.join(", ")}. The rest of it is shown.` : "";
  misread = [];
  find("#preset-mdp").innerHTML = at?.shows === "#trajectory" ? "" : formula(at?.text ?? "");
  find("#preset").innerHTML = left ? safe(left) : formula(at?.text ?? "A setting of your own. The link holds all of it.");
}
function drawInputs() {
  for (const input of all("input[data-of]")) input.value = state[input.dataset.of];
  for (const output of all("output[data-of]")) output.textContent = format(state[output.dataset.of]);
  const mdp = MDPS.get(state.mdp);
  find("#mdp-name").value = state.mdp;
  if (find("#sketch").dataset.of !== mdp.key) { find("#sketch").innerHTML = sketch(mdp); find("#sketch").dataset.of = mdp.key; }
  find("#mdp-text").textContent = mdp.text;
  find("#q-text").textContent = mdp.still ? "Q = 1 for the first action and 0 for the others" : "Q = 0";
  for (const label of all(".policy")) label.hidden = Boolean(mdp.tables);
  for (const label of all(".policy")) label.style.display = mdp.tables ? "none" : "";
}

function drawSlots() {
  const into = find(".slots"), focused = document.activeElement?.dataset?.focus;
  into.replaceChildren();
  state.rules.forEach((slot, i) => {
    const facts = FACTS.get(slot.name), card = html("div", { className: "slot" }, into), head = html("div", { className: "head" }, card);
    card.style.setProperty("--c", COLOURS[i]);
    const select = html("select", {}, head);
    select.dataset.focus = `rule-${i}`;
    select.setAttribute("aria-label", `rule ${i + 1}`);
    for (const { name, title } of FACTS.values()) html("option", { value: name, textContent: title, selected: name === slot.name }, select);
    select.addEventListener("change", () => { state.rules[i] = withLam(starting(select.value), state.rules[i]); changed({ slots: true }); });
    if (state.rules.length > 1) {
      const remove = html("button", { type: "button", textContent: "×", title: "Remove this rule" }, head);
      remove.setAttribute("aria-label", `remove rule ${i + 1}, ${facts.title}`);
      remove.addEventListener("click", () => { state.rules.splice(i, 1); credits.splice(i, 1); changed({ slots: true }); });
    }
    for (const number of facts.numbers) field(card, slot, i, number);
    html("p", { innerHTML: slot.name === "Own" ? safe(facts.formula) : formula(`β_t = ${facts.formula}`), title: facts.citation }, card);
    if (facts.perStep) html("p", { textContent: "Here every step has the same λ." }, card);
  });
  if (state.rules.length < TOP) {
    const card = html("div", { className: "slot add" }, into);
    const add = html("button", { type: "button", textContent: "+ Add a rule" }, card);
    add.addEventListener("click", () => { state.rules.push(starting([...FACTS.keys()].find((name) => !state.rules.some((rule) => rule.name === name)))); changed({ slots: true }); });
  }
  if (state.rules.length < TOP) find("#full").textContent = "";
  if (focused) find(`[data-focus="${focused}"]`, into)?.focus();
}
/** The rule with the λ that the slot had before, where both have one; a slot remembers it while its rule has none. */
function withLam(slot, before) {
  const lam = before.numbers.lam ?? before.lam;
  if (lam !== undefined && "lam" in slot.numbers) slot.numbers.lam = lam;
  return { ...slot, lam };
}
/** A number of a rule: a slider where it ends at 1, else a field that also takes inf and, for some, a list by lag. */
function field(card, slot, i, number) {
  const label = html("label", { className: number.unit ? "" : "wide", textContent: `${number.letter} ` }, card);
  if (number.unit) {
    const input = html("input", { type: "range", min: 0, max: 1, step: 0.01, value: slot.numbers[number.name] }, label), output = html("output", { textContent: format(slot.numbers[number.name]) }, label);
    input.setAttribute("aria-label", `${number.letter} of rule ${i + 1}, ${FACTS.get(slot.name).title}`);
    input.addEventListener("input", () => { slot.numbers[number.name] = Number(input.value); output.textContent = format(slot.numbers[number.name]); changed(); });
    return;
  }
  const input = html("input", { type: "text", value: spelled(slot.numbers[number.name]), spellcheck: false, autocomplete: "off", inputMode: "text" }, label);
  input.setAttribute("aria-label", `${number.letter} of rule ${i + 1}, ${FACTS.get(slot.name).title}`);
  const wrong = html("p", { className: "wrong" }, card);
  input.addEventListener("input", () => {
    const read = readNumber(input.value, number);
    input.setAttribute("aria-invalid", String(read === null));
    wrong.textContent = read === null ? `a number of at least 0, inf${number.byLag ? ", or one for each lag: 0, inf, 0" : ""}` : "";
    if (read !== null) { slot.numbers[number.name] = read; changed(); }
  });
}

const PARTS = ["decay", "ratio", "cap"];
function ownFields() {
  const into = find(".fields");
  for (const part of PARTS) {
    const box = html("div", {}, into), label = html("label", { className: "line", textContent: part }, box);
    const input = html("input", { type: "text", spellcheck: false, autocomplete: "off", maxLength: 200 }, label);
    input.dataset.part = part;
    input.setAttribute("aria-describedby", `wrong-${part}`);
    html("span", { className: "wrong", id: `wrong-${part}` }, box).setAttribute("role", "status");
    input.addEventListener("input", () => { state.own = { ...state.own, [part]: input.value }; changed(); });
  }
  const row = html("div", { className: "row" }, into), label = html("label", {}, row);
  const box = html("input", { type: "checkbox", id: "recursive" }, label);
  label.append(" recursive: x itself is clipped at the cap");
  box.addEventListener("change", () => { state.own = { ...state.own, recursive: box.checked }; changed(); });
  const show = html("button", { type: "button", id: "show-own" }, row);
  show.addEventListener("click", () => {
    if (state.rules.some((rule) => rule.name === "Own")) { find("#rules").scrollIntoView(); return; }
    if (state.rules.length < TOP) { state.rules.push(starting("Own")); changed({ slots: true }); return; }
    find("#full").textContent = `${TOP} rules are shown already: remove one by its ×, then add yours.`;
    find("#rules").scrollIntoView();
  });
}
function drawOwn() {
  const used = state.rules.findIndex((rule) => rule.name === "Own"), python = {}, reads = new Set();
  find("#recursive").checked = state.own.recursive;
  find("#show-own").textContent = used >= 0 ? "See it among the rules" : "Add it to the rules";
  for (const part of PARTS) {
    const input = find(`[data-part="${part}"]`), wrong = find(`#wrong-${part}`);
    if (input.value !== state.own[part]) input.value = state.own[part];
    let mistake = null;
    try {
      const read = engine.parsed(state.own[part]);
      python[part] = read.python;
      read.reads.forEach((name) => reads.add(name));
    } catch (error) {
      if (!(error instanceof engine.Mistake)) throw error;
      mistake = error;
    }
    const value = used >= 0 && credits[used]?.part === part ? credits[used].wrong : "";
    input.setAttribute("aria-invalid", String(Boolean(mistake || value)));
    const text = state.own[part];
    const said = mistake
      ? `<code>${safe(text.slice(0, mistake.at))}<mark>${safe(text.slice(mistake.at, mistake.at + mistake.length)) || "&nbsp;"}</mark>${safe(text.slice(mistake.at + mistake.length))}</code>\nat character ${mistake.at + 1}: ${safe(mistake.message)}`
      : safe(value);
    if (wrong.innerHTML !== said) wrong.innerHTML = said;
  }
  const seen = ["pi", "mu", "rho"].filter((name) => reads.has(name)).map((name) => `"${name}"`);
  find("#python").textContent = PARTS.every((part) => python[part]) ? [
    "from dataclasses import dataclass", "import offtrace as ot", "", "@dataclass(frozen=True)", "class Own(ot.Trace):",
    '    """A rule of my own."""', `    lam: float = ${used >= 0 && !Number.isInteger(state.rules[used].numbers.lam) ? state.rules[used].numbers.lam : "1.0"}`, '    title = "Own"',
    `    reads = (${seen.join(", ")}${seen.length === 1 ? "," : ""})`, "    per_decision = False", `    recursive = ${state.own.recursive ? "True" : "False"}`, "",
    "    @staticmethod", "    def factors(xp, pi, mu, rho, lam):", `        return ${PARTS.map((part) => python[part]).join(", ")}`,
  ].join("\n") : "# As soon as the three fields can be read, the rule stands here in Python.";
}

function start() {
  for (const preset of data.presets) {
    const button = html("button", { type: "button", textContent: preset.title }, find(`[data-group="${preset.group}"]`));
    button.dataset.preset = preset.key;
    button.addEventListener("click", () => { state = fromPreset(preset); chosen = 0; aim = preset.shows; changed({ slots: true }); });
  }
  for (const mdp of data.mdps) html("option", { value: mdp.key, textContent: mdp.title }, find("#mdp-name"));
  find("#mdp-name").addEventListener("change", (event) => { state.mdp = event.target.value; changed(); });
  find("#pattern").addEventListener("change", (event) => {
    const name = event.target.value;
    event.target.value = "";
    if (name === "random") state.rho = state.rho.map(() => short(Math.min(1 / state.mu, 2 ** (3 * Math.random() - 1.7))));
    else if (name) state.rho = pattern(name, state.T, state.mu);
    changed({ mdp: false });
  });
  for (const input of all("input[data-of]")) input.addEventListener("input", () => {
    const name = input.dataset.of, value = Number(input.value);
    state[name] = value;
    if (name === "T") { const old = state.rho; state.rho = Array.from({ length: value }, (_, t) => old[t % old.length]); chosen = Math.min(chosen, value - 1); cursor = null; }
    if (name === "mu") state.rho = state.rho.map((r) => Math.min(r, 1 / value));
    changed({ mdp: !["T", "mu"].includes(name) });
  });
  find("#link").addEventListener("click", async () => {
    writeLink();
    // A file of this machine is no place for others: they get the command that opens the same state.
    const text = location.protocol === "file:" ? `offtrace explore '${toHash(state)}'` : location.href;
    try { await navigator.clipboard.writeText(text); find("#link").textContent = "Copied"; } catch { find("#link").textContent = "Copy it from here:"; find("#sent").hidden = false; find("#sent").value = text; find("#sent").select(); }
    setTimeout(() => { find("#link").textContent = "Copy link"; }, 1600);
  });
  for (const anchor of all('a[href^="#"]')) anchor.addEventListener("click", (event) => {  // the address holds the state, not a place
    const place = find(anchor.getAttribute("href"));
    event.preventDefault();
    place.tabIndex = -1;
    place.scrollIntoView();
    place.focus({ preventScroll: true });
  });
  for (const name of ["grid", "m0", "m1"]) { const probe = html("i", { id: `probe-${name}`, hidden: true }, document.body); probe.style.color = `var(--${name})`; }
  theme(() => { palette = null; dirty.credit = dirty.draw = true; schedule(); });
  ownFields();
  ratiosListen();
  hire();
  state = fromHash(location.hash);
  addEventListener("hashchange", () => { if (/^#.+=/.test(location.hash) && location.hash !== toHash(state)) { state = fromHash(location.hash); chosen = 0; changed({ slots: true }); } });
  changed({ slots: true });
}
start();
})();
