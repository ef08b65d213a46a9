// The call tree as an outline: callers above, what they call below.

import { amount, change, element, percent } from './format.js';
import { heaviest, weight } from './profile.js';
import { Rows } from './rows.js';

// Up to this share of the greatest value, or change, a node is closed at first.
const NOTABLE = 0.05;
// So many of the places that a search finds are opened.
const OPENED = 20;

export class Tree {
  // `select(n)` is called for the node whose row is chosen.
  constructor(place, profile, select) {
    Object.assign(this, { profile, select, hits: null });
    this.isOpen = new Uint8Array(profile.count);
    const notable = NOTABLE * heaviest(profile);
    for (let n = 0; n < profile.count; n++) this.isOpen[n] = !n || weight(profile, n) > notable ? 1 : 0;
    const titles = profile.isDiff ? ['Total change', 'Total', 'Function'] : ['Total', 'Total %', 'Own', 'Function'];
    const looks = profile.isDiff ? ['change', 'wide', 'name'] : ['', 'wide', 'wide', 'name'];
    const heads = titles.map((title, i) =>
      element('th', { scope: 'col', className: looks[i] }, element('span', { textContent: title })));
    const table = element('table', { role: 'treegrid' }, element('caption', { textContent: 'Call tree' }),
      element('thead', {}, element('tr', {}, ...heads)));
    place.append(table);
    this.looks = looks;
    this.rows = new Rows(place, table, (index, row) => this.cells(index, row), index => this.toggle(index));
    place.addEventListener('keydown', event => this.key(event));
    this.arrange();
  }

  cells(index, row) {
    const { profile } = this;
    const { depth, total, totalBase, own, unit, isDiff, whole } = profile;
    const n = this.order[index], name = profile.nameOf(n);
    const values = isDiff ? [change(total[n] - totalBase[n], unit), amount(total[n], unit)]
      : [amount(total[n], unit), percent(total[n], whole), amount(own[n], unit)];
    const hasCallees = profile.end[n] > n + 1;
    row.ariaLevel = depth[n] + 1;
    if (hasCallees) row.ariaExpanded = this.isOpen[n] === 1;
    const marker = element('span', { className: 'marker', textContent: !hasCallees ? '·' : this.isOpen[n] ? '▾' : '▸' });
    const last = element('td', { className: 'name', title: name }, marker, name);
    last.style.paddingLeft = `${8 + Math.min(depth[n], 60) * 14}px`;
    if (n && !profile.isOwn(profile.fn[n])) last.classList.add('foreign');
    if (this.hits && profile.fn[n] >= 0 && this.hits[profile.fn[n]]) last.classList.add('hit');
    const cells = values.map((textContent, i) => element('td', { textContent, className: this.looks[i] }));
    const changed = isDiff ? total[n] - totalBase[n] : 0;
    if (changed) cells[0].classList.add(changed > 0 ? 'grew' : 'shrank');
    return [...cells, last];
  }

  arrange(current = -1) {
    const { profile, isOpen } = this;
    this.order = [];
    const waiting = [0];
    while (waiting.length) {
      const n = waiting.pop();
      this.order.push(n);
      if (!isOpen[n]) continue;
      const callees = [];
      for (let c = n + 1; c < profile.end[n]; c = profile.end[c]) callees.push(c);
      callees.sort((a, b) => weight(profile, a) - weight(profile, b) || b - a);
      waiting.push(...callees);
    }
    this.rows.show(this.order.length, current < 0 ? -1 : this.order.indexOf(current));
  }

  toggle(index, open = !this.isOpen[this.order[index]]) {
    const n = this.order[index];
    this.isOpen[n] = open ? 1 : 0;
    this.arrange(n);
    this.select(n);
  }

  // Opens the way to some nodes, and chooses the first.
  reveal(nodes) {
    for (const n of nodes) {
      for (let p = this.profile.parent[n]; p >= 0; p = this.profile.parent[p]) this.isOpen[p] = 1;
    }
    this.arrange(nodes[0] ?? -1);
  }

  // Marks the functions in `hits`, and opens the way to the first of the nodes that have them.
  filter(hits, nodes) {
    this.hits = hits;
    this.reveal(nodes.slice(0, OPENED));
  }

  key(event) {
    const index = this.rows.current, n = this.order[index];
    if (event.key === 'ArrowRight' && index >= 0) this.toggle(index, true);
    else if (event.key === 'ArrowLeft' && index >= 0) {
      if (this.isOpen[n]) this.toggle(index, false);
      else this.rows.choose(this.order.indexOf(this.profile.parent[n]));
    } else return;
    event.preventDefault();
  }
}
