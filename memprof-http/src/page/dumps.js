// The kept dumps, newest first: look at one, or at what changed between two.

import { amount, element } from './viewer/format.js';
import { clock, secondsSince, span } from './words.js';

const $ = id => document.getElementById(id);

// Why a dump was taken.
const TRIGGERS = {
  message: 'asked for', every: 'time was up', 'rss-above': 'above its limit', 'rss-growth': 'grew',
  'cgroup-above': 'near the cgroup’s limit', gdump: 'a new peak', 'at-exit': 'at exit',
};

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
  $('dump-rows').replaceChildren(...dumps.map(({ id, taken, kind, trigger, rss_bytes: rss, pid }) => {
    const time = clock(taken);
    const why = (TRIGGERS[trigger] ?? trigger ?? '') + (kind === 'growth' ? ' (growth)' : '');
    const links = [element('a', { href: hash({ view: id }), textContent: 'View', ariaLabel: `View the dump of ${time}` })];
    if (id !== base) links.push(element('a', {
      href: hash({ view: id, base }), textContent: 'Diff', ariaLabel: `What changed up to the dump of ${time}`,
    }));
    return element('tr', {},
      element('td', {}, time, ' ', element('small')),
      element('td', { className: 'links' }, ...links),
      element('td', { textContent: why }),
      element('td', { textContent: rss ? amount(rss) : '' }),
      element('td', { textContent: pid }));
  }));
}

// The host's own rules for taking dumps, in the words of its config.
export function showRules(rules) {
  const texts = rules.map(({ rule, fired, next }) =>
    `${rule} (${fired} so far${next ? `, next not before ${clock(next)}` : ''})`);
  $('rules').textContent = texts.length ? `The host takes dumps by itself: ${texts.join('; ')}.` : '';
  $('rules').hidden = texts.length === 0;
}

// The dumps to choose another one from, to compare with.
export const others = id => dumps.filter(dump => dump.id !== id)
  .map(dump => new Option(`the dump of ${clock(dump.taken)}`, dump.id));
