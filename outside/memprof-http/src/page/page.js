// The page of a host: what it is doing now, looked at again every other second while somebody sees it.

import { Failure, ask, hostAddress, hosts, pid, rootAddress } from './api.js';
import { prepareDumps, showDumps, showRules } from './dumps.js';
import { prepareDump, showHolders } from './holders.js';
import { showHosts } from './hosts.js';
import { forgetMemory, showMemory } from './memory.js';
import { leaveProfile, prepareProfile, showProfile } from './profile.js';
import { prepareSampling, showSampling } from './sampling.js';
import { amount, element } from './viewer/format.js';
import { marked } from './words.js';

const $ = id => document.getElementById(id);

const PAUSE = 2000;
// A dump that meets another one waits for it this often.
const PATIENCE = 20;

let host = null, isGone = true, timer = 0, looks = 0, isTaking = false;

async function look() {
  clearTimeout(timer);
  if (document.hidden) return;
  const mine = ++looks;
  try {
    const { hosts: all, silent } = await hosts();
    const isChoice = all.length + silent.length > 1;
    const found = pid ? all.find(one => one.pid === pid) : all[0];
    if (!pid && isChoice) choose(all, silent);
    else if (found) await lookAt(found, isChoice);
    else lose(all);
  } catch (failure) {
    if (failure instanceof Failure && failure.isGone) lose([], failure);
    // While a dump runs, the allocator's figures must wait.
    else if (failure.kind !== 'busy') tell(failure);
  }
  if (mine === looks) timer = setTimeout(look, PAUSE);
}

function choose(all, silent) {
  host = null;
  isGone = true;
  show('hosts');
  $('gone').hidden = true;
  $('name').textContent = 'memprof';
  $('command').textContent = `${all.length + silent.length} processes`;
  $('state').textContent = '';
  showHosts(all, silent);
}

async function lookAt(found, isChoice) {
  if (found.pid !== host?.pid || found.started !== host?.started) forgetMemory();
  host = found;
  document.title = `${host.name} ${host.pid} · memprof`;
  $('name').textContent = `${host.name}, pid ${host.pid}`;
  $('command').textContent = host.command;
  $('command').title = host.command;
  $('all').hidden = !isChoice;
  $('all').href = rootAddress;
  const [status, kept] = await Promise.all([ask('status'), ask('dumps')]);
  showSampling(status);
  showRules(status.watch);
  showDumps(kept.dumps);
  // It takes as long as names take to be found; all else is shown meanwhile.
  showHolders(kept.dumps, host.pid, status);
  if (isGone) {
    showFindings((await ask('doctor')).findings);
    isGone = false;
    $('gone').hidden = true;
    route();
  }
  const canPin = status.allocators.some(one => one.can.includes('dump kind=pinned'));
  showMemory(await ask('ledger'), { purge: () => change('purge', {}), pinned: canPin && takePinned });
}

// The host, or the server, does not answer; what was seen last stays on the page.
function lose(all, failure) {
  isGone = true;
  const name = host ? `${host.name} (pid ${host.pid})` : pid ? `The process with pid ${pid}` : '';
  const again = all.filter(one => host ? one.name === host.name : pid);
  const words = failure?.kind === 'no_server' ? 'The server behind this page, memprof serve, does not answer.'
    : name ? `${name} does not answer: it has ended, or it is stopped.`
      : 'No process here has loaded memory_profile yet.';
  const shown = element('div', {}, element('strong', { textContent: words }),
    ' This page looks again every 2 seconds. ',
    ...name || failure || $('processes-link').hidden ? [] : [element('a', { href: $('processes-link').href, textContent: 'Choose a process to record or to attach to' })],
    ...again.map(one => element('a', { href: hostAddress(one), textContent: `Go to ${one.name}, pid ${one.pid}` })));
  // What stays the same keeps the focus of the keyboard.
  if ($('gone').textContent !== shown.textContent) $('gone').replaceChildren(shown);
  $('gone').hidden = false;
  $('state').textContent = host ? 'does not answer' : '';
  $('state').className = 'lost';
}

// Words for how bad it is: the worst one stands above all.
const SEVERITIES = [['error', 'What is wrong', 'Error'], ['warning', 'What to be careful about', 'Careful'],
  ['notice', 'Good to know', 'Note']];

// That memprof samples in the allocator's place: here that is a button, and no advice.
const NO_NEWS = 'sampled_by_memprof';

function showFindings(all) {
  const findings = all.filter(one => one.kind !== NO_NEWS);
  const worst = SEVERITIES.find(([severity]) => findings.some(one => one.severity === severity)) ?? SEVERITIES.at(-1);
  const word = severity => (SEVERITIES.find(([known]) => known === severity) ?? SEVERITIES.at(-1))[2];
  $('findings').hidden = findings.length === 0;
  $('findings-title').textContent = worst[1];
  $('finding-rows').replaceChildren(...findings.map(({ severity, message, remedy }) => element('li', { className: severity },
    element('strong', { textContent: `${word(severity)}: ` }), ...marked(`${message}.`),
    element('p', {}, element('strong', { textContent: 'What helps: ' }), ...marked(remedy)))));
}

// Sends a message that changes the host, and tells what came of it.
async function change(message, args) {
  try {
    const reply = await ask(message, args);
    tell(reply);
    await look();
  } catch (failure) {
    tell(failure);
  }
}

async function take() {
  if (isTaking) return;
  isTaking = true;
  const say = words => { $('take').textContent = words; };
  $('take').dataset.busy = 'yes';
  try {
    await prepareDump(say);
    say('Taking a dump …');
    const dump = await dumped(say);
    const size = dump.estimated_inuse_bytes === undefined ? ''
      : `: ${amount(dump.estimated_inuse_bytes)} in use, from ${dump.stacks} ${dump.stacks === 1 ? 'stack' : 'stacks'}`;
    const link = element('a', { href: `#view=${encodeURIComponent(dump.id)}`, textContent: 'View it' });
    tell({ text: `The dump is taken${size}. `, warnings: dump.warnings }, link);
    showDumps((await ask('dumps')).dumps, dump.id);
  } catch (failure) {
    tell(failure);
  }
  isTaking = false;
  $('take').dataset.busy = '';
  look();
}

// Takes a dump that shows who keeps free memory, and shows it.
async function takePinned() {
  if (isTaking) return;
  isTaking = true;
  try {
    const { id } = await dumped(() => {}, { kind: 'pinned' });
    showDumps((await ask('dumps')).dumps, id);
    location.hash = `#view=${encodeURIComponent(id)}`;
  } catch (failure) {
    tell(failure);
  }
  isTaking = false;
}

async function dumped(say, args = {}) {
  for (let tries = 1; ; tries++) {
    try { return await ask('dump', args); } catch (failure) {
      if (failure.kind !== 'busy' || tries === PATIENCE) throw failure;
      say('Waiting for another dump …');
      await new Promise(resume => setTimeout(resume, 1000 * (failure.retryAfter || 1)));
    }
  }
}

// A reply, or a failure, in words.
function tell(what, ...more) {
  const isError = what instanceof Error;
  const text = isError ? `${what.message}. ` : what.text;
  const parts = [element('span', {}, ...marked(text)), ...more];
  if (what.remedy) parts.push(element('p', {}, element('strong', { textContent: 'What helps: ' }), ...marked(what.remedy)));
  parts.push(...(what.warnings ?? []).map(warning => element('p', {}, 'Careful: ', ...marked(warning))));
  const close = element('button', { type: 'button', textContent: 'Close', className: 'close' });
  close.addEventListener('click', () => { $('notice').hidden = true; });
  $('notice').replaceChildren(close, ...parts);
  $('notice').classList.toggle('error', isError);
  $('notice').hidden = false;
}

function show(shown) {
  for (const id of ['hosts', 'overview', 'profile']) $(id).hidden = id !== shown;
  document.body.classList.toggle('full', shown === 'profile');
}

function route() {
  if (!host) return;
  const isProfile = new URLSearchParams(location.hash.slice(1)).has('view');
  show(isProfile ? 'profile' : 'overview');
  $('notice').hidden = true;
  if (isProfile) showProfile();
  else leaveProfile();
}

$('processes-link').href = `${rootAddress}machine/`;
$('command').textContent = 'Looking for processes …';
prepareSampling(change);
prepareDumps();
prepareProfile();
$('take').addEventListener('click', take);
addEventListener('hashchange', route);
document.addEventListener('visibilitychange', look);
look();
