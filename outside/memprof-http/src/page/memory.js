// The ledger: where the resident memory is, as a bar with its rows, and over the time that the page is open.

import { amount, change, element, percent } from './viewer/format.js';
import { marked, span } from './words.js';

const $ = id => document.getElementById(id);

// What each row of the ledger is called here.
const ROWS = {
  live_heap: ['Live heap', 'a dump shows who allocated it'],
  thread_caches: ['Free, in caches of threads', 'for their next allocations'],
  sampling: ['What sampling costs', 'deactivate, or sample more coarsely'],
  fragmentation: ['Fragmentation', 'free, in pages partly in use'],
  dirty: ['Free, kept by the allocator', 'for the next allocation'],
  metadata: ['The allocator’s own records', ''],
  undivided_heap: ['Heap, not divided', 'its allocator does not say how it is used'],
  not_the_allocator: ['Outside of the allocator', 'stacks, mmap; in no dump'],
  file: ['Files', 'the program and its libraries'],
  shared: ['Shared memory', ''],
};
// An hour of looks at the host.
const KEPT = 1800;
// A trend needs some time.
const ENOUGH = 20;

const history = [];

// `purge` gives free pages back; `pinned` shows who keeps the others, and is null where nobody can tell.
export function showMemory(ledger, { purge, pinned }) {
  const { rss_bytes: rss, rows, cgroup, verdicts } = ledger;
  const limit = cgroup?.limit_bytes;
  const of = limit ? `; the limit is ${amount(limit)}, of which ${percent(cgroup.usage_bytes, limit)} are used` : '';
  $('resident').textContent = `${amount(rss)} resident${of}`;
  draw(rows, rss, { purge, pinned });
  $('verdicts').replaceChildren(...verdicts.map(verdict => element('li', {},
    element('strong', { textContent: title(verdict.kind) }),
    ...marked(`: ${verdict.why}. ${verdict.remedy[0].toUpperCase()}${verdict.remedy.slice(1)}.`))));
  const heap = rows.find(row => row.name === 'live_heap')?.bytes ?? 0;
  history.push({ at: performance.now() / 1000, rss, heap });
  if (history.length > KEPT) history.shift();
  drawLine();
}

// Another process has another history.
export function forgetMemory() {
  history.length = 0;
}

function draw(rows, rss, { purge, pinned }) {
  if ($('bar').children.length !== rows.length) build(rows);
  rows.forEach(({ name, bytes }, index) => {
    $('bar').children[index].style.width = `${100 * bytes / (rss || 1)}%`;
    const [, , size, share] = $(`row-${name}`).children;
    size.textContent = amount(bytes);
    share.textContent = percent(bytes, rss);
    if (name === 'dirty') offer('purge', bytes && purge);
    if (name === 'fragmentation') offer('pinned', bytes && pinned);
    // Only some allocators have it.
    if (name === 'undivided_heap' || name === 'thread_caches') $(`row-${name}`).hidden = bytes === 0;
  });
}

function offer(id, act) {
  $(id).hidden = !act;
  $(id).onclick = act || null;
}

// The buttons of rows.
const ACTS = {
  dirty: { id: 'purge', textContent: 'Give back', title: 'Tells the allocator to return its free pages to the kernel now' },
  fragmentation: { id: 'pinned', textContent: 'Who keeps it?', title: 'Takes a dump that shows whose objects keep these pages in use' },
};

function build(rows) {
  $('bar').replaceChildren(...rows.map(({ name }) => element('div', { className: name, title: title(name) })));
  $('ledger-rows').replaceChildren(...rows.map(({ name }) => {
    const words = element('td', {}, title(name));
    const hint = ROWS[name]?.[1];
    if (hint) words.append(' ', element('small', { textContent: hint }));
    if (ACTS[name]) words.append(' ', element('button', { type: 'button', className: 'act', ...ACTS[name] }));
    const swatch = element('td', {}, element('i', { className: name }));
    return element('tr', { id: `row-${name}` }, swatch, words, element('td'), element('td'));
  }));
}

const title = name => ROWS[name]?.[0] ?? name.replaceAll('_', ' ');

function drawLine() {
  const [first, last] = [history[0], history.at(-1)];
  const time = Math.max(last.at - first.at, 1), top = Math.max(...history.map(look => look.rss), 1);
  const points = value => history
    .map(look => `${(600 * (look.at - first.at) / time).toFixed(1)},${(136 - 132 * value(look) / top).toFixed(1)}`)
    .join(' ');
  $('line-top').textContent = amount(top);
  $('line-rss').setAttribute('points', points(look => look.rss));
  $('line-heap').setAttribute('points', points(look => look.heap));
  const key = (className, text) => element('span', { className }, text);
  if (last.at - first.at < ENOUGH) {
    $('trend').replaceChildren(key('key-rss', 'resident'), key('key-heap', 'live heap'), 'since this page is open');
    return;
  }
  const rate = (last.heap - first.heap) / time * 3600;
  $('trend').replaceChildren(
    key('key-rss', `resident ${change(last.rss - first.rss, 'bytes')}`),
    key('key-heap', `live heap ${change(last.heap - first.heap, 'bytes')}`),
    `in ${span(time)}${rate > 0 ? `; at this rate the heap grows ${amount(Math.round(rate))} per hour` : ''}`);
}
