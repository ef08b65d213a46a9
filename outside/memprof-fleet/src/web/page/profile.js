// The flamegraph of a service or a process over a time, or what changed: the viewer, and the same as files.

import { Failure } from './api.js';
import { hash, profileAddress, rows, stateOf, view } from './query.js';
import { amount, change, element } from './viewer/format.js';
import { showProfile as draw } from './viewer/viewer.js';
import { clock } from './words.js';

const $ = id => document.getElementById(id);

const TYPES = [['inuse_space', 'memory in use'], ['inuse_objects', 'objects in use']];
const FILES = [['pprof', 'pb.gz'], ['collapsed', 'collapsed.txt'], ['flamegraph', 'svg'], ['html', 'html']];
const WIDTH = 600;

let shown = '', viewer = null, points = [];

export function prepareProfile() {
  $('type').append(...TYPES.map(([value, text]) => new Option(text, value)));
  const go = () => {
    location.hash = hash({ ...stateOf(), build: $('build').value, base: $('base').value, type: $('type').value, zoom: '' });
  };
  for (const id of ['build', 'base', 'type']) $(id).addEventListener('change', go);
  $('line').addEventListener('click', pick);
  document.addEventListener('keydown', event => viewer?.key(event));
}

// What is shown already is left as it is. Returns what is to be known of the answers.
export async function showProfile(state) {
  const { t, for: length, at, build = '', base = '', type = 'inuse_space', ...rest } = state;
  const wanted = [t, length, at, build, base, type].join();
  if (wanted === shown) return [];
  shown = wanted;
  viewer = null;
  $('target').textContent = t;
  $('back').href = hash({ for: length, at });
  $('viewer').replaceChildren();
  $('loading').textContent = 'Adding up profiles …';
  try {
    const time = { t, for: length, at };
    const [services, line] = await Promise.all([rows('services', time), rows('history', { ...time, build })]);
    if (wanted !== shown) return [];
    offer([...new Set(services.rows.flatMap(one => Object.keys(one.builds)))], { build, base, type });
    points = line.rows;
    drawLine();
    const asked = { ...time, build, base, type, from: line.from };
    $('downloads').replaceChildren('Download ', ...FILES.map(([format, ending]) => element('a', {
      href: profileAddress(asked, format), download: `fleet.${ending}`, textContent: format })));
    const data = await view(asked);
    if (wanted !== shown) return [];
    $('loading').textContent = '';
    viewer = draw($('viewer'), data, rest, now => {
      const kept = { ...time, build, base, type: type === 'inuse_space' ? '' : type, ...now };
      history.replaceState(null, '', hash(kept));
    });
    return line.notes;
  } catch (failure) {
    if (!(failure instanceof Failure)) throw failure;
    if (wanted !== shown) return [];
    shown = '';
    $('loading').textContent = `${failure.message}. ${failure.remedy}`;
    return [];
  }
}

export function leaveProfile() {
  shown = '';
  viewer = null;
  $('viewer').replaceChildren();
}

function offer(builds, { build, base, type }) {
  $('build').replaceChildren(new Option('all', ''), ...builds.map(one => new Option(one, one)));
  const others = build ? builds.filter(one => one !== build) : [];
  $('base').replaceChildren(new Option('nothing', ''), new Option('the time before', 'before'),
    ...others.map(one => new Option(`build ${one}`, one)));
  $('build').value = build;
  $('base').value = base;
  $('type').value = type;
}

function drawLine() {
  const top = Math.max(...points.map(point => point.inuse_bytes), 1);
  const x = index => WIDTH * index / Math.max(points.length - 1, 1);
  const line = points.map((point, index) => `${x(index).toFixed(1)},${(136 - 132 * point.inuse_bytes / top).toFixed(1)}`);
  $('line-heap').setAttribute('points', line.join(' '));
  $('line-top').textContent = amount(top);
  $('history').hidden = points.length < 2;
  const seen = points.filter(point => point.processes);
  if (!seen.length) return;
  const [first, last] = [seen[0], seen.at(-1)];
  const trend = seen.length === 1 ? `profiles at ${clock(last.time)} only`
    : `${change(last.inuse_bytes - first.inuse_bytes, 'bytes')} from ${clock(first.time)} to ${clock(last.time)}`;
  $('trend').textContent = `${trend}; a click on the line shows what was in use until then`;
}

// Shows the time that ends where the line was clicked.
function pick(event) {
  const box = $('line').getBoundingClientRect();
  const at = Math.round((event.clientX - box.left) / box.width * (points.length - 1));
  const point = points[Math.min(Math.max(at, 0), points.length - 1)];
  if (point) location.hash = hash({ ...stateOf(), at: point.time, zoom: '' });
}
