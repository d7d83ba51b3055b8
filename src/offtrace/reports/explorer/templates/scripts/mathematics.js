"use strict";
// What the page computes, without the page: a worker runs these same lines.
const engine = (() => {
const least = (a, b) => (a < b || a !== a ? a : b);
const most = (a, b) => (a > b || a !== a ? a : b);
const power = (x, y) => (x === 1 || y === 0 ? 1 : x ** y);
const sum = (row) => row.reduce((a, b) => a + b, 0);
const zeros = (n, m = n) => Array.from({ length: n }, () => new Float64Array(m));

function identity(n) {
  const made = zeros(n);
  for (let i = 0; i < n; i++) made[i][i] = 1;
  return made;
}
function times(A, B) {
  const made = zeros(A.length, B[0].length);
  for (let i = 0; i < A.length; i++) for (let k = 0; k < B.length; k++) {
    const a = A[i][k];
    if (a !== 0) for (let j = 0; j < B[0].length; j++) made[i][j] += a * B[k][j];
  }
  return made;
}
/** A⁻¹B by elimination with pivots; null where A is singular. */
function solved(A, B) {
  const n = A.length, m = B[0].length;
  const work = A.map((row, i) => Float64Array.from([...row, ...B[i]]));
  for (let c = 0; c < n; c++) {
    let best = c;
    for (let i = c + 1; i < n; i++) if (Math.abs(work[i][c]) > Math.abs(work[best][c])) best = i;
    if (work[best][c] === 0) return null;
    [work[c], work[best]] = [work[best], work[c]];
    for (let i = 0; i < n; i++) {
      const f = i === c ? 0 : work[i][c] / work[c][c];
      if (f !== 0) for (let j = c; j < n + m; j++) work[i][j] -= f * work[c][j];
    }
  }
  return work.map((row, i) => row.slice(n).map((x) => x / row[i]));
}
/** (I − G)⁻¹B for G ≥ 0; null where ΣG^t does not converge, which is where the inverse has a negative entry. */
function resolvent(G, B) {
  const inverse = solved(G.map((row, i) => row.map((x, j) => (i === j ? 1 - x : -x))), identity(G.length));
  if (!inverse) return null;
  const size = Math.max(...inverse.map((row) => Math.max(...row.map(Math.abs))));
  if (!(size < 1e13) || inverse.some((row) => row.some((x) => x < -1e-9 * size))) return null;
  return times(inverse, B);
}
const norm = (A) => A.reduce((best, row) => Math.max(best, row.reduce((a, x) => a + Math.abs(x), 0)), 0);
/** The spectral radius: ‖A^n‖^{1/n} for n = 2^50, by squaring what is scaled to norm 1. */
function radius(A) {
  let log = 0, scale = 1, B = A;
  for (let k = 0; k <= 50; k++) {
    const size = norm(B);
    if (!(size > 1e-290)) return 0;
    log += Math.log(size) * scale;
    B = B.map((row) => row.map((x) => x / size));
    B = times(B, B);
    scale /= 2;
  }
  return Math.exp(log);
}
