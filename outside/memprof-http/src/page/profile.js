// One dump, or what changed between two: the viewer, and the same as files.

import { Failure, dumpAddress, view } from './api.js';
import { dumpOf, hash, others } from './dumps.js';
import { element } from './viewer/format.js';
import { showProfile as draw } from './viewer/viewer.js';
import { clock } from './words.js';

const $ = id => document.getElementById(id);

const TYPES = [['inuse_space', 'memory in use'], ['inuse_objects', 'objects in use'],
  ['alloc_space', 'memory ever allocated'], ['alloc_objects', 'objects ever allocated']];
const FILES = [['pprof', 'pb.gz'], ['collapsed', 'collapsed.txt'], ['flamegraph', 'svg'], ['html', 'html'], ['heap', 'heap']];

let shown = '', viewer = null;

export function prepareProfile() {
  $('type').append(...TYPES.map(([value, text]) => new Option(text, value)));
  const go = more => { location.hash = hash({ ...stateOf(), type: $('type').value, zoom: '', ...more }); };
  // A label is of one dump: what changed since another one is of all.
  $('since').addEventListener('change', () => go({ base: $('since').value, label: '' }));
  $('type').addEventListener('change', () => go({}));
  $('label').addEventListener('change', () => go({ label: $('label').value, base: '' }));
  document.addEventListener('keydown', event => viewer?.key(event));
}

const stateOf = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

// Shows what the address says: {view, base, type, …}. What is shown already is left as it is.
export async function showProfile() {
  const { view: id, base = '', type = 'inuse_space', label = '', ...state } = stateOf();
  $('since').replaceChildren(new Option('nothing', ''), ...others(id));
  // An address may name any other.
  if (base && ![...$('since').options].some(known => known.value === base)) $('since').append(new Option(base, base));
  $('since').value = base;
  $('type').value = type;
  const dump = dumpOf(id);
  $('taken').textContent = dump ? `Dump of ${clock(dump.taken)}` : `Dump ${id}`;
  const wanted = [id, base, type, label].join();
  if (wanted === shown) return;
  shown = wanted;
  viewer = null;
  offer(id, { base, type, label });
  $('viewer').replaceChildren();
  $('loading').textContent = 'Looking for the names of the functions …';
  let data = null, failure = null;
  try { data = await view(id, { base, type, label }); } catch (error) { failure = error; }
  if (wanted !== shown) return;
  $('loading').textContent = '';
  if (failure) {
    shown = '';
    $('loading').textContent = failure instanceof Failure ? `${failure.message}. ${failure.remedy}` : String(failure);
    return;
  }
  offerLabels(data.labels ?? [], label);
  // It tells bytes alone.
  $('numbers').hidden = data.pinned === true;
  viewer = draw($('viewer'), data, state, now => {
    history.replaceState(null, '', hash({ view: id, base, type: type === 'inuse_space' ? '' : type, label, ...now }));
  });
}

// The labels by which samples of this dump are told apart: each a group of its values.
function offerLabels(labels, chosen) {
  const groups = labels.map(([key, values]) => {
    const option = value => new Option(`${key} ${value}`, `${key}=${value}`);
    return element('optgroup', { label: key }, ...values.map(option), option('[other]'), option('[none]'));
  });
  $('label').replaceChildren(new Option('all', ''), ...groups);
  // An address may name any other.
  if (chosen && ![...$('label').options].some(known => known.value === chosen)) $('label').append(new Option(chosen, chosen));
  $('label').value = chosen;
  $('whose').hidden = labels.length === 0;
}

export function leaveProfile() {
  shown = '';
  viewer = null;
  $('viewer').replaceChildren();
}

function offer(id, options) {
  const links = FILES.map(([format, ending]) => {
    // The dump itself has no options.
    const chosen = format === 'heap' ? {} : options;
    const name = chosen.base ? `${id}.diff` : id;
    return element('a', {
      href: dumpAddress(id, format, chosen), download: `${name}.${ending}`,
      textContent: format === 'flamegraph' ? 'SVG' : format === 'html' ? 'HTML' : format,
    });
  });
  $('downloads').replaceChildren('Download ', ...links);
}
