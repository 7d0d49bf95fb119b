
// --- drawing: one scope at a time, laid out by Graphviz when the page was made

let view = {x: 0, y: 0, w: 1, h: 1};    // what part of the drawing is seen
let whole = {x: 0, y: 0, w: 1, h: 1};   // all of it
let fitted = true;                      // nobody has moved it
let svg = null, miniWindow = null;
let copies = new Map();                 // of boxes and edges in the overview, by id

function draw() {
  drawnScope = state.scope;
  canvas.innerHTML = drawing(state.scope).svg;
  svg = canvas.querySelector('svg');
  const box = svg.viewBox.baseVal;
  whole = {x: box.x - 12, y: box.y - 12, w: box.width + 24, h: box.height + 24};
  svg.removeAttribute('width');
  svg.removeAttribute('height');
  // The background that Graphviz draws is a polygon right below the graph.
  for (const child of svg.querySelectorAll('g.graph > polygon')) child.remove();
  for (const box of svg.querySelectorAll('g.node')) box.setAttribute('role', 'button');
  const copy = svg.cloneNode(true);
  copies = new Map();
  for (const one of copy.querySelectorAll('[id]')) {
    copies.set(one.id, one);
    one.removeAttribute('id');
    one.removeAttribute('role');
  }
  copy.removeAttribute('id');
  copy.setAttribute('aria-hidden', 'true');
  copy.setAttribute('viewBox', [whole.x, whole.y, whole.w, whole.h].join(' '));
  miniWindow = document.createElementNS('http://www.w3.org/2000/svg', 'rect');
  miniWindow.setAttribute('class', 'window');
  copy.append(miniWindow);
  mini.replaceChildren(copy);
}

// What an id stands for: a node or a scope, perhaps outside of what is drawn, or several of them.
function itemOf(id) {
  if (id === 'mb' || id === 'ma') return {outside: true, isNode: false, more: drawing(state.scope)[id]};
  const match = /^(o?)([ns])(\d+)$/.exec(id || '');
  if (!match) return null;
  const number = Number(match[3]);
  const thing = match[2] === 'n' ? nodes.get(number) : data.scopes[number];
  return thing ? {outside: match[1] !== '', isNode: match[2] === 'n', number, thing} : null;
}

// The node whose regions a scope shows, while it is there or just gone: it stands for the scope.
function holderOf(scope) {
  const node = nodes.get(scope.b);
  const there = node && (has(node.m, state.stage) || (has(node.m, state.stage - 1) && !has(scope.m, state.stage)));
  return there ? node : null;
}

const colourOf = i => i < 10 ? 'var(--c' + i + ')' : 'hsl(' + i * 137.508 % 360 + ' var(--saturation) var(--lightness))';

function mark(thing, id, what) {
  for (const one of [thing, copies.get(id)]) {
    one.classList.remove('absent', 'added', 'removed', 'rewired', 'changed', 'remade');
    if (what) one.classList.add(what);
  }
}
function setLabel(thing, label) {
  const lines = textAt(label, state.stage).split('\n');
  thing.querySelectorAll('text').forEach((text, i) => { text.textContent = lines[i] || ''; });
}

function applyStage() {
  const drawn = drawing(state.scope);
  for (const [id, label] of drawn.t) setLabel(svg.getElementById(id), label);
  let seen = 0;
  for (const box of svg.querySelectorAll('g.node')) {
    const item = itemOf(box.id);
    box.classList.toggle('selected', box.id === state.selected);
    if (!item || item.outside) continue;
    const node = item.isNode ? item.thing : holderOf(item.thing);
    const what = node ? nodeFate(node, state.stage) : scopeFate(item.thing, item.number, state.stage);
    const colour = node ? appearanceNear(node, state.stage)[state.colour === 'device' ? 3 : 4] : -1;
    for (const one of [box, copies.get(box.id)]) {
      one.classList.toggle('tinted', colour >= 0);
      one.style.setProperty('--fill', colour >= 0 ? colourOf(colour) : 'none');
    }
    mark(box, box.id, what);
    box.setAttribute('aria-label', (item.isNode ? nameAt(item.thing, state.stage) + ', ' + item.thing.o : 'scope ' + item.thing.n) +
                                       (what ? ', ' + what : ''));
    if (what !== 'absent') ++seen;
  }
  empty.hidden = seen > 0;
  const ends = new Set();
  drawn.e.forEach((edge, i) => {
    const line = svg.getElementById('e' + i);
    if (!line) return;
    const what = edgeFate(edge[3], state.stage);
    mark(line, 'e' + i, what);
    if (typeof edge[4] !== 'string') setLabel(line, edge[4]);
    if (what !== 'absent') ends.add(edge[0]).add(edge[1]);
    line.classList.toggle('near', !!state.selected && (edge[0] === state.selected || edge[1] === state.selected));
  });
  // What is outside is of interest only where something leads there.
  for (const box of svg.querySelectorAll('g.node.outside')) {
    mark(box, box.id, ends.has(box.id) ? '' : 'absent');
    const {more, thing} = itemOf(box.id);
    box.setAttribute('aria-label', more ? more.length + ' more outside' : 'outside: ' + (thing.n || 'graph'));
  }
  if (svg.getElementById(state.selected)) canvas.setAttribute('aria-activedescendant', state.selected);
  else canvas.removeAttribute('aria-activedescendant');
  showLegend();
}

// --- seeing: the view box moves, the drawing stays

function show() {
  svg.setAttribute('viewBox', [view.x, view.y, view.w, view.h].join(' '));
  for (const [name, value] of [['x', view.x], ['y', view.y], ['width', view.w], ['height', view.h]])
    miniWindow.setAttribute(name, value);
  miniWindow.setAttribute('stroke-width', whole.w / 120);
}
function fit() {
  const width = canvas.clientWidth || 1, height = canvas.clientHeight || 1;
  // Leaves room at the bottom. Small drawings are not blown up.
  const fill = below => {
    const scale = Math.max(whole.w / width, whole.h / (height - below), 0.7);
    view = {x: whole.x + (whole.w - width * scale) / 2, y: whole.y + (whole.h - (height - below) * scale) / 2,
            w: width * scale, h: height * scale};
    return scale;
  };
  const room = height * 0.08, scale = fill(room);
  // More of it where the drawing reaches under what lies over the corners.
  const left = (whole.x - view.x) / scale, bottom = (whole.y + whole.h - view.y) / scale;
  let below = room;
  for (const [over, reached] of [[legend, left < legend.offsetLeft + legend.offsetWidth], [mini, width - left > mini.offsetLeft]])
    if (over.offsetHeight > 0 && reached && bottom > over.offsetTop) below = Math.max(below, height - over.offsetTop);
  if (below > room) fill(Math.min(below, height / 2));
  fitted = true;
  show();
}
// The window has another size: the middle and the scale stay.
function resized() {
  if (fitted) return fit();
  const scale = view.w / (Number(canvas.dataset.width) || canvas.clientWidth || 1);
  const w = canvas.clientWidth * scale, h = canvas.clientHeight * scale;
  view = {x: view.x + (view.w - w) / 2, y: view.y + (view.h - h) / 2, w, h};
  show();
}
function zoom(factor, x = view.x + view.w / 2, y = view.y + view.h / 2) {
  const scale = view.w * factor / (canvas.clientWidth || 1);
  if (scale < 0.05 || scale > 400) return;
  fitted = false;
  view = {x: x - (x - view.x) * factor, y: y - (y - view.y) * factor, w: view.w * factor, h: view.h * factor};
  show();
}
function place(event) {
  const frame = canvas.getBoundingClientRect();
  return {x: view.x + (event.clientX - frame.left) / frame.width * view.w,
          y: view.y + (event.clientY - frame.top) / frame.height * view.h};
}
function pan(dx, dy) {
  fitted = false;
  view.x += dx;
  view.y += dy;
  show();
}
const centre = (x, y) => pan(x - view.w / 2 - view.x, y - view.h / 2 - view.y);
// Where a box is, in the drawing's own coordinates.
function boundsOf(box) {
  const b = box.getBBox(), matrix = svg.querySelector('g.graph').transform.baseVal.consolidate();
  const m = matrix ? matrix.matrix : {a: 1, d: 1, e: 0, f: 0};
  return {x: b.x * m.a + m.e, y: b.y * m.d + m.f, w: b.width * m.a, h: b.height * m.d};
}
function bringIntoView(id) {
  const box = id && svg.getElementById(id);
  if (!box) return;
  const b = boundsOf(box);
  if (b.x < view.x || b.y < view.y || b.x + b.w > view.x + view.w || b.y + b.h > view.y + view.h)
    centre(b.x + b.w / 2, b.y + b.h / 2);
}

// --- path, legend, stages

function showPath() {
  const chain = [];
  for (let scope = state.scope;; scope = data.scopes[scope].p) {
    chain.unshift(scope);
    if (scope === 0) break;
  }
  pathBar.replaceChildren(...chain.flatMap((scope, i) => {
    const button = element('button', {onclick: () => openScope(scope)}, scope === 0 ? 'graph' : data.scopes[scope].l);
    if (scope === state.scope) button.setAttribute('aria-current', 'page');
    return i === 0 ? [button] : [element('span', {}, '/'), button];
  }));
}

function showLegend() {
  const colours = new Set(), kinds = new Set();
  for (const box of svg.querySelectorAll('g.node:is(.box, .holder):not(.absent)')) {
    const item = itemOf(box.id), node = item.isNode ? item.thing : holderOf(item.thing);
    if (!node) continue;
    const now = appearance(node, state.stage);
    if (now) colours.add(now[state.colour === 'device' ? 3 : 4]);
    kinds.add(node.k);
  }
  const names = state.colour === 'device' ? data.devices : data.replicas;
  const rows = [];
  const row = (style, text) => {
    const sign = element('i', {});
    sign.style.cssText = style;
    rows.push(element('div', {}, sign, text));
  };
  for (const colour of [...colours].sort((a, b) => a - b)) {
    if (colour >= 0) row('background: ' + colourOf(colour), names[colour]);
    else if (colours.size > 1) row('background: var(--none)', state.colour === 'device' ? 'not placed' : 'of no replica');
  }
  if (kinds.has('collective')) row('border-color: var(--collective)', 'joins replicas');
  if (kinds.has('copy')) row('border-color: var(--copy)', 'copies to another device');
  if (kinds.has('update')) row('border-color: var(--ink); border-width: 2.5px', 'updates a variable');
  legend.replaceChildren(...rows);
  legend.hidden = rows.length === 0;
}

function tags(counts) {
  return Object.keys(counts).sort().flatMap(what => [element('span', {className: 'tag ' + what}, counts[what] + ' ' + what), ' ']);
}
function showStage() {
  if (last === 0) return;
  const stage = data.stages[state.stage];
  slider.value = state.stage;
  slider.setAttribute('aria-valuetext', stage.n);
  const changes = changesByScope(state.stage);
  stageText.replaceChildren(element('b', {}, state.stage + 1 + '. ' + stage.n), ' ', ...tags(changes.total), sizeText(data.scopes[0]));
  document.getElementById('previous').disabled = state.stage === 0;
  document.getElementById('next').disabled = state.stage === last;
}
slider.addEventListener('input', () => setStage(Number(slider.value)));
colourBox.addEventListener('change', () => { state.colour = colourBox.value; applyStage(); });
