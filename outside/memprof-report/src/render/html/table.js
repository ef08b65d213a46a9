// The functions of a profile in a table that is sorted by any of its columns.

import { amount, change, element, percent, span } from './format.js';
import { KINDS } from './profile.js';
import { Rows } from './rows.js';
import { survivalLine } from './survival.js';

// Below this many samples the table says how large the error is.
const FEW = 20;

export class Table {
  // `open(f)` is called for the function whose row is chosen.
  constructor(place, profile, open) {
    Object.assign(this, { profile, hits: null, kind: 0 });
    this.columns = columnsOf(profile);
    const first = this.columns.findIndex(column => column.first);
    this.sorting = { column: this.columns[first], rising: false };
    const heads = element('tr');
    for (const column of this.columns) {
      const button = element('button', { type: 'button', textContent: column.title, title: column.help });
      button.addEventListener('click', () => this.sort(column));
      column.head = element('th', { scope: 'col', className: column.look ?? '' }, button);
      heads.append(column.head);
    }
    const table = element('table', {}, element('caption', { textContent: 'Functions' }), element('thead', {}, heads));
    place.append(table);
    this.rows = new Rows(place, table, index => this.cells(index), index => open(this.order[index]));
    this.arrange();
  }

  cells(index) {
    const f = this.order[index];
    const folded = this.profile.isOwn(f) ? '' : ' foreign';
    return this.columns.map(({ text, look = '', colour = () => '', line }) => {
      const value = text(f);
      const cell = element('td', { className: `${look} ${colour(f)}${folded}`, textContent: value });
      if (look === 'name') cell.title = value;
      if (line) cell.prepend(line(f), ' ');
      return cell;
    });
  }

  sort(column) {
    const { column: before, rising } = this.sorting;
    this.sorting = { column, rising: column === before ? !rising : column.look === 'name' };
    this.arrange();
  }

  // Shows the functions in `hits` only, and those that changed in that way.
  filter(hits, kind) {
    if (hits === this.hits && kind === this.kind) return;
    Object.assign(this, { hits, kind });
    this.arrange();
  }

  arrange() {
    const { column, rising } = this.sorting;
    const { cum, cumBase, kind, distance } = this.profile.table;
    this.order = [];
    for (let f = 0; f < cum.length; f++) {
      const there = cum[f] || cumBase[f];
      if (there && (!this.hits || this.hits[f]) && (!this.kind || kind[f] === this.kind)) this.order.push(f);
    }
    const key = this.order.length ? column.key() : [];
    const sign = rising ? 1 : -1;
    this.order.sort((a, b) => key[a] < key[b] ? -sign : key[a] > key[b] ? sign : distance[a] - distance[b] || a - b);
    for (const { head } of this.columns) {
      head.ariaSort = head !== column.head ? 'none' : rising ? 'ascending' : 'descending';
    }
    this.rows.box.scrollTop = 0;
    this.rows.show(this.order.length);
  }
}

function columnsOf({ isDiff, isPinned, unit, names, table, whole, byCum, ages }) {
  const { flat, flatBase, cum, cumBase, kind, samples, error, isSampled } = table;
  const difference = (now, before) => f => now[f] - before[f];
  const ofSize = value => () => Float64Array.from(flat, (_, f) => Math.abs(value(f)));
  const values = (title, help, values, first) =>
    ({ title, help, first, key: () => values.map(Math.abs), text: f => amount(values[f], unit) });
  const changes = (title, help, value, look, first) => ({
    title, help, look, first, key: ofSize(value), text: f => change(value(f), unit),
    colour: f => value(f) > 0 ? 'grew' : value(f) < 0 ? 'shrank' : '',
  });
  const shares = (title, help, values) =>
    ({ title, help, look: 'wide', key: () => values.map(Math.abs), text: f => percent(values[f], whole) });
  const own = isPinned ? 'Free memory that objects keep which the function allocated itself' : 'What the function allocated itself';
  const all = 'With everything that it calls';
  const name = { title: 'Function', look: 'name', key: () => names, text: f => names[f] };
  const shown = byCum ? cum : flat, shownBase = byCum ? cumBase : flatBase;
  const sure = {
    title: 'Samples', look: 'wide', key: () => samples,
    help: 'How many samples the value rests on; below 20, the standard error of the value',
    text: f => samples[f] && samples[f] < FEW && shown[f]
      ? `${samples[f]} ±${(100 * error[f] / shown[f]).toFixed(0)} %` : `${samples[f]}`,
  };
  const aged = () => ({
    title: 'Half age', look: 'wide ages', key: () => ages.half,
    help: `What is alive by age, young to old, ${span(ages.length)} a step: a leak is level, a cache decays. `
      + 'Half of the bytes are younger than the age told',
    line: f => survivalLine(ages.held[f], ages.columns, 'Alive by age, young to old'),
    text: f => ages.half[f] ? span(ages.half[f]) : '',
  });
  // Two standard errors are what sampling alone may make of no change at all.
  const isNoise = f => Math.abs(shown[f] - shownBase[f]) < 2 * error[f];
  if (!isDiff) {
    return [values('Own', own, flat, !byCum), shares('Own %', own, flat), values('Total', all, cum, byCum),
      shares('Total %', all, cum), ...(isSampled ? [sure] : []), ...(ages ? [aged()] : []), name];
  }
  return [
    changes('Change', `${own}, since the base`, difference(flat, flatBase), byCum ? 'change wide' : 'change', !byCum),
    changes('Total change', `${all}, since the base`, difference(cum, cumBase), byCum ? 'change' : 'change wide', byCum),
    { ...values('Own', own, flat), look: 'wide' },
    { ...values('Base', `${own}, in the base`, flatBase), look: 'wide' },
    { title: 'What', look: 'wide word', key: () => kind, text: f => KINDS[kind[f]] + (isNoise(f) ? ', noise' : '') },
    name,
  ];
}
