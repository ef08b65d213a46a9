'use strict';
(() => {
const data = JSON.parse(document.getElementById('data').textContent);
const $ = id => document.getElementById(id);
const ROW = 18, CHUNK = 200;
const diff = data.base !== null;
const names = data.functions;

// The tree in flat arrays: preorder, so that the callees of n are n+1 .. end[n].
const fn = Int32Array.from(data.tree.function);
const depth = Uint32Array.from(data.tree.depth);
const count = fn.length;
const total = Float64Array.from(data.tree.own);
const before = diff ? Float64Array.from(data.tree.own_base) : new Float64Array(count);
const own = total.slice();
const parent = new Int32Array(count).fill(-1);
const end = new Int32Array(count);
const left = new Float64Array(count);
const path = [];
let deepest = 0;
for (let n = 0; n < count; n++) {
  path.length = depth[n];
  if (n) parent[n] = path[depth[n] - 1];
  path[depth[n]] = n;
  deepest = Math.max(deepest, depth[n]);
}
for (let n = count - 1; n >= 0; n--) {
  if (!end[n]) end[n] = n + 1;
  const p = parent[n];
  if (p < 0) continue;
  total[p] += total[n];
  before[p] += before[n];
  end[p] = Math.max(end[p], end[n]);
}
const next = Float64Array.from(left);
for (let n = 1; n < count; n++) {
  const p = parent[n];
  left[n] = left[p] + next[p];
  next[p] += total[n];
}
// Nodes by level, each level from left to right.
const first = new Uint32Array(deepest + 2);
for (let n = 0; n < count; n++) first[depth[n] + 1]++;
for (let d = 0; d <= deepest; d++) first[d + 1] += first[d];
const levels = new Uint32Array(count);
const fill = first.slice();
for (let n = 0; n < count; n++) levels[fill[depth[n]]++] = n;

const whole = total[0];
let zoomed = 0, selected = 0, hovered = -1, hits = null, dark = matchMedia('(prefers-color-scheme: dark)').matches;

const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
function amount(value) {
  if (data.unit !== 'bytes') return value.toLocaleString('en');
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < 5) { value /= 1024; unit++; }
  return (unit ? value.toFixed(2) : value) + units[unit];
}
const signed = value => (value > 0 ? '▲+' : value < 0 ? '▼' : '') + amount(value);
const share = value => (whole ? 100 * value / whole : 0).toFixed(1) + '%';
const nameOf = n => fn[n] < 0 ? 'total' : names[fn[n]];

function describe(n) {
  let text = `${nameOf(n)}: ${amount(total[n])}, ${share(total[n])}; own ${amount(own[n])}`;
  if (diff) text += `; base ${amount(before[n])}, change ${signed(total[n] - before[n])}`;
  return text;
}

// Hues of warm colours by name; in a diff orange and blue by change, told apart by all eyes.
const hue = Uint8Array.from(names, name => {
  let hash = 7;
  for (let i = 0; i < name.length; i++) hash = (hash * 31 + name.charCodeAt(i)) & 0xffff;
  return hash % 55;
});
function colour(n) {
  if (hits && fn[n] >= 0 && hits[fn[n]]) return dark ? '#8f5bd6' : '#c79bf2';
  if (fn[n] < 0) return dark ? '#3a3a43' : '#e3e3e8';
  if (!diff) return `hsl(${hue[fn[n]]} ${dark ? 45 : 85}% ${dark ? 34 : 74}%)`;
  const change = (total[n] - before[n]) / Math.max(total[n], before[n], 1);
  const strength = Math.round(85 * Math.min(1, Math.abs(change)));
  const light = dark ? 30 + strength / 6 : 90 - strength / 3;
  return `hsl(${change > 0 ? 32 : 205} ${strength}% ${light}%)`;
}

const scroll = $('scroll'), room = $('room'), canvas = $('canvas');
const pen = canvas.getContext('2d');
let width = 0, height = 0, planned = false;

function plan() {
  if (planned) return;
  planned = true;
  requestAnimationFrame(() => { planned = false; draw(); });
}

function resize() {
  const scale = devicePixelRatio || 1;
  width = scroll.clientWidth;
  height = scroll.clientHeight;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.width = width + 'px';
  canvas.style.height = height + 'px';
  room.style.height = Math.max(height, (deepest + 1) * ROW) + 'px';
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  draw();
}

// Index in levels of the first node of a level that ends right of x.
function seek(level, x) {
  let low = first[level], high = first[level + 1];
  while (low < high) {
    const middle = (low + high) >> 1, n = levels[middle];
    if (left[n] + total[n] > x) high = middle; else low = middle + 1;
  }
  return low;
}

function draw() {
  const dpi = width / (total[zoomed] || 1), from = left[zoomed], to = from + total[zoomed];
  const style = getComputedStyle(document.documentElement);
  const text = style.getPropertyValue('--text'), mark = style.getPropertyValue('--mark');
  pen.fillStyle = style.getPropertyValue('--back');
  pen.fillRect(0, 0, width, height);
  pen.font = '12px system-ui, sans-serif';
  pen.textBaseline = 'middle';
  const top = scroll.scrollTop;
  const last = Math.min(deepest, Math.floor((top + height) / ROW));
  for (let level = Math.floor(top / ROW); level <= last; level++) {
    const y = level * ROW - top;
    let drawn = -1;
    for (let i = seek(level, from); i < first[level + 1]; i++) {
      const n = levels[i];
      if (left[n] >= to) break;
      const x = Math.max(0, (left[n] - from) * dpi);
      const right = Math.min(width, (left[n] + total[n] - from) * dpi);
      if (right <= drawn + 0.4) continue;
      const w = Math.max(right - x, 0.5);
      pen.fillStyle = colour(n);
      pen.fillRect(x, y, Math.max(w - 0.5, 0.5), ROW - 1);
      drawn = right;
      if (w > 24) {
        pen.fillStyle = text;
        const sign = diff && total[n] !== before[n] ? (total[n] > before[n] ? '▲ ' : '▼ ') : '';
        const label = sign + nameOf(n), fits = Math.floor((w - 6) / 6.2);
        pen.fillText(label.length > fits ? label.slice(0, Math.max(fits - 1, 1)) + '…' : label, x + 3, y + ROW / 2, w - 4);
      }
      if (n === selected || n === hovered) {
        pen.strokeStyle = mark;
        pen.lineWidth = n === selected ? 2 : 1;
        pen.strokeRect(x + 1, y + 1, Math.max(w - 2, 1), ROW - 3);
      }
    }
  }
}

function at(event) {
  const box = canvas.getBoundingClientRect();
  const level = Math.floor((event.clientY - box.top + scroll.scrollTop) / ROW);
  if (level < 0 || level > deepest) return -1;
  const x = left[zoomed] + (event.clientX - box.left) / width * total[zoomed];
  const i = seek(level, x);
  return i < first[level + 1] && left[levels[i]] <= x ? levels[i] : -1;
}

function select(n) {
  selected = n;
  $('status').textContent = describe(n);
  const y = depth[n] * ROW;
  if (y < scroll.scrollTop) scroll.scrollTop = y;
  if (y + ROW > scroll.scrollTop + height) scroll.scrollTop = y + ROW - height;
  plan();
}
function zoom(n) { zoomed = total[n] > 0 ? n : 0; select(n); }

canvas.addEventListener('mousemove', event => {
  const n = at(event);
  if (n === hovered) return;
  hovered = n;
  if (n >= 0) $('status').textContent = describe(n);
  plan();
});
canvas.addEventListener('mouseleave', () => { hovered = -1; $('status').textContent = describe(selected); plan(); });
canvas.addEventListener('click', event => { const n = at(event); if (n >= 0) zoom(n); });
scroll.addEventListener('scroll', plan);

// The widest callee; the neighbour on the same level.
function callee(n) {
  let best = -1;
  for (let c = n + 1; c < end[n]; c = end[c]) if (best < 0 || total[c] > total[best]) best = c;
  return best;
}
function neighbour(n, step) {
  for (let i = seek(depth[n], left[n]); i < first[depth[n] + 1]; i++) {
    if (levels[i] !== n) continue;
    const to = i + step;
    return to >= first[depth[n]] && to < first[depth[n] + 1] ? levels[to] : -1;
  }
  return -1;
}
scroll.addEventListener('keydown', event => {
  const moves = {
    ArrowUp: () => parent[selected], ArrowDown: () => callee(selected),
    ArrowLeft: () => neighbour(selected, -1), ArrowRight: () => neighbour(selected, 1),
    Home: () => 0,
  };
  if (event.key === 'Enter') zoom(selected);
  else if (event.key === 'Backspace') zoom(Math.max(0, parent[zoomed]));
  else if (moves[event.key]) { const n = moves[event.key](); if (n >= 0) select(n); }
  else return;
  event.preventDefault();
});
document.addEventListener('keydown', event => {
  if (event.key === 'Escape') { $('search').value = ''; search(); zoom(0); }
  else if (event.key === '/' && event.target !== $('search')) { event.preventDefault(); $('search').focus(); }
});

function search() {
  const wanted = $('search').value;
  let match = null;
  if (wanted) {
    try { const pattern = new RegExp(wanted, 'i'); match = name => pattern.test(name); }
    catch { const plain = wanted.toLowerCase(); match = name => name.toLowerCase().includes(plain); }
  }
  hits = match && Uint8Array.from(names, name => match(name) ? 1 : 0);
  $('found').textContent = '';
  if (hits) {
    let value = 0, frames = 0;
    for (let n = 1; n < count;) {
      if (hits[fn[n]]) { value += total[n]; frames++; n = end[n]; } else n++;
    }
    $('found').textContent = `${share(value)} in ${frames} subtrees`;
  }
  list();
  plan();
}
$('search').addEventListener('input', search);
$('whole').addEventListener('click', () => zoom(0));

const table = data.table;
const columns = [['Flat', row => table.flat[row], amount], ['Flat %', row => table.flat[row], share],
  ['Cum', row => table.cum[row], amount], ['Cum %', row => table.cum[row], share]];
if (diff) {
  columns.push(['Base', row => table.flat_base[row], amount],
    ['Change', row => table.flat[row] - table.flat_base[row], signed],
    ['Cum change', row => table.cum[row] - table.cum_base[row], signed],
    ['What', row => what(table.flat[row] || table.flat_base[row] ? [table.flat_base[row], table.flat[row]] : [table.cum_base[row], table.cum[row]]), text => text]);
}
columns.push(['Function', row => names[table.function[row]], text => text]);
function what([base, now]) {
  return base === now ? 'same' : !base ? 'new' : !now ? 'gone' : now > base ? 'grew' : 'shrank';
}
let order = [...table.function.keys()], shown = 0, sorted = diff ? 5 : 0, rising = false;

function sort(column) {
  rising = column === sorted ? !rising : column === columns.length - 1;
  sorted = column;
  arrange();
  list();
}
function arrange() {
  const value = columns[sorted][1], sign = rising ? 1 : -1;
  const size = v => diff && typeof v === 'number' && !rising ? Math.abs(v) : v;
  order.sort((a, b) => { const x = size(value(a)), y = size(value(b)); return x < y ? -sign : x > y ? sign : a - b; });
}
columns.forEach(([title], column) => {
  const button = document.createElement('button');
  button.type = 'button';
  button.textContent = title;
  button.addEventListener('click', () => sort(column));
  const cell = document.createElement('th');
  cell.scope = 'col';
  cell.append(button);
  $('columns').append(cell);
});
function list() {
  [...$('columns').children].forEach((cell, column) =>
    cell.setAttribute('aria-sort', column !== sorted ? 'none' : rising ? 'ascending' : 'descending'));
  if (hits) order = [...order].sort((a, b) => hits[table.function[b]] - hits[table.function[a]]);
  else arrange();
  $('rows').replaceChildren();
  shown = 0;
  more();
}
// Rows enter the document as they are scrolled to.
function more() {
  for (const row of order.slice(shown, shown + CHUNK)) {
    const line = document.createElement('tr');
    for (const [, value, format] of columns) {
      const cell = document.createElement('td');
      cell.textContent = format(value(row));
      line.append(cell);
    }
    if (hits && hits[table.function[row]]) line.className = 'hit';
    line.lastChild.addEventListener('click', () => {
      let best = -1;
      for (let n = 0; n < count; n++) if (fn[n] === table.function[row] && (best < 0 || total[n] > total[best])) best = n;
      if (best >= 0) zoom(best);
    });
    $('rows').append(line);
  }
  shown = Math.min(order.length, shown + CHUNK);
}
$('list').addEventListener('scroll', () => {
  const box = $('list');
  if (shown < order.length && box.scrollTop + box.clientHeight > box.scrollHeight - 200) more();
});

function shade() { document.documentElement.classList.toggle('dark', dark); plan(); }
$('shade').addEventListener('click', () => { dark = !dark; shade(); });
document.title = $('title').textContent = diff ? `${data.title} since ${data.base}` : data.title;
$('heading').textContent = data.heading;
$('legend').hidden = !diff;
shade();
list();
new ResizeObserver(resize).observe(scroll);
resize();
select(0);
document.documentElement.dataset.ready = Math.round(performance.now());
})();
