// The page of a store: services first; of one of them, or of a process, the flamegraph.

import { Failure } from './api.js';
import { hash, stateOf } from './query.js';
import { showOverview } from './overview.js';
import { leaveProfile, prepareProfile, showProfile } from './profile.js';
import { element } from './viewer/format.js';

const $ = id => document.getElementById(id);

const LENGTHS = ['1h', '6h', '24h', '7d', '30d'];

function show(shown) {
  for (const id of ['overview', 'profile']) $(id).hidden = id !== shown;
  document.body.classList.toggle('full', shown === 'profile');
}

function tell(...lines) {
  $('notice').replaceChildren(...lines.map(line => element('p', { textContent: line })));
  $('notice').hidden = !lines.length;
}

let routed = 0;

async function route() {
  const turn = ++routed;
  const state = stateOf();
  $('for').value = state.for ?? LENGTHS[0];
  $('at').value = state.at ?? '';
  show(state.t ? 'profile' : 'overview');
  if (!state.t) leaveProfile();
  document.title = `${state.t ?? 'fleet'} · memprof`;
  try {
    const lines = await (state.t ? showProfile(state) : showOverview(state));
    // A slow answer says nothing of what is shown since.
    if (turn === routed) tell(...lines);
  } catch (failure) {
    if (!(failure instanceof Failure)) throw failure;
    if (turn === routed) tell(`${failure.message}. ${failure.remedy}`);
  }
}

$('for').append(...LENGTHS.map(length => new Option(length, length)));
for (const id of ['for', 'at']) {
  $(id).addEventListener('change', () => { location.hash = hash({ ...stateOf(), [id]: $(id).value }); });
}
prepareProfile();
addEventListener('hashchange', route);
route();
