// The processes that can be looked at, where there are several.

import { hostAddress } from './api.js';
import { element } from './viewer/format.js';
import { secondsSince, span } from './words.js';

const STATES = { active: 'sampling', inactive: 'off', unavailable: 'not possible' };

let drawn = '';

export function showHosts(hosts, silent) {
  // Rows that stay the same keep the focus of the keyboard.
  const rows = JSON.stringify([...hosts, ...silent].map(({ pid, name, command, reason }) => [pid, name, command, reason]));
  if (rows !== drawn) draw(hosts, silent);
  drawn = rows;
  for (const [index, host] of hosts.entries()) {
    const { cells } = document.getElementById('host-rows').rows[index];
    cells[2].textContent = STATES[host.profiling] ?? host.profiling;
    cells[3].textContent = span(secondsSince(host.started * 1000));
  }
}

function draw(hosts, silent) {
  const answering = hosts.map(host => element('tr', {},
    element('td', {}, element('a', { href: hostAddress(host), textContent: host.name }),
      element('small', { textContent: host.command, title: host.command })),
    element('td', { textContent: host.pid }),
    element('td'),
    element('td')));
  document.getElementById('host-rows').replaceChildren(...answering, ...silent.map(host => element('tr', {},
    element('td', {}, host.name, element('small', { textContent: host.reason })),
    element('td', { textContent: host.pid }),
    element('td', { textContent: 'does not answer' }),
    element('td'))));
}
