// Who holds the memory: the largest functions of the newest dump of this process.

import { ask, dumpAddress, report } from './api.js';
import { hash } from './dumps.js';
import { amount, element, percent } from './viewer/format.js';
import { clock, secondsSince, span } from './words.js';

const $ = id => document.getElementById(id);

const TOP = 10;
// How long sampling goes on that the button starts, and the time until its first dump.
const SAMPLING = '10m', WAIT = 10;

let shown = null;

// Shows what the newest of `dumps` that `pid` has taken says. What is shown already stays.
export async function showHolders(dumps, pid, status) {
  offer(status, dumps.some(dump => dump.pid === pid));
  const newest = dumps.find(dump => dump.pid === pid && dump.kind === 'heap');
  const wanted = newest?.id ?? '';
  const age = document.getElementById('holders-age');
  if (age && newest) age.textContent = `${span(secondsSince(newest.taken))} ago`;
  if (wanted === shown) return;
  shown = wanted;
  if (!newest) {
    show([], 'No dump of this process yet: a dump shows who allocated the memory that is in use.');
    return;
  }
  const view = element('a', { href: hash({ view: newest.id }), textContent: 'See all of it' });
  show([], 'Looking for the names of the functions …');
  try {
    const { functions, totals, origin } = await report(newest.id, { top: TOP });
    if (wanted !== shown) return;
    const total = totals.inuse_space;
    show(functions.filter(one => one.flat > 0).map(({ name, own, flat }) => element('tr', { className: own ? 'own' : '' },
      element('td', { textContent: name, title: name }),
      element('td', { textContent: amount(flat) }),
      element('td', { textContent: percent(flat, total) }))),
    `${amount(total)} were in use at ${clock(newest.taken)}, `,
    element('span', { id: 'holders-age', textContent: `${span(secondsSince(newest.taken))} ago` }),
    `, as the samples tell${origin.active_since ? `; what was allocated before ${clock(origin.active_since)} is not in it` : ''}. `, view);
  } catch (failure) {
    if (wanted !== shown) return;
    // The next look tries again, where it was the server that was gone.
    if (failure.isGone) shown = null;
    show([], `The dump of ${clock(newest.taken)}: ${failure.message}. ${failure.remedy ?? ''} `);
  }
}

function show(rows, ...words) {
  $('holders-note').replaceChildren(...words);
  $('holder-rows').replaceChildren(...rows);
  $('holders').hidden = rows.length === 0;
}

// What the button does here, and what that costs.
function offer({ profiling, sample_interval: interval, busy }, isDumped) {
  const starts = profiling === 'inactive' && !isDumped;
  $('take').disabled = profiling === 'unavailable' || busy;
  $('take').dataset.starts = starts ? 'yes' : '';
  if (!$('take').dataset.busy) $('take').textContent = starts ? 'Sample, and take a dump' : 'Take a dump';
  const each = interval ? `of each ${amount(interval)} of allocations one is sampled` : 'some allocations are sampled';
  $('take-cost').textContent = !starts ? ''
    : `Samples for 10 minutes, with a dump after ${WAIT} seconds: ${each}, which takes the program some microseconds `
      + 'and a page of memory. What was allocated before is not seen.';
}

// Starts sampling where the button says so, and waits until there is something to see.
export async function prepareDump(say) {
  if (!$('take').dataset.starts) return;
  await ask('activate', { for: SAMPLING });
  for (let left = WAIT; left > 0; left--) {
    say(`Sampling: a dump follows in ${left} s`);
    await new Promise(resume => setTimeout(resume, 1000));
  }
}
