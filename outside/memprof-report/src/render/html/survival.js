// What of each age is alive, as a line from young to old.

const SVG = 'http://www.w3.org/2000/svg';
const AGE_WIDTH = 8;
const LINE_HEIGHT = 16;

// `held` are bytes by age, the youngest first, and `columns` how many ages there are.
export function survivalLine(held, columns, title) {
  const part = (name, attributes) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const most = Math.max(...held, 1);
  const top = at => (LINE_HEIGHT * (1 - Math.max(held[at] ?? 0, 0) / most)).toFixed(1);
  let path = `M0 ${LINE_HEIGHT}`;
  for (let at = 0; at < columns; at++) path += `V${top(at)}H${(at + 1) * AGE_WIDTH}`;
  const width = columns * AGE_WIDTH;
  const line = part('svg', { width, height: LINE_HEIGHT, viewBox: `0 0 ${width} ${LINE_HEIGHT}`, role: 'img', class: 'survival' });
  const label = part('title', {});
  label.textContent = title;
  line.append(label, part('path', { d: `${path}V${LINE_HEIGHT}Z` }));
  return line;
}
