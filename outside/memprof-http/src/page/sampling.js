// Whether the host samples its allocations, and the switch for it.

import { amount } from './viewer/format.js';
import { clock, secondsSince, span } from './words.js';

const $ = id => document.getElementById(id);

const TIMES = [['5m', '5 minutes'], ['10m', '10 minutes'], ['30m', '30 minutes'], ['2h', '2 hours'], ['1d', 'a day'],
  ['', 'ever, until stopped']];
const USUAL = '10m';
const INTERVALS = [[19, 'usual'], [16, 'finer, costs more'], [12, 'finest, slows the program down']];

const STATES = { active: 'sampling', inactive: 'not sampling', unavailable: 'cannot be profiled' };

// `change(message, args)` sends a message that changes the host.
export function prepareSampling(change) {
  $('for').append(...TIMES.map(([value, text]) => new Option(text, value, false, value === USUAL)));
  $('interval').append(new Option('as it is', ''),
    ...INTERVALS.map(([lg, text]) => new Option(`${amount(2 ** lg)}: ${text}`, lg)));
  $('activate').addEventListener('submit', event => {
    event.preventDefault();
    const args = {};
    if ($('for').value) args.for = $('for').value;
    if ($('interval').value) args.lg_sample = Number($('interval').value);
    change('activate', args);
  });
  $('stop').addEventListener('click', () => change('deactivate', {}));
}

export function showSampling(status) {
  const { profiling, sample_interval: interval } = status;
  $('state').textContent = STATES[profiling] ?? profiling;
  $('state').className = profiling;
  $('sampling').replaceChildren(...sentence(status));
  $('activate').hidden = profiling === 'unavailable';
  $('start').textContent = profiling === 'active' ? 'Apply' : 'Start sampling';
  $('start').classList.toggle('main', profiling !== 'active');
  $('stop').hidden = profiling !== 'active';
  if (interval) $('interval').options[0].textContent = `${amount(interval)}: as it is`;
}

function sentence({ profiling, reason, remedy, active_since: since, active_until: until, sample_interval: interval }) {
  if (profiling === 'unavailable') return [`It cannot be on: ${reason}. What helps: ${remedy}.`];
  if (profiling !== 'active') {
    return ['It is off and costs nothing. Start it, let the program work for a while, then take a dump: '
      + 'what was allocated before the start is not in it.'];
  }
  const end = until ? `ends by itself in ${span(-secondsSince(until))}` : 'goes on until it is stopped';
  const begun = since ? `On since ${clock(since)}, for ${span(secondsSince(since))}; it ` : 'On; it ';
  return [`${begun}${end}. One sample for ${amount(interval)} of allocations.`];
}
