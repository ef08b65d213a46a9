// Times as a person says them, and texts of the host with their code.

import { element } from './viewer/format.js';

// A text in which commands and options stand between backticks.
export const marked = text => text.split('`').map((part, index) =>
  index % 2 ? element('code', { textContent: part }) : part);

const SPANS = [['d', 86400], ['h', 3600], ['min', 60], ['s', 1]];

// `2 h 5 min`, `40 s`: the two greatest units at most.
export function span(seconds) {
  // Behind so many minutes nobody asks for seconds.
  let rest = Math.max(0, seconds < 300 ? Math.round(seconds) : 60 * Math.round(seconds / 60));
  const words = [];
  for (const [unit, length] of SPANS) {
    const count = Math.floor(rest / length);
    if (!count && !words.length && unit !== 's') continue;
    rest -= count * length;
    if (count || !words.length) words.push(`${count} ${unit}`);
    if (words.length === 2 || (rest < 60 && seconds >= 300)) break;
  }
  return words.join(' ');
}

export const secondsSince = time => (Date.now() - new Date(time)) / 1000;

// The time of day; with the date, as in ISO 8601, where that is not today's.
export function clock(time) {
  const date = new Date(time);
  const day = date.toDateString() === new Date().toDateString() ? '' : `${date.toLocaleDateString('sv')} `;
  return day + date.toLocaleTimeString([], { hourCycle: 'h23' });
}
