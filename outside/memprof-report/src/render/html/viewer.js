// One profile, or the difference of two: flamegraph, table and tree of the same numbers, with search.

import { amount, change, element, percent, span } from './format.js';
import { Flamegraph } from './flamegraph.js';
import { KINDS, found, profileOf, search } from './profile.js';
import { survivalLine } from './survival.js';
import { Table } from './table.js';
import { Tree } from './tree.js';

const SIGNS = ['', '▲', '▼', '+', '−'];
const SHOWS = ['flamegraph', 'table', 'tree'];

// Fills `place` with the viewer of `view`. `state` says where it begins: {show, search, what, zoom}, all texts,
// all optional; `remember(state)` is told what the user made of it. Returns the keys that the whole page has.
export function showProfile(place, view, state = {}, remember = () => {}) {
  const profile = profileOf(view);
  const now = { show: SHOWS[0], search: '', what: '', zoom: '', ...state };
  const parts = build(place, profile);
  const { box, output, details, tabs, panels, kinds, whole } = parts;
  let hits = null, hit = -1, nodes = [];

  const select = n => {
    details.textContent = describe(profile, n);
    graph.select(n);
  };
  const zoom = n => {
    graph.zoom(n);
    details.textContent = describe(profile, n);
    keep({ zoom: n ? String(n) : '' });
  };
  const graph = new Flamegraph(panels.flamegraph, profile, {
    select, zoom, hover: n => { details.textContent = describe(profile, n < 0 ? graph.selected : n); },
  });
  const table = new Table(panels.table, profile, f => {
    box.value = `^${profile.names[f].replace(/[\\^$.*+?()[\]{}|]/g, '\\$&')}$`;
    find();
    open('flamegraph');
    if (nodes.length) step();
  });
  const tree = new Tree(panels.tree, profile, select);

  function keep(change) {
    Object.assign(now, change);
    whole.hidden = !now.zoom && !now.search && !now.what;
    remember({ ...now, show: now.show === SHOWS[0] ? '' : now.show });
  }

  function open(show) {
    const shown = SHOWS.includes(show) ? show : SHOWS[0];
    for (const name of SHOWS) {
      panels[name].hidden = name !== shown;
      tabs[name].ariaSelected = name === shown;
      tabs[name].tabIndex = name === shown ? 0 : -1;
    }
    keep({ show: shown });
  }

  function find() {
    hits = search(profile, box.value);
    hit = -1;
    nodes = [];
    output.textContent = '';
    if (hits) {
      const all = found(profile, hits);
      nodes = all.nodes;
      output.textContent = nodes.length
        ? `${percent(all.sum, profile.whole)} in ${nodes.length} ${nodes.length === 1 ? 'place' : 'places'}`
        : 'nothing found';
    }
    filter();
    keep({ search: box.value });
  }

  function filter() {
    const kind = Math.max(0, KINDS.indexOf(now.what));
    for (const button of kinds) button.ariaPressed = button.value === now.what;
    table.filter(hits, kind);
    tree.filter(hits, nodes);
    graph.filter(hits);
  }

  // To the next place of what was found.
  function step() {
    if (!nodes.length) return;
    hit = (hit + 1) % nodes.length;
    zoom(0);
    select(nodes[hit]);
    tree.reveal([nodes[hit]]);
  }

  function all() {
    box.value = '';
    now.what = '';
    find();
    zoom(0);
  }

  box.addEventListener('input', find);
  box.addEventListener('keydown', event => { if (event.key === 'Enter') step(); });
  whole.addEventListener('click', all);
  for (const name of SHOWS) tabs[name].addEventListener('click', () => open(name));
  parts.tablist.addEventListener('keydown', event => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way) return;
    open(SHOWS[(SHOWS.indexOf(now.show) + way + SHOWS.length) % SHOWS.length]);
    tabs[now.show].focus();
  });
  for (const button of kinds) {
    button.addEventListener('click', () => {
      keep({ what: now.what === button.value ? '' : button.value });
      filter();
      if (now.what) open('table');
    });
  }

  box.value = now.search;
  const start = Number(now.zoom);
  if (box.value || now.what) find();
  open(now.show);
  zoom(Number.isInteger(start) && start > 0 && start < profile.count ? start : 0);
  return {
    // For keys pressed anywhere on the page.
    key(event) {
      if (event.key === 'Escape') return all();
      if (event.key !== '/' || event.target.matches('input, select')) return;
      event.preventDefault();
      box.focus();
    },
  };
}

function describe(profile, n) {
  const { total, totalBase, own, unit, isDiff, nameOf, whole } = profile;
  const numbers = isDiff
    ? `${change(total[n] - totalBase[n], unit)} (${amount(totalBase[n], unit)} before, ${amount(total[n], unit)} now)`
    : `${amount(total[n], unit)}, ${percent(total[n], total[0])}; own ${amount(own[n], unit)}`;
  return `${nameOf(n)}: ${numbers}`;
}

function build(place, profile) {
  const tabs = {}, panels = {};
  for (const name of SHOWS) {
    const title = name[0].toUpperCase() + name.slice(1);
    tabs[name] = element('button', { type: 'button', id: `tab-${name}`, textContent: title, role: 'tab' });
    tabs[name].setAttribute('aria-controls', `panel-${name}`);
    const panel = element('div', { id: `panel-${name}`, className: 'panel', role: 'tabpanel' });
    panel.setAttribute('aria-labelledby', `tab-${name}`);
    panels[name] = panel;
  }
  const tablist = element('div', { className: 'tabs', role: 'tablist', ariaLabel: 'Views' }, ...Object.values(tabs));
  const box = element('input', {
    type: 'search', id: 'search', placeholder: 'Search (/)', spellcheck: false, ariaLabel: 'Search functions',
    title: 'A name or a regular expression; Enter goes to the next place',
  });
  const output = element('output', { htmlFor: 'search', id: 'found' });
  const whole = element('button', { type: 'button', id: 'whole', textContent: 'Show all (Esc)', hidden: true });
  const kinds = profile.isDiff ? kindButtons(profile) : [];
  const bar = element('div', { className: 'bar' }, tablist, box, output, whole, ...kinds);
  const details = element('p', { id: 'details', role: 'status' });
  const notes = profile.notes.map(note => element('p', { className: 'note', textContent: `Note: ${note}` }));
  const heading = element('p', { id: 'heading', textContent: profile.heading });
  place.replaceChildren(heading, ...meaningOf(profile), ...survivalOf(profile), ...notes, bar,
    ...Object.values(panels), details);
  place.classList.add('viewer');
  return { box, output, details, tabs, panels, kinds, whole, tablist };
}

// That the bytes of such a profile are not those of its objects.
function meaningOf({ isPinned, isDiff }) {
  if (!isPinned) return [];
  const words = 'This memory is free, but it stays resident: a few live objects lie among it. '
    + `Each function has ${isDiff ? 'what changed of ' : ''}the free memory around the objects that it allocated.`;
  return [element('p', { id: 'meaning', textContent: words })];
}

// What is alive of each age, where the profile tells.
function survivalOf({ ages }) {
  if (!ages) return [];
  const line = survivalLine(ages.total, ages.columns, 'Alive by age, young to old');
  return [element('p', { id: 'survival' }, 'Alive by age: ', line, ` young to old, ${span(ages.length)} a step`)];
}

// How many functions grew, shrank, are new or gone; each shows them alone.
function kindButtons({ table }) {
  return KINDS.map((kind, index) => {
    const count = table.kind.reduce((sum, one) => sum + (one === index ? 1 : 0), 0);
    const title = `Show the functions that ${index < 3 ? kind : `are ${kind}`}`;
    const text = `${SIGNS[index]} ${count} ${kind}`;
    const look = { className: `kind ${kind}`, textContent: text, title, disabled: count === 0 };
    return element('button', { type: 'button', value: kind, ...look });
  }).slice(1);
}
