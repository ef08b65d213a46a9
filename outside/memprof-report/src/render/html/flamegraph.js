// The call tree as a picture: callers above, callees below, width by value. Only what is in sight is drawn.

import { heaviest, weight } from './profile.js';

const ROW = 20;
const FONT = '12px system-ui, sans-serif';
// Narrower than this there is no room for a name.
const NAMED = 24;
// Neighbours narrower than this are drawn as one grey piece.
const CROWDED = 1.5;
// Steps of a colour, from hardly changed to changed most.
const SHADES = 12;

export class Flamegraph {
  // `on.select(n)`, `on.zoom(n)` and `on.hover(n)` are called with nodes; -1 is none.
  constructor(place, profile, on) {
    Object.assign(this, { place, profile, on, zoomed: 0, selected: 0, hovered: -1, hits: null, planned: false });
    this.arrange();
    this.canvas = document.createElement('canvas');
    this.room = document.createElement('div');
    this.room.append(this.canvas);
    place.append(this.room);
    place.tabIndex = 0;
    place.role = 'application';
    place.ariaLabel = 'Flamegraph. Arrows move, Enter zooms, Backspace zooms out. The table has the same numbers.';
    this.pen = this.canvas.getContext('2d', { alpha: false });
    this.canvas.addEventListener('mousemove', event => this.hover(this.at(event)));
    this.canvas.addEventListener('mouseleave', () => this.hover(-1));
    this.canvas.addEventListener('click', event => this.click(this.at(event)));
    place.addEventListener('scroll', () => this.plan());
    place.addEventListener('keydown', event => this.key(event));
    this.dark = matchMedia('(prefers-color-scheme: dark)');
    this.dark.addEventListener('change', () => { this.paint(); this.plan(); });
    this.paint();
    new ResizeObserver(() => this.resize()).observe(place);
  }

  // Where each node begins, in the profile's unit, and the nodes of each level from left to right.
  arrange() {
    const { count, depth, parent, size } = this.profile;
    let deepest = 0;
    for (let n = 0; n < count; n++) deepest = Math.max(deepest, depth[n]);
    const left = new Float64Array(count), next = new Float64Array(count);
    for (let n = 1; n < count; n++) {
      const p = parent[n];
      left[n] = left[p] + next[p];
      next[p] += size[n];
    }
    const first = new Uint32Array(deepest + 2);
    for (let n = 0; n < count; n++) first[depth[n] + 1]++;
    for (let d = 0; d <= deepest; d++) first[d + 1] += first[d];
    const levels = new Uint32Array(count), fill = first.slice();
    for (let n = 0; n < count; n++) levels[fill[depth[n]]++] = n;
    Object.assign(this, { deepest, left, first, levels });
  }

  // The colours: warm hues by name; in a diff orange and blue by change, which all eyes tell apart.
  paint() {
    const dark = this.dark.matches, { profile } = this;
    const style = getComputedStyle(this.place);
    this.colours = Object.fromEntries(['back', 'text', 'mark', 'hit', 'plain']
      .map(name => [name, style.getPropertyValue(`--${name}`)]));
    this.warm = Array.from({ length: 56 }, (_, hue) => `hsl(${hue} ${dark ? 42 : 82}% ${dark ? 33 : 76}%)`);
    const shades = hue => Array.from({ length: SHADES + 1 }, (_, step) => step === 0 ? this.colours.plain
      : `hsl(${hue} ${25 + 65 * step / SHADES}% ${dark ? 26 + 8 * step / SHADES : 90 - 28 * step / SHADES}%)`);
    this.grew = shades(30);
    this.shrank = shades(208);
    this.greatest = heaviest(profile) || 1;
    this.hue ??= Uint8Array.from(profile.names, name => {
      let hash = 7;
      for (let i = 0; i < name.length; i++) hash = (hash * 31 + name.charCodeAt(i)) & 0xffff;
      return hash % 56;
    });
  }

  colour(n) {
    const { profile: { fn, isDiff, isOwn, total, totalBase }, colours } = this;
    if (this.isHit(n)) return colours.hit;
    if (fn[n] < 0) return colours.plain;
    if (!isDiff && !isOwn(fn[n])) return colours.plain;
    if (!isDiff) return this.warm[this.hue[fn[n]]];
    const changed = total[n] - totalBase[n];
    const step = Math.ceil(SHADES * Math.sqrt(Math.abs(changed) / this.greatest));
    return (changed > 0 ? this.grew : this.shrank)[step];
  }

  plan() {
    if (this.planned) return;
    this.planned = true;
    requestAnimationFrame(() => { this.planned = false; this.draw(); });
  }

  resize() {
    const { canvas, place } = this, scale = devicePixelRatio || 1;
    this.width = place.clientWidth;
    this.height = place.clientHeight;
    canvas.width = this.width * scale;
    canvas.height = this.height * scale;
    canvas.style.width = `${this.width}px`;
    canvas.style.height = `${this.height}px`;
    this.room.style.height = `${Math.max(this.height, (this.deepest + 1) * ROW)}px`;
    this.pen.setTransform(scale, 0, 0, scale, 0, 0);
    this.pen.font = FONT;
    this.letter = this.pen.measureText('handle_request::parse').width / 21;
    this.draw();
  }

  // The index in `levels` of the first node of a level that ends right of x.
  seek(level, x) {
    const { left, levels, profile: { size } } = this;
    let low = this.first[level], high = this.first[level + 1];
    while (low < high) {
      const middle = (low + high) >> 1, n = levels[middle];
      if (left[n] + size[n] > x) high = middle; else low = middle + 1;
    }
    return low;
  }

  draw() {
    const { pen, place, colours, width, height, left, profile: { size } } = this;
    if (!width) return;
    const from = left[this.zoomed], scale = width / (size[this.zoomed] || 1), top = place.scrollTop;
    pen.fillStyle = colours.back;
    pen.fillRect(0, 0, width, height);
    pen.textBaseline = 'middle';
    const last = Math.min(this.deepest, Math.floor((top + height) / ROW));
    for (let level = Math.floor(top / ROW); level <= last; level++) {
      this.drawLevel(level, level * ROW - top, from, from + size[this.zoomed], scale);
    }
    place.dataset.drawn = this.zoomed;
  }

  drawLevel(level, y, from, to, scale) {
    const { pen, width, left, levels, first, colours, profile: { size } } = this;
    // A crowd from start to end that is not drawn yet; up to `taken` the pixels belong to a hit in one.
    let start = 0, end = 0, taken = 0;
    const crowd = () => {
      if (end <= start) return;
      pen.fillStyle = colours.plain;
      pen.fillRect(start, y, Math.max(end - start, 1), ROW - 1);
      end = start;
    };
    for (let i = this.seek(level, from); i < first[level + 1]; i++) {
      const n = levels[i];
      if (left[n] >= to) break;
      const x = Math.max(0, (left[n] - from) * scale), right = Math.min(width, (left[n] + size[n] - from) * scale);
      const isMarked = n === this.selected || n === this.hovered;
      if (right - x < CROWDED && !isMarked) {
        if (right <= taken) continue;
        if (this.isHit(n)) {
          crowd();
          taken = Math.ceil(right);
          pen.fillStyle = colours.hit;
          pen.fillRect(taken - 1, y, 1, ROW - 1);
          continue;
        }
        if (end <= start || x > end + 1) {
          crowd();
          start = Math.max(x, taken);
        }
        end = right;
        continue;
      }
      crowd();
      const w = Math.max(right - x, 1);
      pen.fillStyle = this.colour(n);
      pen.fillRect(x, y, w > 3 ? w - 0.5 : w, ROW - 1);
      if (w > NAMED) this.label(n, x, y, w);
      if (!isMarked) continue;
      pen.strokeStyle = colours.mark;
      pen.lineWidth = n === this.selected ? 2 : 1;
      pen.strokeRect(x + 1, y + 1, Math.max(w - 2, 1), ROW - 3);
    }
    crowd();
  }

  isHit(n) {
    const f = this.profile.fn[n];
    return this.hits !== null && f >= 0 && this.hits[f] === 1;
  }

  label(n, x, y, w) {
    const { pen, letter, profile: { isDiff, nameOf, total, totalBase } } = this;
    const sign = !isDiff || total[n] === totalBase[n] ? '' : total[n] > totalBase[n] ? '▲ ' : '▼ ';
    const text = sign + nameOf(n), fits = Math.floor((w - 6) / letter);
    pen.fillStyle = this.colours.text;
    pen.fillText(text.length > fits ? `${text.slice(0, Math.max(fits - 1, 1))}…` : text, x + 4, y + ROW / 2, w - 6);
  }

  at({ clientX, clientY }) {
    const box = this.canvas.getBoundingClientRect();
    const level = Math.floor((clientY - box.top + this.place.scrollTop) / ROW);
    if (level < 0 || level > this.deepest) return -1;
    const x = this.left[this.zoomed] + (clientX - box.left) / this.width * this.profile.size[this.zoomed];
    const i = this.seek(level, x);
    return i < this.first[level + 1] && this.left[this.levels[i]] <= x ? this.levels[i] : -1;
  }

  hover(n) {
    if (n === this.hovered) return;
    this.hovered = n;
    this.on.hover(n);
    this.plan();
  }

  click(n) {
    if (n >= 0) this.on.zoom(n);
  }

  select(n) {
    this.selected = n;
    const y = this.profile.depth[n] * ROW;
    if (y < this.place.scrollTop) this.place.scrollTop = y;
    if (y + ROW > this.place.scrollTop + this.height) this.place.scrollTop = y + ROW - this.height;
    this.plan();
  }

  // Makes a node as wide as the picture. One that holds nothing now has no width.
  zoom(n) {
    this.zoomed = this.profile.size[n] > 0 ? n : 0;
    this.select(n);
  }

  filter(hits) {
    this.hits = hits;
    this.plan();
  }

  callee(n) {
    let best = -1;
    for (let c = n + 1; c < this.profile.end[n]; c = this.profile.end[c]) {
      if (best < 0 || weight(this.profile, c) > weight(this.profile, best)) best = c;
    }
    return best;
  }

  neighbour(n, step) {
    const { depth } = this.profile, { first, levels } = this;
    const to = levels.subarray(first[depth[n]], first[depth[n] + 1]).indexOf(n) + first[depth[n]] + step;
    return to >= first[depth[n]] && to < first[depth[n] + 1] ? levels[to] : -1;
  }

  key(event) {
    const { selected, profile: { parent } } = this;
    const moves = {
      ArrowUp: () => parent[selected],
      ArrowDown: () => this.callee(selected),
      ArrowLeft: () => this.neighbour(selected, -1),
      ArrowRight: () => this.neighbour(selected, 1),
      Home: () => 0,
    };
    const move = moves[event.key];
    if (event.key === 'Enter') this.on.zoom(selected);
    else if (event.key === 'Backspace') this.on.zoom(Math.max(0, parent[this.zoomed]));
    else if (!move) return;
    const to = move?.() ?? -1;
    if (to >= 0) this.on.select(to);
    event.preventDefault();
  }
}
