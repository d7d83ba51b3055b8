// --- the charts of a study: each has a kind, labels and panels ----------------------------------------------------------------

const redrawAll = () => redraws.forEach((redraw) => redraw());
const CHARTS = {
  lines(into, chart, key) {
    const lam = key === "learning" && find('[data-control="learning"]'), age = key === "learning" && find('[data-control="age"]');
    const wanted = (line) => (!lam || (lam.value === "best" ? line.best : line.lam === null || line.lam === Number(lam.value))) && (!age || line.age === Number(age.value));
    for (const { name, lines: found } of chart.panels) {
      const options = { xlabel: chart.xlabel, xname: key === "ages" || key === "aged" ? "age" : chart.xlabel, xlog: chart.log, ylabel: chart.ylabel, compares: key === "learning" || key === "sweeps" };
      if (key === "aged") Object.assign(options, { ylabel: "scaled score", reference: name.startsWith("Difference") ? 0 : null, better: 1 });
      panel(into, name, "", `${chart.ylabel || name} over ${options.xname}, ${name}`, lines(() => found.filter(wanted).map((line) => ({ ...line })), options));
    }
    for (const one of [lam, age]) if (one) one.addEventListener("change", redrawAll);
  },
  points(into, chart) {
    for (const { name, lines: clouds } of chart.panels) panel(into, name, "", `Contraction and variance, ${name}`, points(clouds));
  },
  bars(into, chart, key) {
    const choice = find(`[data-control="${key}"]`);
    const draw = ({ bars: found, xlabel, says, reference }) => forest(found, { xlabel, says: () => safe(says), reference, include: given(reference) ? [reference] : [] });
    if (choice) {
      panel(into, "", "", chart.xlabel, (svg, W) => draw(chart.panels[choice.value])(svg, W));
      choice.addEventListener("change", redrawAll);
    } else for (const one of chart.panels) panel(into, key === "difference" ? "" : one.name, one.note, one.says, draw(one));
    if (key === "standing") panel(into, "Each trace against each", "Probability that a run of the row is better", "Probabilities of improvement of all pairs", matrix(data.pairs.names, data.pairs.pairs));
  },
  maps(into, chart) {
    for (const { name, rows } of chart.panels) panel(into, name, "", `The gridworld ${name}`, gridworld(rows));
  },
};
function gridworld(rows) {
  return (svg, W) => {
    const across = Math.max(...rows.map((line) => line.length)), side = Math.min(18, (W - 2) / across);
    svg.setAttribute("viewBox", `0 0 ${W} ${side * rows.length + 2}`);
    rows.forEach((line, i) => [...line].forEach((what, j) => {
      const x = 1 + j * side, y = 1 + i * side, kind = { X: " blocked", "!": " deadly" }[what] ?? "";
      node("rect", { class: `cell cellmap${kind}`, x, y, width: side, height: side }, svg);
      const shape = { S: [MARKERS[0], "start"], G: [MARKERS[8], "goal"] }[what];
      if (shape) node("path", { class: `cellmap ${shape[1]}`, d: shape[0], transform: `translate(${x + side / 2} ${y + side / 2}) scale(${side / 11})` }, svg);
    }));
  };
}

// --- the page ---------------------------------------------------------------------------------------------------------------

const FIGURES = {
  estimates(into) {
    const { rows, domain, percent: level } = data.estimates, shaded = rows.find((r) => r.family === "conservative");
    panel(into, "", "", "Estimates with intervals", forest(rows, { domain, shaded, xlabel: "V(π)", says: (r) => (given(r.value) ? `V(π), ${level} bootstrap interval` : `V(π), ${level} conservative interval`) }));
    const found = [...new Set(rows.map((r) => r.family))];
    key(into, found);
  },
  weights(into) {
    const { bins, heaviest, effective } = data.weights;
    panel(into, "Weights", "What share of the episodes has which weight, and how much of all weight they hold", "Histogram of weights", bars(bins, ["episodes", "importance weights"]));
    key(into, ["episodes", "importance weights"]);
    panel(into, "The heaviest episodes", "What share the n heaviest hold together", "Share of the heaviest episodes", lines(() => heaviest.map((line) => ({ ...line })), { xlog: true, xlabel: "n heaviest episodes", xname: "heaviest", ylabel: "share", domain: [0, 1.02], better: 1 }));
    key(into, heaviest.map((line) => line.method));
    if (effective.length) panel(into, "Step by step", "What the episodes are worth with the weights up to a step", "Effective episodes by step", lines(() => effective.map((line) => ({ ...line })), { ylog: true, xlabel: "step t", xname: "step", ylabel: "effective episodes", domain: [0.8, 1.2].map((k, i) => k * (i ? Math.max : Math.min)(...effective[0].y.filter((y) => y > 0))), better: 1 }));
  },
  evidence(into) {
    const one = data.evidence[all("[data-figure=evidence]").indexOf(into)], fresh = (found) => () => found.map((line) => ({ ...line }));
    const top = 1.1 * Math.max(...one.rmse.filter((line) => !line.level).flatMap((line) => line.high)); // a level may lie far above
    panel(into, "RMSE", "Bands are ± one standard error", `RMSE over λ, ${one.name}`, lines(fresh(one.rmse), { xlabel: "λ", xname: "λ", ylabel: "RMSE", domain: [0, top], better: -1 }));
    panel(into, "Coverage of the 95% interval", "Pointing at a λ tells what chance allows", `Coverage over λ, ${one.name}`, lines(fresh(one.coverage), { xlabel: "λ", xname: "λ", ylabel: "share of intervals", reference: 0.95, domain: [0, 1.02], bands: false, better: 1 }));
  },
  heat(into) {
    const control = find('[data-control="heat"]'), legend = find(".scale");
    const show = () => {
      const env = data.charts.heat.panels[control.value], good = goodness(env.lines);
      redraws.splice(0, redraws.length, ...redraws.filter((redraw) => !redraw.heat));
      into.replaceChildren();
      const before = redraws.length;
      for (const grid of env.lines) panel(into, grid.method, "", `${grid.method}, ${env.name}: ${data.metric} over λ and α`, heat(grid, good));
      redraws.slice(before).forEach((redraw) => { redraw.heat = true; });
      legend.innerHTML = `${format(good.worst)}${data.better > 0 ? " or less" : " or more"} <i style="background:linear-gradient(90deg,${CIVIDIS.join(",")})"></i> ${format(good.best)} <b></b> tuned α`;
    };
    control.addEventListener("change", show);
    show();
  },
};

function legend() {
  const into = find(".legend");
  if (!into) return;
  const reset = html("button", { type: "button", className: "all", textContent: "Show all", hidden: true });
  const buttons = data.methods.map(({ name }) => {
    const button = html("button", { type: "button", innerHTML: `${swatch(name)}${safe(name)}`, title: "Click to hide or show; with Shift to show it alone" }, into);
    button.addEventListener("click", (event) => {
      if (event.shiftKey) data.methods.forEach((m) => (m.name === name ? hidden.delete(m.name) : hidden.add(m.name)));
      else if (!hidden.delete(name)) hidden.add(name);
      update();
    });
    const focus = (on) => () => {
      document.body.classList.toggle("focus", on && !hidden.has(name));
      all(".plot .series").forEach((series) => series.classList.toggle("lit", on && series.dataset.method === name));
    };
    button.addEventListener("pointerenter", focus(true));
    button.addEventListener("pointerleave", focus(false));
    return button;
  });
  const update = () => {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(!hidden.has(data.methods[i].name))));
    reset.hidden = hidden.size === 0;
    document.body.classList.remove("focus");
    redraws.forEach((redraw) => redraw());
  };
  reset.addEventListener("click", () => { hidden.clear(); update(); });
  into.append(reset);
  update();
}

function sortable(table) {
  const body = table.tBodies[0], heads = all("thead th", table);
  heads.forEach((head, column) => find("button", head).addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = (line) => line.cells[column].dataset.v;
    const compare = (a, b) => (a === "" || b === "" ? (a === "") - (b === "") : (up ? 1 : -1) * (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b));
    body.append(...[...body.rows].sort((a, b) => compare(value(a), value(b))));
  }));
}

function comparing() {
  const choices = all('[data-control="against"]');
  for (const choice of choices) choice.addEventListener("change", () => {
    against = choice.value;
    choices.forEach((other) => { other.value = against; });
    redraws.forEach((redraw) => redraw());
  });
}

theme();
for (const into of all("[data-figure]")) {
  const name = into.dataset.figure, chart = data.charts?.[name];
  if (chart && !FIGURES[name]) CHARTS[chart.kind](into, chart, name); else FIGURES[name](into);
}
legend();
comparing();
all("table.data").forEach(sortable);
})();
