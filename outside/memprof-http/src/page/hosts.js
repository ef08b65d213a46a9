// The processes that can be looked at, where there are several.

import { hostAddress } from './api.js';
import { element } from './viewer/format.js';
import { secondsSince, span } from './words.js';

const STATES = { active: 'sampling', inactive: 'off', unavailable: 'not possible' };

export function showHosts(hosts) {
  document.getElementById('host-rows').replaceChildren(...hosts.map(host => element('tr', {},
    element('td', {}, element('a', { href: hostAddress(host), textContent: host.name }),
      element('small', { textContent: host.command, title: host.command })),
    element('td', { textContent: host.pid }),
    element('td', { textContent: STATES[host.profiling] ?? host.profiling }),
    element('td', { textContent: span(secondsSince(host.started * 1000)) }))));
}
