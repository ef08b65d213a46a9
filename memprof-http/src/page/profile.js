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
  const go = () => { location.hash = hash({ ...stateOf(), base: $('since').value, type: $('type').value, zoom: '' }); };
  $('since').addEventListener('change', go);
  $('type').addEventListener('change', go);
  document.addEventListener('keydown', event => viewer?.key(event));
}

const stateOf = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

// Shows what the address says: {view, base, type, …}. What is shown already is left as it is.
export async function showProfile() {
  const { view: id, base = '', type = 'inuse_space', ...state } = stateOf();
  $('since').replaceChildren(new Option('nothing', ''), ...others(id));
  // An address may name any other.
  if (base && ![...$('since').options].some(known => known.value === base)) $('since').append(new Option(base, base));
  $('since').value = base;
  $('type').value = type;
  const dump = dumpOf(id);
  $('taken').textContent = dump ? `Dump of ${clock(dump.taken)}` : `Dump ${id}`;
  const wanted = [id, base, type].join();
  if (wanted === shown) return;
  shown = wanted;
  viewer = null;
  offer(id, { base, type });
  $('viewer').replaceChildren();
  $('loading').textContent = 'Looking for the names of the functions …';
  let data = null, failure = null;
  try { data = await view(id, { base, type }); } catch (error) { failure = error; }
  if (wanted !== shown) return;
  $('loading').textContent = '';
  if (failure) {
    shown = '';
    $('loading').textContent = failure instanceof Failure ? `${failure.message}. ${failure.remedy}` : String(failure);
    return;
  }
  viewer = draw($('viewer'), data, state, now => {
    history.replaceState(null, '', hash({ view: id, base, type: type === 'inuse_space' ? '' : type, ...now }));
  });
}

export function leaveProfile() {
  shown = '';
  viewer = null;
  $('viewer').replaceChildren();
}

function offer(id, options) {
  const links = FILES.map(([format, ending]) => {
    const name = options.base ? `${id}.diff` : id;
    return element('a', {
      href: dumpAddress(id, format, options), download: `${name}.${ending}`,
      textContent: format === 'flamegraph' ? 'SVG' : format === 'html' ? 'HTML' : format,
    });
  });
  $('downloads').replaceChildren('Download ', ...links);
}
