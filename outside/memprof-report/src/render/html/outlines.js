// Starts a page of outlines that lies in one file.

import { element } from './format.js';
import { Outline } from './outline.js';

const view = JSON.parse(document.getElementById('data').textContent);
document.title = view.title;
document.getElementById('title').textContent = view.title;

const box = element('input', {
  type: 'search', id: 'search', placeholder: 'Search (/)', spellcheck: false, ariaLabel: 'Search names',
  title: 'A name or a regular expression; Escape shows all',
});
const output = element('output', { htmlFor: 'search', id: 'found' });
const tablist = element('div', { className: 'tabs', role: 'tablist', ariaLabel: 'Tables' });
const tabs = view.outlines.map(({ title }, index) => {
  const tab = element('button', { type: 'button', id: `tab-${index}`, textContent: title, role: 'tab' });
  tab.setAttribute('aria-controls', `panel-${index}`);
  tab.addEventListener('click', () => openPanel(index));
  return tab;
});
const areTabs = tabs.length > 1;
const panels = view.outlines.map(({ title }, index) => {
  const role = areTabs ? { role: 'tabpanel' } : { role: 'region', ariaLabel: title };
  const panel = element('div', { id: `panel-${index}`, className: 'panel', ...role });
  if (areTabs) panel.setAttribute('aria-labelledby', `tab-${index}`);
  return panel;
});
const paragraph = (className, textContent) => element('p', { className, textContent });
const limits = element('details', { id: 'limits' }, element('summary', { textContent: 'What this cannot see' }),
  element('ul', {}, ...view.limits.map(textContent => element('li', { textContent }))));
const main = document.querySelector('main');
tablist.append(...tabs);
tablist.hidden = !areTabs;
main.append(element('p', { id: 'heading', textContent: view.heading }),
  ...view.facts.map(fact => paragraph('fact', fact)), ...view.notes.map(note => paragraph('note', note)),
  limits, element('div', { className: 'bar' }, tablist, box, output), ...panels);
main.classList.add('viewer');

// Where there is nothing, a sentence says so.
const outlines = view.outlines.map((outline, index) => {
  if (outline.depth.length) return new Outline(panels[index], outline);
  panels[index].append(paragraph('empty', outline.empty));
  return { filter: () => 0 };
});

let shownPanel = 0;
function openPanel(index) {
  shownPanel = index;
  panels.forEach((panel, at) => { panel.hidden = at !== index; });
  tabs.forEach((tab, at) => {
    tab.ariaSelected = at === index;
    tab.tabIndex = at === index ? 0 : -1;
  });
  tellFound();
}

let counts = outlines.map(() => 0);
function tellFound() {
  const count = counts[shownPanel];
  output.textContent = !box.value ? '' : count ? `${count} ${count === 1 ? 'row' : 'rows'}` : 'nothing found';
}

function findRows() {
  counts = outlines.map(outline => outline.filter(box.value));
  tellFound();
}

box.addEventListener('input', findRows);
tablist.addEventListener('keydown', event => {
  const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!way) return;
  openPanel((shownPanel + way + panels.length) % panels.length);
  tabs[shownPanel].focus();
});
document.addEventListener('keydown', event => {
  if (event.key === 'Escape') {
    box.value = '';
    findRows();
  } else if (event.key === '/' && !event.target.matches('input')) {
    event.preventDefault();
    box.focus();
  }
});
openPanel(0);
