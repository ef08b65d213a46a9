// The kept dumps, newest first: look at one, or at what changed between two.

import { amount, element } from './viewer/format.js';
import { clock, secondsSince, span } from './words.js';

const $ = id => document.getElementById(id);

let shown = null, dumps = [];

export const hash = state => `#${new URLSearchParams(Object.entries(state).filter(([, value]) => value))}`;

export const dumpOf = id => dumps.find(dump => dump.id === id);

export function prepareDumps() {
  $('base').addEventListener('change', draw);
}

export function showDumps(list, newest) {
  const ids = list.map(dump => dump.id).join();
  dumps = list;
  if (ids !== shown) {
    shown = ids;
    options();
    draw();
  }
  for (const [index, dump] of dumps.entries()) {
    const age = $('dump-rows').children[index].querySelector('small');
    age.textContent = `${span(secondsSince(dump.taken))} ago`;
  }
  if (newest) {
    const row = $('dump-rows').children[dumps.findIndex(dump => dump.id === newest)];
    row?.classList.add('newest');
  }
}

// Diffs are with the oldest dump of the process that took the newest, unless something else is chosen.
function options() {
  const before = $('base').value;
  $('base').replaceChildren(...dumps.map(dump => new Option(`${clock(dump.taken)}, pid ${dump.pid}`, dump.id)));
  const own = dumps.filter(dump => dump.pid === dumps[0].pid);
  $('base').value = dumpOf(before)?.id ?? own.at(-1)?.id ?? '';
  $('compare').hidden = dumps.length < 2;
  $('no-dumps').hidden = dumps.length > 0;
  $('dumps').hidden = dumps.length === 0;
}

function draw() {
  const base = $('base').value;
  $('dump-rows').replaceChildren(...dumps.map(({ id, taken, bytes, pid }) => {
    const time = clock(taken);
    const links = [element('a', { href: hash({ view: id }), textContent: 'View', ariaLabel: `View the dump of ${time}` })];
    if (id !== base) links.push(element('a', {
      href: hash({ view: id, base }), textContent: 'Diff', ariaLabel: `What changed up to the dump of ${time}`,
    }));
    return element('tr', {},
      element('td', {}, time, ' ', element('small')),
      element('td', { className: 'links' }, ...links),
      element('td', { textContent: pid }),
      element('td', { textContent: amount(bytes) }));
  }));
}

// The dumps to choose another one from, to compare with.
export const others = id => dumps.filter(dump => dump.id !== id)
  .map(dump => new Option(`the dump of ${clock(dump.taken)}`, dump.id));
