// The processes of the machine, with jobs on them: what is listed is looked at again while somebody sees it.

import { Failure, ask } from './api.js';
import { amount, element } from './viewer/format.js';
import { marked, span } from './words.js';

const $ = id => document.getElementById(id);

// Times in milliseconds between two looks at the processes, and at running jobs.
const PAUSE = 5000, JOB_PAUSE = 500;
// Rows that are shown; the filter finds the others.
const MOST = 200;

const ACTIONS = {
  record: { button: 'Record 30 s', title: 'Samples for 30 seconds who allocates memory that stays in use; the process is then as before',
    doing: 'Recording', done: 'Profile', look: 'Who holds the memory' },
  leaks: { button: 'Prove leaks', title: 'Samples for 10 seconds, then lists the objects that nothing points to',
    doing: 'Proving leaks', done: 'Leaks', look: 'See the leaks' },
  holders: { button: 'Holders', title: 'Which variables and objects hold the memory', doing: 'Finding holders', done: 'Holders', look: 'See the holders' },
  ledger: { button: 'Ledger', title: 'Where the resident memory is: heap, files, stacks', doing: 'Reading the ledger', done: 'Ledger', look: 'See the ledger' },
  attach: { button: 'Attach', title: 'Loads the plugin for an hour, so that the process has a page of its own', doing: 'Attaching', done: 'Attached', look: '' },
  detach: { button: 'Detach', title: 'Removes the plugin from a process that was attached to', doing: 'Detaching', done: 'Detached', look: '' },
};

let processes = [], unexamined = [], seen = 0, listTimer = 0, jobTimer = 0;
const rows = new Map();

async function list() {
  clearTimeout(listTimer);
  if (document.hidden) return;
  try {
    ({ processes, unexamined = [] } = await ask('processes'));
    seen = Date.now();
    // One that was shown because the server did not answer.
    if ($('notice').dataset.gone) $('notice').hidden = true;
    draw();
  } catch (failure) {
    tell(failure);
  }
  listTimer = setTimeout(list, PAUSE);
}

function draw() {
  const wanted = $('filter').value.trim().toLowerCase();
  const matches = one => [one.name, one.command, one.user].some(text => text.toLowerCase().includes(wanted))
    || String(one.pid) === wanted;
  const found = processes.filter(matches);
  const shown = found.slice(0, MOST);
  const elements = shown.map(one => {
    const key = `${one.pid} ${one.name} ${one.state} ${one.can} ${one.command}`;
    if (rows.get(one.pid)?.key !== key) rows.set(one.pid, { key, row: build(one) });
    const { row } = rows.get(one.pid);
    row.cells[3].textContent = amount(one.rss);
    row.cells[4].textContent = growth(one.growth_bytes_per_s);
    return row;
  });
  // A row that stays where it is keeps the focus of the keyboard.
  const body = $('process-rows');
  const isSame = elements.length === body.rows.length && elements.every((row, index) => body.rows[index] === row);
  if (!isSame) {
    const focus = document.activeElement;
    body.replaceChildren(...elements);
    if (body.contains(focus)) focus.focus();
  }
  const living = new Set(processes.map(one => one.pid));
  for (const pid of rows.keys()) if (!living.has(pid)) rows.delete(pid);
  age();
  const more = found.length - shown.length;
  $('listed').dataset.more = (more > 0 ? `; ${more} smaller ones are not shown` : '')
    + (unexamined.length ? `; ${unexamined.length} did not answer in time (pid ${unexamined.slice(0, 10).join(', ')}${unexamined.length > 10 ? ' …' : ''})` : '');
}

// How fresh the list is.
function age() {
  if (!seen) return;
  const count = $('process-rows').rows.length;
  const seconds = (Date.now() - seen) / 1000;
  $('listed').textContent = `${count === 1 ? '1 process' : `${count} processes, largest first`}, seen ${seconds < 1.5 ? 'now' : `${span(seconds)} ago`}`
    + ($('listed').dataset.more ?? '');
}

const growth = bytes => !bytes ? '' : `${bytes > 0 ? '+' : '−'}${amount(Math.abs(bytes))}/s`;

function build(one) {
  const isLoaded = one.state === 'loaded';
  const name = isLoaded ? element('a', { href: `../host/${one.pid}/`, textContent: one.name }) : one.name;
  const actions = [...one.can, ...one.state === 'attachable' ? ['attach'] : isLoaded ? ['detach'] : []];
  const buttons = actions.filter(action => ACTIONS[action]).map(action => button(action, one));
  const why = one.reason ? [element('small', {}, ...marked(`Cannot be recorded: ${one.reason}. ${one.remedy ?? ''}`))] : [];
  return element('tr', {},
    element('td', {}, name, element('small', { textContent: one.command, title: one.command })),
    element('td', { textContent: one.pid }),
    element('td', { textContent: one.user }),
    element('td'),
    element('td'),
    element('td', { className: 'actions' }, ...buttons, ...why));
}

function button(action, { pid, name }) {
  const { button: textContent, title } = ACTIONS[action];
  const made = element('button', { type: 'button', textContent, title, ariaLabel: `${textContent}: ${name}, pid ${pid}` });
  made.dataset.action = action;
  if (action === 'record') made.className = 'main';
  made.addEventListener('click', () => start(action, pid, name));
  return made;
}

async function start(action, pid, name) {
  try {
    await ask('jobs', { pid, name, action });
    $('notice').hidden = true;
    await jobs();
    $('jobs').scrollIntoView({ block: 'nearest' });
  } catch (failure) {
    tell(failure);
  }
}

async function cancel(id) {
  try {
    await ask(`jobs/${id}/cancel`, {});
    await jobs();
  } catch (failure) {
    tell(failure);
  }
}

const isRunning = ({ state }) => state === 'running' || state === 'cancelling';

async function jobs() {
  clearTimeout(jobTimer);
  if (document.hidden) return;
  try {
    const { jobs: all } = await ask('jobs');
    drawJobs(all);
    if (all.some(isRunning)) jobTimer = setTimeout(jobs, JOB_PAUSE);
  } catch (failure) {
    tell(failure);
    jobTimer = setTimeout(jobs, PAUSE);
  }
}

const jobElements = new Map();

// The rows of jobs that have not changed stay, and keep the focus of the keyboard.
function drawJobs(all) {
  $('jobs').hidden = all.length === 0;
  const ended = [];
  const shown = all.map(job => {
    const known = jobElements.get(job.id);
    if (known?.state !== job.state) {
      if (known && !isRunning(job)) ended.push(job);
      jobElements.set(job.id, { state: job.state, row: buildJob(job) });
    }
    const { row } = jobElements.get(job.id);
    const progress = row.querySelector('progress');
    if (progress) {
      if (job.sampling_s && job.elapsed_s < job.sampling_s) progress.value = job.elapsed_s / job.sampling_s;
      else progress.removeAttribute('value');
      row.querySelector('.soft').textContent = step(job);
    }
    return row;
  });
  const { children } = $('job-rows');
  if (shown.length !== children.length || shown.some((row, index) => children[index] !== row)) $('job-rows').replaceChildren(...shown);
  // What can be done with the process has changed.
  if (ended.length) list();
}

function step({ state, sampling_s: sampling, elapsed_s: elapsed }) {
  if (state === 'cancelling') return 'cancelled; the process is being left as it was';
  if (sampling && elapsed < sampling) return `sampling, ${Math.ceil(sampling - elapsed)} s left`;
  return `working, ${span(elapsed)}`;
}

function buildJob({ id, pid, name, action, state, has_page: hasPage, message }) {
  const words = ACTIONS[action];
  const who = ` ${name}, pid ${pid} `;
  const notes = message ? element('small', {}, ...marked(message)) : '';
  if (isRunning({ state })) {
    const stop = element('button', { type: 'button', textContent: 'Cancel', className: 'act', ariaLabel: `Cancel: ${words.doing}${who}` });
    stop.disabled = state === 'cancelling';
    // An interrupt would leave their work half done.
    stop.hidden = action === 'attach' || action === 'detach';
    stop.addEventListener('click', () => cancel(id));
    return element('li', {}, element('strong', { textContent: words.doing }), who,
      element('progress', { ariaLabel: words.doing }), ' ', element('span', { className: 'soft' }), ' ', stop);
  }
  if (state === 'done') {
    const link = hasPage ? element('a', { href: `api/v1/jobs/${id}/page`, textContent: words.look }) : '';
    return element('li', {}, element('strong', { textContent: `${words.done}:` }), who, link, notes);
  }
  const what = state === 'cancelled' ? 'was cancelled' : 'failed';
  return element('li', { className: state === 'failed' ? 'error' : '' },
    element('strong', { textContent: words.doing }), who, what, notes);
}

function tell(failure) {
  const text = failure instanceof Failure ? `${failure.message}. ${failure.remedy ?? ''}` : String(failure);
  $('notice').dataset.gone = failure instanceof Failure && failure.isGone ? 'yes' : '';
  $('notice').textContent = text;
  $('notice').hidden = false;
}

$('filter').addEventListener('input', draw);
document.addEventListener('visibilitychange', () => { list(); jobs(); });
setInterval(age, 1000);
list();
jobs();
