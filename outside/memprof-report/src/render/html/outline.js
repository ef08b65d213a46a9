// Rows that lie below each other, as an outline in a table: sorted by any column, searched by name.

import { amount, element } from './format.js';
import { search } from './profile.js';
import { Rows } from './rows.js';

// Up to this share of the greatest value of the first column, a row is closed at first.
const OPEN_ABOVE = 0.05;
const TEXTS = { bytes: value => amount(value), count: value => amount(value, 'count'), text: value => value };

export class Outline {
  // `view` has columns, the last of which are names, and the depth of each row, a row before those below it.
  constructor(place, view) {
    Object.assign(this, { columns: view.columns, depth: view.depth, hits: null, isShown: null });
    this.names = this.columns.at(-1).values;
    this.end = endsOf(this.depth);
    const values = this.columns[0].values;
    const least = OPEN_ABOVE * values.reduce((most, value) => Math.max(most, value ?? 0), 0);
    this.chosen = Uint8Array.from(this.end, (end, n) => end > n + 1 && values[n + 1] > least ? 1 : 0);
    this.isOpen = this.chosen.slice();
    this.sorting = { column: this.columns[0], rising: false };
    const heads = element('tr');
    for (const column of this.columns) {
      const button = element('button', { type: 'button', textContent: column.title, title: column.help });
      button.addEventListener('click', () => this.sort(column));
      column.head = element('th', { scope: 'col', className: lookOf(column) }, button);
      heads.append(column.head);
    }
    const table = element('table', { role: 'treegrid' }, element('caption', { textContent: view.title }),
      element('thead', {}, heads));
    place.append(table);
    this.rows = new Rows(place, table, (index, row) => this.cells(index, row), index => this.toggle(index));
    place.addEventListener('keydown', event => this.key(event));
    this.arrange();
  }

  cells(index, row) {
    const n = this.order[index], name = this.names[n], isParent = this.end[n] > n + 1;
    row.ariaLevel = this.depth[n] + 1;
    if (isParent) row.ariaExpanded = this.isOpen[n] === 1;
    const textContent = !isParent ? '·' : this.isOpen[n] ? '▾' : '▸';
    const marker = element('span', { className: 'marker', textContent, ariaHidden: 'true' });
    const last = element('td', { className: 'name', title: name }, marker, name);
    last.style.paddingLeft = `${8 + Math.min(this.depth[n], 60) * 14}px`;
    if (this.hits?.[n]) last.classList.add('hit');
    const cells = this.columns.slice(0, -1).map(column => {
      const value = column.values[n];
      return element('td', { className: lookOf(column), textContent: value === null ? '' : TEXTS[column.kind](value) });
    });
    return [...cells, last];
  }

  sort(column) {
    const { column: before, rising } = this.sorting;
    const isWord = column.kind === 'name' || column.kind === 'text';
    this.sorting = { column, rising: column === before ? !rising : isWord };
    this.arrange();
  }

  // Shows the rows whose names match, those above and those below them; returns how many match. What is opened for
  // that is closed again by the next search.
  filter(wanted) {
    this.isOpen = this.chosen.slice();
    this.hits = search(this, wanted);
    this.isShown = this.hits && this.hits.slice();
    const { depth, end, hits, isShown } = this;
    if (!hits) {
      this.arrange();
      return 0;
    }
    const above = [];
    for (let n = 0; n < hits.length; n++) {
      above.length = depth[n];
      above[depth[n]] = n;
      if (!hits[n]) continue;
      isShown.fill(1, n, end[n]);
      for (const p of above.slice(0, -1)) isShown[p] = this.isOpen[p] = 1;
    }
    this.arrange();
    return hits.reduce((sum, hit) => sum + hit, 0);
  }

  arrange(current = -1) {
    const { column: { values, head }, rising } = this.sorting;
    const sign = rising ? 1 : -1, [{ values: amounts }] = this.columns;
    // Rows without an amount, as the frames of a stack, have an order of their own.
    const compare = (a, b) => amounts[a] === null || values[a] === values[b] ? a - b : values[a] < values[b] ? -sign : sign;
    this.order = [];
    const waiting = this.siblings(0, this.end.length).sort(compare).reverse();
    while (waiting.length) {
      const n = waiting.pop();
      this.order.push(n);
      if (this.isOpen[n]) waiting.push(...this.siblings(n + 1, this.end[n]).sort(compare).reverse());
    }
    for (const each of this.columns) {
      each.head.ariaSort = each.head !== head ? 'none' : rising ? 'ascending' : 'descending';
    }
    this.rows.show(this.order.length, current < 0 ? -1 : this.order.indexOf(current));
  }

  // Those that are shown of the rows in a range, without what is below them.
  siblings(from, to) {
    const rows = [];
    for (let n = from; n < to; n = this.end[n]) if (!this.isShown || this.isShown[n]) rows.push(n);
    return rows;
  }

  toggle(index, open = !this.isOpen[this.order[index]]) {
    const n = this.order[index];
    this.isOpen[n] = this.chosen[n] = open && this.end[n] > n + 1 ? 1 : 0;
    this.arrange(n);
  }

  key(event) {
    const index = this.rows.current, n = this.order[index];
    if (index < 0) return;
    if (event.key === 'ArrowRight') this.toggle(index, true);
    else if (event.key === 'ArrowLeft') {
      if (this.isOpen[n]) this.toggle(index, false);
      else this.rows.choose(this.order.findLastIndex((other, at) => at < index && this.depth[other] < this.depth[n]));
    } else return;
    event.preventDefault();
  }
}

function lookOf({ kind, wide }) {
  return kind === 'name' ? 'name' : [wide ? 'wide' : '', kind === 'text' ? 'place' : ''].join(' ').trim();
}

// By row: the first one behind it that does not lie below it.
function endsOf(depth) {
  const end = new Uint32Array(depth.length), open = [];
  for (let n = 0; n <= depth.length; n++) {
    while (open.length && (n === depth.length || depth[open.at(-1)] >= depth[n])) end[open.pop()] = n;
    open.push(n);
  }
  return end;
}
