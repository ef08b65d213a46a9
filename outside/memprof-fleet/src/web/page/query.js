// What the page shows, as its address says: {t, for, at, build, base, type} and the viewer's own.

import { request } from './api.js';

export const stateOf = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

// The address of a state; what is empty is left out.
export function hash(state) {
  return `#${new URLSearchParams(Object.entries(state).filter(([, value]) => value))}`;
}

// The parameters of the API.
const query = ({ t, for: length, at, build }, more = {}) => new URLSearchParams(Object.entries({
  target: t, for: length, at, build, ...more }).filter(([, value]) => value));

export const rows = (what, state) => request(`api/v1/${what}?${query(state)}`);

// `base` is a build, or `before` for the same length of time before this one.
export function profileAddress(state, format) {
  const { base, type } = state;
  const before = base === 'before' && { base_at: state.from };
  return `api/v1/profile?${query(state, { format, sample_type: type, ...(before || { base }) })}`;
}

export const view = state => request(profileAddress(state, 'view'));
