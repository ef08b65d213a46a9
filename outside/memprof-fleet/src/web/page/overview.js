// The services, and the processes that grow.

import { hash, rows, stateOf } from './query.js';
import { amount, change, element } from './viewer/format.js';

const $ = id => document.getElementById(id);

const link = (t, more = {}) => {
  const { for: length, at } = stateOf();
  return element('a', { href: hash({ t, for: length, at, ...more }), textContent: more.build ?? t });
};

const cell = (...content) => element('td', {}, ...content);

// Returns what is to be known of the answers. Rows of another time do not stay beside an error.
export async function showOverview(state) {
  const wanted = location.hash;
  const answers = await Promise.all([rows('services', state), rows('growth', state)]).catch(failure => {
    if (location.hash === wanted) for (const id of ['service-rows', 'growth-rows']) $(id).replaceChildren();
    throw failure;
  });
  if (location.hash !== wanted) return [];
  const [services, growth] = answers;
  $('command').textContent = services.store;
  $('service-rows').replaceChildren(...services.rows.map(one => element('tr', {},
    cell(link(`@${one.service}`)), cell(one.processes), cell(...builds(one)), cell(amount(one.inuse_bytes)),
    cell(change(one.growth_bytes, 'bytes')))));
  $('growth').hidden = !growth.rows.length;
  $('no-growth').hidden = growth.rows.length > 0;
  $('growth-rows').replaceChildren(...growth.rows.map(one => {
    // HOST/PID.START.MACHINE, where a host's name may have dots.
    const [process] = one.instance.match(/^.*\/[0-9]+/) ?? [one.instance];
    return element('tr', {}, cell(link(process)), cell(one.service), cell(one.build_id),
      cell(change(one.growth_bytes, 'bytes')), cell(change(one.growth_bytes_per_hour, 'bytes')),
      cell(amount(one.inuse_bytes[1])));
  }));
  return services.notes;
}

// Each build, with how many processes run it; where there are two, what one holds more than the other.
function builds({ service, builds: all }) {
  const names = Object.keys(all);
  const words = names.flatMap((build, index) => [
    index ? ', ' : '', link(`@${service}`, { build }), ` (${all[build]})`]);
  if (names.length !== 2) return words;
  const [build, base] = names;
  const { for: length, at } = stateOf();
  const diff = element('a', { href: hash({ t: `@${service}`, for: length, at, build, base }), textContent: 'diff' });
  return [...words, ' · ', diff];
}
