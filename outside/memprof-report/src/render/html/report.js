// Starts the viewer in a report that lies in one file; what is shown is kept in the address.

import { showProfile } from './viewer.js';

const view = JSON.parse(document.getElementById('data').textContent);
const title = view.base === null ? view.title : `${view.title} since ${view.base}`;
document.title = title;
document.getElementById('title').textContent = title;
const state = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
const viewer = showProfile(document.querySelector('main'), view, state, now => {
  const kept = new URLSearchParams(Object.entries(now).filter(([, value]) => value));
  history.replaceState(null, '', `#${kept}`);
});
document.addEventListener('keydown', event => viewer.key(event));
