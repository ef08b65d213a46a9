// Requests to the server that this page came from. Addresses are relative, so that a prefix before them stays.

// Says why a page whose script is refused stays empty.
document.getElementById('unloaded')?.remove();

// What the server, or the host behind it, refused; or that it does not answer.
export class Failure extends Error {
  constructor({ kind = 'failed', message = 'the request failed', remedy = '' }, retryAfter = 0) {
    super(message);
    Object.assign(this, { kind, remedy, retryAfter });
  }

  get isGone() {
    return this.kind === 'host_gone' || this.kind === 'no_server';
  }
}

// Reads, or with `args` changes, something of the host: its reply.
export function ask(what, args) {
  const change = { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(args) };
  return request(`api/v1/${what}`, args && change);
}

// The host's pid in this page's address, or none where the only host is shown.
const below = /\/host\/(\d+)\/$/.exec(location.pathname);
export const pid = below && Number(below[1]);
const root = below ? '../../' : '';

// The hosts that answer, and the silent ones, which do not.
export const hosts = () => request(`${root}api/v1/hosts`);

export const hostAddress = host => `${root}host/${host.pid}/`;
export const rootAddress = root || './';

// Where a kept dump is rendered.
export function dumpAddress(id, format, { base, type, label }) {
  const query = new URLSearchParams({ format });
  if (type) query.set('sample_type', type);
  if (base) query.set('base', base);
  if (label) query.set('label', label);
  return `api/v1/dumps/${encodeURIComponent(id)}?${query}`;
}

// Its largest functions.
export const report = (id, { top }) => request(`${dumpAddress(id, 'json', { type: 'inuse_space' })}&top=${top}`);

export const view = (id, options) => request(dumpAddress(id, 'view', options));

export async function request(address, options = {}) {
  let response, body;
  try {
    response = await fetch(address, options);
    body = await response.json();
  } catch (cause) {
    if (response) throw new Failure({ message: `the server's reply makes no sense: ${cause.message}` });
    throw new Failure({ kind: 'no_server', message: 'memprof serve does not answer', remedy: 'start it again' });
  }
  if (!response.ok) throw new Failure(body.error ?? {}, Number(response.headers.get('retry-after')));
  return body;
}
