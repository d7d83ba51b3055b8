// What the pages of reports and the explorer share.
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const find = (selector, root = document) => root.querySelector(selector);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const tip = find("#tip");
const clamp = (x, low, high) => Math.max(low, Math.min(high, x));
const safe = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
function html(tag, properties = {}, parent = null) {
  const made = Object.assign(document.createElement(tag), properties);
  if (parent) parent.append(made);
  return made;
}
const [PLAIN, GROUPED] = [false, true].map((useGrouping) => new Intl.NumberFormat("en", { maximumFractionDigits: 12, useGrouping }));
/** A number with so many significant digits; – where there is none. */
function format(x, digits = 4) {
  if (x === Infinity) return "∞";
  if (!Number.isFinite(x)) return "–";
  const size = Math.abs(x);
  if (size < 1e-12) return "0";
  if (size >= 1e6 && size < 1e9) return `${format(x / 1e6, digits)}M`;
  if (size < 1e-3 || size >= 1e9) return x.toExponential(digits - 2).replace("e+", "e").replace(/-/g, "−");
  return (size >= 1e4 ? GROUPED : PLAIN).format(Number(x.toPrecision(digits))).replace("-", "−");
}
function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((k) => k >= raw * 0.999), found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(Number((k * step).toPrecision(12)));
  return found;
}
function logTicks(low, high, count = 5) {
  const found = [], every = Math.max(1, Math.ceil(Math.log10(high / low) / count));
  for (let k = Math.ceil(Math.log10(low) - 1e-9); 10 ** k <= high * 1.000001; k += every) found.push(10 ** k);
  return found.length > 1 ? found : ticks(low, high, count).filter((x) => x > 0);
}
function showTip(content, x, y) {
  tip.innerHTML = content;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const fit = (place, room) => clamp(place, 6, Math.max(6, room - 6));
  const narrow = box.width > innerWidth * 0.55; // then it stands where the figure does not: at the lower or upper edge
  const left = x + 16 + box.width > innerWidth ? x - 16 - box.width : x + 16;
  const top = narrow ? (y > innerHeight / 2 ? 54 : innerHeight) : y - box.height / 2;
  tip.style.transform = `translate(${fit(left, innerWidth - box.width)}px,${fit(top, innerHeight - box.height)}px)`;
}
function hideTip() { tip.hidden = true; }
/** The button that switches between light and dark; what is chosen stays. */
function theme(changed = () => {}) {
  const root = document.documentElement;
  const kept = (set) => { try { if (set) localStorage.setItem("offtrace-theme", set); return localStorage.getItem("offtrace-theme"); } catch { return set; } };
  if (kept()) root.dataset.theme = kept();
  find("#theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    kept(root.dataset.theme);
    changed();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
}
