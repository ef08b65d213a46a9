// The kept dumps, newest first: look at one, or at what changed between two.

import { amount, element } from './viewer/format.js';
import { clock, secondsSince, span } from './words.js';

const $ = id => document.getElementById(id);

// Why a dump was taken.
const TRIGGERS = {
  message: 'asked for', every: 'time was up', 'rss-above': 'above its limit', 'rss-growth': 'grew',
  'cgroup-above': 'near the cgroup’s limit', gdump: 'a new peak', 'at-exit': 'at exit',
};

// What a dump shows that is none of the heap.
const KINDS = { growth: 'what made the heap grow', pinned: 'who keeps free memory' };

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

// A dump is compared with an older one of the same process: with the one before it, unless something
// else is chosen.
const BEFORE = '';

function options() {
  const chosen = $('base').value;
  $('base').replaceChildren(new Option('the dump before', BEFORE),
    ...dumps.slice(1).map(dump => new Option(`${clock(dump.taken)}, pid ${dump.pid}`, dump.id)));
  $('base').value = dumpOf(chosen)?.id ?? BEFORE;
  $('compare').hidden = !dumps.some(dump => older(dump).length);
  $('no-dumps').hidden = dumps.length > 0;
  $('dumps').hidden = dumps.length === 0;
}

// The dumps of the same process and kind that were taken before, newest first.
function older({ id, pid, kind }) {
  const behind = dumps.slice(dumps.findIndex(dump => dump.id === id) + 1);
  return behind.filter(dump => dump.pid === pid && dump.kind === kind);
}

function draw() {
  const chosen = $('base').value;
  $('dump-rows').replaceChildren(...dumps.map(dump => {
    const { id, taken, kind, trigger, rss_bytes: rss, pid } = dump;
    const time = clock(taken);
    const why = (TRIGGERS[trigger] ?? trigger ?? '') + (kind === 'heap' ? '' : `: ${KINDS[kind] ?? kind}`);
    const links = [element('a', { href: hash({ view: id }), textContent: 'View', ariaLabel: `View the dump of ${time}` })];
    const base = older(dump).find(one => chosen === BEFORE || one.id === chosen);
    if (base) links.push(element('a', {
      href: hash({ view: id, base: base.id }), textContent: 'Diff',
      ariaLabel: `Diff: what changed from ${clock(base.taken)} to the dump of ${time}`,
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

// The dumps that this one may be compared with.
export function others(id) {
  const dump = dumpOf(id);
  return (dump ? older(dump) : []).map(one => new Option(`the dump of ${clock(one.taken)}`, one.id));
}
