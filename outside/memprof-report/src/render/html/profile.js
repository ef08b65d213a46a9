// A profile: its call tree in flat arrays, and the table of its functions.

// What became of a function since the base, in the order of `kind` below.
export const KINDS = ['same', 'grew', 'shrank', 'new', 'gone'];

// The highest of `view.whose`: the program's own functions.
const OWN = 4;

// `view` is what memprof writes as its format of that name. The tree stands in preorder, node 0 is the root:
// the callees of node n lie in n + 1 .. end[n].
export function profileOf(view) {
  const tree = nodesOf(view.tree);
  return {
    ...tree,
    names: view.functions,
    isOwn: f => !view.whose.length || view.whose[f] === OWN,
    nameOf: n => tree.fn[n] < 0 ? 'total' : view.functions[tree.fn[n]],
    heading: view.heading,
    notes: view.notes,
    isDiff: view.base !== null,
    unit: view.unit,
    byCum: view.by_cum,
    isPinned: view.pinned === true,
    ages: view.ages,
    table: tableOf(tree, view),
  };
}

function nodesOf({ function: functions, depth: depths, own: owns, own_base: bases, samples, error: errors }) {
  const fn = Int32Array.from(functions);
  const depth = Uint32Array.from(depths);
  const own = Float64Array.from(owns);
  const count = fn.length;
  const ownBase = bases.length ? Float64Array.from(bases) : new Float64Array(count);
  const variance = Float64Array.from(errors, error => error ** 2);
  const total = own.slice();
  const totalBase = ownBase.slice();
  // What can be drawn: a difference also has negative values, which shares count by their size.
  const size = own.map(value => Math.max(value, 0));
  const whole = own.reduce((sum, value) => sum + Math.abs(value), 0);
  const parent = new Int32Array(count).fill(-1);
  const end = new Uint32Array(count);
  const path = [];
  for (let n = 0; n < count; n++) {
    if (n) parent[n] = path[depth[n] - 1];
    path[depth[n]] = n;
  }
  for (let n = count - 1; n >= 0; n--) {
    end[n] ||= n + 1;
    const p = parent[n];
    if (p < 0) continue;
    total[p] += total[n];
    totalBase[p] += totalBase[n];
    size[p] += size[n];
    end[p] ||= end[n];
  }
  return { count, fn, depth, parent, end, own, ownBase, samples, variance, total, totalBase, size, whole };
}

// By function: its own values and, counted once per stack, those of its callees too. Only the functions of a
// stack's highest kind count: the others are folded into their callers. `distance` is how far they stand from
// the leaf, by what they hold.
function tableOf({ count, fn, parent, own, ownBase, samples, variance }, view) {
  const functions = view.functions.length;
  const whose = view.whose.length ? view.whose : new Uint8Array(functions);
  const flat = new Float64Array(functions), flatBase = flat.slice();
  const cum = flat.slice(), cumBase = flat.slice(), distance = flat.slice();
  // What the values rest on: `flat`, or `cum` where the table begins with it.
  const rests = { samples: flat.slice(), variance: flat.slice() };
  const rest = (f, n) => {
    rests.samples[f] += samples[n] ?? 0;
    rests.variance[f] += variance[n] ?? 0;
  };
  const seen = new Uint32Array(functions), most = new Uint8Array(count);
  for (let n = 1; n < count; n++) {
    most[n] = Math.max(most[parent[n]], whose[fn[n]]);
    if (!own[n] && !ownBase[n]) continue;
    for (let p = n, steps = 0; p > 0; p = parent[p]) {
      const f = fn[p];
      if (whose[f] !== most[n]) continue;
      if (!steps) {
        flat[f] += own[n];
        flatBase[f] += ownBase[n];
        if (!view.by_cum) rest(f, n);
      }
      if (seen[f] !== n) {
        seen[f] = n;
        cum[f] += own[n];
        cumBase[f] += ownBase[n];
        if (view.by_cum) rest(f, n);
        if (view.whose.length) distance[f] += steps * Math.abs(own[n] - ownBase[n]);
      }
      steps++;
    }
  }
  const kind = Uint8Array.from(flat, (_, f) => flat[f] || flatBase[f]
    ? kindOf(flat[f], flatBase[f]) : kindOf(cum[f], cumBase[f]));
  const error = rests.variance.map(Math.sqrt);
  return { flat, flatBase, cum, cumBase, kind, distance, samples: rests.samples, error, isSampled: samples.length > 0 };
}

function kindOf(now, before) {
  return now === before ? 0 : !before ? 3 : !now ? 4 : now > before ? 1 : 2;
}

// What orders the callees of a node: in a diff that which changed most is looked for.
export function weight({ isDiff, total, totalBase }, n) {
  return Math.abs(isDiff ? total[n] - totalBase[n] : total[n]);
}

export function heaviest(profile) {
  let best = 0;
  for (let n = 0; n < profile.count; n++) best = Math.max(best, weight(profile, n));
  return best;
}

// Which names match a regular expression, or contain a text that is none; null for nothing.
export function search(profile, wanted) {
  if (!wanted) return null;
  let pattern;
  try { pattern = new RegExp(wanted, 'i'); } catch { pattern = null; }
  const plain = wanted.toLowerCase();
  const matches = pattern ? name => pattern.test(name) : name => name.toLowerCase().includes(plain);
  return Uint8Array.from(profile.names, name => matches(name) ? 1 : 0);
}

// The outermost nodes of the functions in `hits`, and their sum.
export function found({ count, fn, end, total }, hits) {
  const nodes = [];
  let sum = 0;
  for (let n = 1; n < count;) {
    if (!hits[fn[n]]) { n++; continue; }
    nodes.push(n);
    sum += total[n];
    n = end[n];
  }
  return { nodes, sum };
}
