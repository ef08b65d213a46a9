// Values as a person reads them.

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];

// `unit` is that of the sample type: 'bytes' or 'count'.
export function amount(value, unit = 'bytes') {
  const size = Math.abs(value);
  const sign = value < 0 ? '−' : '';
  if (unit !== 'bytes') return sign + size.toLocaleString('en');
  const step = size < 1 ? 0 : Math.min(Math.floor(Math.log2(size) / 10), UNITS.length - 1);
  const scaled = size / 1024 ** step;
  return `${sign}${Number.isInteger(scaled) ? scaled : scaled.toFixed(scaled < 100 ? 1 : 0)} ${UNITS[step]}`;
}

// A change, with a sign that needs no colour.
export function change(value, unit) {
  return value === 0 ? '0' : value > 0 ? `▲ +${amount(value, unit)}` : `▼ ${amount(value, unit)}`;
}

export function percent(part, whole) {
  return whole ? `${(100 * part / whole).toFixed(1)} %` : '–';
}

// Seconds, rounded down.
export function span(seconds) {
  return seconds < 120 ? `${seconds} s` : seconds < 7200 ? `${Math.floor(seconds / 60)} min`
    : seconds < 172800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} d`;
}

// An element with properties and children; text never becomes markup.
export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}
