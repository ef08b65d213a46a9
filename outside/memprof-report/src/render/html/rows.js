// Rows of equal height, as many as there may be: only those in sight are in the document.

import { element } from './format.js';

const HEIGHT = 26;
const BEYOND = 10;

export class Rows {
  // `box` scrolls, `table` lies in it, `cells(index)` are the cells of a row, `open(index)` what Enter does.
  constructor(box, table, cells, open) {
    Object.assign(this, { box, table, cells, open, count: 0, current: -1, from: -1, to: -1 });
    this.body = element('tbody');
    this.above = element('tr', { ariaHidden: 'true' });
    this.below = element('tr', { ariaHidden: 'true' });
    table.append(this.body);
    box.tabIndex = 0;
    box.addEventListener('scroll', () => this.draw());
    box.addEventListener('keydown', event => this.key(event));
    this.body.addEventListener('click', event => {
      const row = event.target.closest('tr[aria-rowindex]');
      if (row) this.choose(row.ariaRowIndex - 2, true);
    });
    new ResizeObserver(() => { this.reveal(); this.draw(); }).observe(box);
  }

  show(count, current = -1) {
    this.count = count;
    this.current = current;
    this.table.ariaRowCount = count + 1;
    this.from = -1;
    this.reveal();
    this.draw();
  }

  choose(index, opens) {
    if (index < 0 || index >= this.count) return;
    this.current = index;
    this.from = -1;
    this.reveal();
    this.draw();
    if (opens) this.open(index);
  }

  reveal() {
    const top = this.current * HEIGHT, room = this.box.clientHeight - 2 * HEIGHT;
    if (this.current < 0 || room < 0) return;
    const above = this.box.scrollTop - top, below = -above - room;
    if (above <= 0 && below <= 0) return;
    // A step scrolls by a row; a leap ends in the middle.
    const isLeap = Math.max(above, below) > HEIGHT;
    this.box.scrollTop = isLeap ? top - room / 2 : above > 0 ? top : top - room;
  }

  draw() {
    const from = Math.max(0, Math.floor(this.box.scrollTop / HEIGHT) - BEYOND);
    const to = Math.min(this.count, from + Math.ceil(this.box.clientHeight / HEIGHT) + 2 * BEYOND);
    if (from === this.from && to === this.to) return;
    Object.assign(this, { from, to });
    this.above.style.height = from * HEIGHT + 'px';
    this.below.style.height = (this.count - to) * HEIGHT + 'px';
    const rows = [];
    for (let index = from; index < to; index++) {
      const row = element('tr', { ariaRowIndex: index + 2 });
      row.ariaSelected = index === this.current;
      row.append(...this.cells(index, row));
      rows.push(row);
    }
    this.body.replaceChildren(this.above, ...rows, this.below);
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.box.clientHeight / HEIGHT) - 2);
    const steps = { ArrowUp: -1, ArrowDown: 1, PageUp: -page, PageDown: page, Home: -this.count, End: this.count };
    if (event.key === 'Enter' && this.current >= 0) this.open(this.current);
    else if (steps[event.key]) {
      this.choose(Math.max(0, Math.min(this.count - 1, this.current + steps[event.key])));
    } else return;
    event.preventDefault();
  }
}
