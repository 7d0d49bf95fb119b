'use strict';
// The page of io/html.h. The data (element #data) has short names:
//   stages    n name, p pass with options, e error, t seconds, z nodes
//   scopes    n name, l label, p parent, z nodes inside, m stages (bits), b the node whose regions it shows,
//             c names of the copies it stands for, h they are chained
//   nodes     i number, n name, o op, k kind, s scope, m stages, r a result,
//             a appearances: [stage, change, copies, device colour, replica colour, place in facts]
//   facts     out, in, at (attributes), dev, rep, lat (what replicas hold), site, fn, from, by, why, fl, mem, u
// Each scope's drawing is an element of its own (#drawing<scope>), read when it is looked at: svg, and e edges
// [from, to, control, stages]. Ids in the SVG: n<i>, s<i>, on<i>, os<i>, e<i>.

const data = JSON.parse(document.getElementById('data').textContent);
const drawings = new Map();
function drawing(scope) {
  if (!drawings.has(scope)) drawings.set(scope, JSON.parse(document.getElementById('drawing' + scope).textContent));
  return drawings.get(scope);
}
const nodes = new Map(data.nodes.map(node => [node.i, node]));
const kChanges = ['', 'added', 'rewired', 'changed', 'remade'];
const last = data.stages.length - 1;
const state = {scope: 0, stage: last, selected: null, colour: 'device'};
let view = {x: 0, y: 0, w: 1, h: 1};    // what part of the drawing is seen
let whole = {x: 0, y: 0, w: 1, h: 1};   // all of it
let svg = null, miniWindow = null, found = [], chosen = -1;

const has = (mask, stage) => stage >= 0 && Math.floor(mask / 2 ** stage) % 2 === 1;
const appearance = (node, stage) => node.a.find(one => one[0] === stage);

// What became of a box or an edge at a stage: '', a change, 'removed', or 'absent'.
function fate(mask, stage, change) {
  if (has(mask, stage)) return change;
  return has(mask, stage - 1) ? 'removed' : 'absent';
}
function nodeFate(node, stage) {
  const now = appearance(node, stage);
  return fate(node.m, stage, now ? kChanges[now[1]] : '');
}
function edgeFate(mask, stage) {
  return fate(mask, stage, stage > 0 && !has(mask, stage - 1) ? 'added' : '');
}

// --- the page

function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

const pathBar = element('nav', {id: 'path', ariaLabel: 'Path of scopes'});
const searchBox = element('input', {type: 'search', placeholder: 'Search name, op, device  ( / )', ariaLabel: 'Search'});
const foundList = element('ul', {id: 'found', role: 'listbox'});
const colourBox = element('select', {id: 'colour', title: 'What colours mean', ariaLabel: 'Colour by'},
                          element('option', {value: 'device'}, 'colour by device'),
                          element('option', {value: 'replica'}, 'colour by replica'));
const backButton = element('button', {id: 'back', title: 'Back (Backspace)', onclick: () => history.back()}, '\u2190');
const themeButton = element('button', {id: 'theme', title: 'Light or dark (d)', onclick: toggleTheme}, '\u25d0');
const helpButton = element('button', {id: 'help', title: 'Help (?)', onclick: () => { select(null); showHelp(); }}, '?');
const canvas = element('div', {id: 'drawing', tabIndex: 0, ariaLabel: 'Drawing'});
const mini = element('div', {id: 'mini', title: 'Overview'});
const legend = element('div', {id: 'legend'});
const empty = element('div', {id: 'empty', hidden: true}, 'Nothing in this scope at this stage');
const panel = element('aside', {id: 'details', ariaLive: 'polite'});
const slider = element('input', {type: 'range', id: 'stage', min: 0, max: last, step: 1, ariaLabel: 'Stage'});
const stageText = element('output', {id: 'stage-text'});
const footer = element('footer', {hidden: last === 0},
                       element('button', {id: 'previous', title: 'Previous stage ( [ )', onclick: () => setStage(state.stage - 1)}, '\u25c0'),
                       slider,
                       element('button', {id: 'next', title: 'Next stage ( ] )', onclick: () => setStage(state.stage + 1)}, '\u25b6'),
                       stageText);
document.body.append(
    element('header', {}, element('h1', {}, data.title), backButton, pathBar,
            element('div', {id: 'search'}, searchBox, foundList), colourBox, themeButton, helpButton),
    element('main', {}, canvas, empty, legend, mini,
            element('div', {id: 'zoom'},
                    element('button', {title: 'Zoom in (+)', onclick: () => zoom(1 / 1.25)}, '+'),
                    element('button', {title: 'Zoom out (-)', onclick: () => zoom(1.25)}, '\u2212'),
                    element('button', {id: 'fit', title: 'Whole drawing (0)', onclick: fit}, 'fit'))),
    panel, footer);

// --- where we are: kept in the address, so that the browser's back and forward work

function go(changes, replace = false) {
  Object.assign(state, changes);
  const hash = '#scope=' + state.scope + '&stage=' + state.stage + (state.selected ? '&at=' + state.selected : '');
  if (hash !== location.hash) history[replace ? 'replaceState' : 'pushState'](null, '', hash);
  render();
}
function readAddress() {
  const fields = new URLSearchParams(location.hash.slice(1));
  const number = (name, otherwise, limit) => {
    const value = parseInt(fields.get(name), 10);
    return value >= 0 && value <= limit ? value : otherwise;
  };
  state.scope = number('scope', 0, data.scopes.length - 1);
  state.stage = number('stage', last, last);
  state.selected = fields.get('at');
  render();
}
function openScope(scope) { go({scope, selected: null}); }
function select(id) { go({selected: id}, true); }
function setStage(stage) { go({stage: Math.max(0, Math.min(last, stage))}, true); }
function reveal(nodeNumber) {
  go({scope: nodes.get(nodeNumber).s, selected: 'n' + nodeNumber});
  bringIntoView(state.selected);
}

let drawnScope = -1;
function render() {
  if (drawnScope !== state.scope) draw();
  applyStage();
  showPath();
  showDetails();
  showStage();
}

// --- drawing

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
  for (const text of svg.querySelectorAll('.node text')) text.dataset.text = text.textContent;
  const copy = svg.cloneNode(true);
  for (const one of copy.querySelectorAll('[id]')) one.removeAttribute('id');
  copy.removeAttribute('id');
  copy.setAttribute('viewBox', [whole.x, whole.y, whole.w, whole.h].join(' '));
  miniWindow = document.createElementNS('http://www.w3.org/2000/svg', 'rect');
  miniWindow.setAttribute('class', 'window');
  copy.append(miniWindow);
  mini.replaceChildren(copy);
  fit();
}

function itemOf(id) {
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

function applyStage() {
  const changes = changesByScope(state.stage);
  let seen = 0;
  for (const box of svg.querySelectorAll('g.node')) {
    const item = itemOf(box.id);
    box.classList.remove('absent', 'added', 'removed', 'rewired', 'changed', 'remade', 'selected');
    for (let i = 0; i < 10; ++i) box.classList.remove('c' + i);
    if (!item) continue;
    let what;
    const node = item.isNode ? item.thing : holderOf(item.thing);
    if (node) {
      what = nodeFate(node, state.stage);
      const now = appearance(node, state.stage) || node.a[node.a.length - 1];
      const colour = now[state.colour === 'device' ? 3 : 4];
      if (colour >= 0 && !item.outside) box.classList.add('c' + colour % 10);
      showCopies(box, now[2]);
    } else {
      what = fate(item.thing.m, state.stage, changes.get(item.number) ? 'changed' : '');
    }
    if (what && !(item.outside && what !== 'absent')) box.classList.add(what);
    if (what !== 'absent' && !item.outside) ++seen;
    if (box.id === state.selected) box.classList.add('selected');
  }
  empty.hidden = seen > 0;
  const ends = new Set();
  drawing(state.scope).e.forEach((edge, i) => {
    const line = svg.querySelector('#e' + i);
    if (!line) return;
    line.classList.remove('absent', 'added', 'removed', 'near');
    const what = edgeFate(edge[3], state.stage);
    if (what) line.classList.add(what);
    if (what !== 'absent') ends.add(edge[0]).add(edge[1]);
    if (state.selected && (edge[0] === state.selected || edge[1] === state.selected)) line.classList.add('near');
  });
  // What is outside is of interest only where something leads there.
  for (const box of svg.querySelectorAll('g.node.outside')) box.classList.toggle('absent', !ends.has(box.id));
  showLegend();
}

// "x 8" says of how many replicas a box is at this stage.
function showCopies(box, copies) {
  for (const text of box.querySelectorAll('text')) {
    const original = text.dataset.text || '';
    if (!/(^|\s)x \d+$/.test(original)) continue;
    text.textContent = copies > 1 ? original.replace(/x \d+$/, 'x ' + copies) : original.replace(/\s*x \d+$/, '');
  }
}

// Which scopes hold something that this stage changed, and how many of what.
const changeCache = new Map();
function changesByScope(stage) {
  if (changeCache.has(stage)) return changeCache.get(stage);
  const counts = new Map();
  counts.total = {};
  counts.list = [];
  for (const node of data.nodes) {
    const what = nodeFate(node, stage);
    if (!what || what === 'absent' || stage === 0) continue;
    counts.total[what] = (counts.total[what] || 0) + 1;
    counts.list.push([what, node]);
    for (let scope = node.s;; scope = data.scopes[scope].p) {
      const of = counts.get(scope) || {};
      of[what] = (of[what] || 0) + 1;
      counts.set(scope, of);
      if (scope === 0) break;
    }
  }
  changeCache.set(stage, counts);
  return counts;
}

// --- seeing: the view box moves, the drawing stays

function show() {
  svg.setAttribute('viewBox', [view.x, view.y, view.w, view.h].join(' '));
  for (const [name, value] of [['x', view.x], ['y', view.y], ['width', view.w], ['height', view.h]])
    miniWindow.setAttribute(name, value);
  miniWindow.setAttribute('stroke-width', whole.w / 120);
}
function fit() {
  // Small drawings are not blown up.
  const width = canvas.clientWidth || 1, height = canvas.clientHeight || 1;
  const scale = Math.max(whole.w / width, whole.h / (height * 0.9), 0.5);  // the legend needs some room
  view.w = width * scale;
  view.h = height * scale;
  view.x = whole.x + whole.w / 2 - view.w / 2;
  view.y = whole.y + whole.h / 2 - view.h * 0.46;
  show();
}
function zoom(factor, x = view.x + view.w / 2, y = view.y + view.h / 2) {
  const scale = view.w * factor / (canvas.clientWidth || 1);
  if (scale < 0.05 || scale > 400) return;
  view = {x: x - (x - view.x) * factor, y: y - (y - view.y) * factor, w: view.w * factor, h: view.h * factor};
  show();
}
function place(event) {
  const frame = canvas.getBoundingClientRect();
  return {x: view.x + (event.clientX - frame.left) / frame.width * view.w,
          y: view.y + (event.clientY - frame.top) / frame.height * view.h};
}
function centre(x, y) {
  view.x = x - view.w / 2;
  view.y = y - view.h / 2;
  show();
}
// Where a box is, in the drawing's own coordinates.
function boundsOf(box) {
  const b = box.getBBox(), matrix = svg.querySelector('g.graph').transform.baseVal.consolidate();
  const m = matrix ? matrix.matrix : {a: 1, d: 1, e: 0, f: 0};
  return {x: b.x * m.a + m.e, y: b.y * m.d + m.f, w: b.width * m.a, h: b.height * m.d};
}
function bringIntoView(id) {
  const box = id && svg.querySelector('#' + id);
  if (!box) return;
  const b = boundsOf(box);
  if (b.x < view.x || b.y < view.y || b.x + b.w > view.x + view.w || b.y + b.h > view.y + view.h)
    centre(b.x + b.w / 2, b.y + b.h / 2);
}

// --- pointer

let drag = null;
canvas.addEventListener('pointerdown', event => {
  if (event.button !== 0) return;
  const box = event.target.closest('g.node');
  drag = {x: event.clientX, y: event.clientY, moved: false, id: box ? box.id : null};
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener('pointermove', event => {
  if (!drag) return;
  const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
  if (!drag.moved && Math.hypot(dx, dy) < 4) return;
  drag.moved = true;
  canvas.classList.add('dragging');
  view.x -= dx * view.w / canvas.clientWidth;
  view.y -= dy * view.h / canvas.clientHeight;
  drag.x = event.clientX;
  drag.y = event.clientY;
  show();
});
canvas.addEventListener('pointerup', () => {
  canvas.classList.remove('dragging');
  if (drag && !drag.moved) clicked(drag.id);
  drag = null;
});
canvas.addEventListener('pointercancel', () => { drag = null; });
function clicked(id) {
  const item = itemOf(id);
  if (!item) return select(null);
  if (item.outside) return item.isNode ? reveal(item.number) : openScope(item.number);
  if (!item.isNode && state.selected === id) return openScope(item.number);  // the second click opens it
  select(id);
}
canvas.addEventListener('wheel', event => {
  event.preventDefault();
  const at = place(event);
  zoom(event.deltaY > 0 ? 1.15 : 1 / 1.15, at.x, at.y);
}, {passive: false});
mini.addEventListener('pointerdown', event => {
  const frame = mini.getBoundingClientRect();
  const scale = Math.max(whole.w / frame.width, whole.h / frame.height);
  centre(whole.x + whole.w / 2 + (event.clientX - frame.left - frame.width / 2) * scale,
         whole.y + whole.h / 2 + (event.clientY - frame.top - frame.height / 2) * scale);
});
window.addEventListener('resize', fit);

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
    if (colour >= 0) row('background: var(--c' + colour % 10 + ')', names[colour]);
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
  slider.value = state.stage;
  const stage = data.stages[state.stage];
  const changes = changesByScope(state.stage);
  stageText.replaceChildren(element('b', {}, state.stage + '. ' + stage.n), ' ', ...tags(changes.total), stage.z + ' nodes');
  document.getElementById('previous').disabled = state.stage === 0;
  document.getElementById('next').disabled = state.stage === last;
}
slider.addEventListener('input', () => setStage(Number(slider.value)));
colourBox.addEventListener('change', () => { state.colour = colourBox.value; applyStage(); });

// --- details

function number(value) {
  for (const [unit, size] of [['T', 1e12], ['G', 1e9], ['M', 1e6], ['k', 1e3]])
    if (value >= size) return (value / size).toPrecision(3) + ' ' + unit;
  return value + ' ';
}
function facts(rows) {
  const list = element('dl', {});
  for (const [name, value] of rows) {
    if (value === undefined || value === '' || value.length === 0) continue;
    list.append(element('dt', {}, name), element('dd', {}, value));
  }
  return list;
}
function linkTo(node, text) {
  return element('a', {onclick: () => reveal(node.i), tabIndex: 0}, text || node.n);
}
function section(title, items) {
  return items.length === 0 ? [] : [element('h3', {}, title), element('ul', {}, ...items.map(item => element('li', {}, item)))];
}

function showDetails() {
  const item = itemOf(state.selected);
  if (!item) return showOverview();
  if (!item.isNode) return showScope(item.number);
  const node = item.thing;
  const now = appearance(node, state.stage) || node.a[node.a.length - 1];
  const of = data.facts[now[5]];
  const what = nodeFate(node, state.stage);
  const head = [element('h2', {}, node.n)];
  if (what) head.push(element('p', {}, element('span', {className: 'tag ' + (what === 'absent' ? 'removed' : what)},
                                               what === 'absent' ? 'not there at this stage' : what)));
  const devices = [...new Set(of.dev)];
  const where = of.u ? ' per row (unknown dimensions counted as 1)' : '';
  panel.replaceChildren(
      ...head,
      facts([['op', node.o], ['kind', node.k + (node.r ? ', a result' : '')],
             ['replicas', now[2] > 1 ? 'x ' + now[2] : of.rep && of.rep[0][0] >= 0 ? String(of.rep[0][0]) : ''],
             ['they hold', of.lat === 'mirrored' ? 'mirrored: the same bits on all' : of.lat],
             ['device', devices.join(', ')],
             ['work', of.fl > 0 ? number(of.fl) + 'flop' + where : ''],
             ['memory', of.mem > 0 ? number(of.mem) + 'B read and written' + (of.fl > 0 ? '' : where) : ''],
             ['made at', of.site ? of.site + (of.fn ? ' in ' + of.fn : '') : ''],
             ['stems from', of.from], ['made by', of.by], ['why', of.why]]),
      ...section('gives', of.out.map(mono)), ...section('takes', of.in.map(mono)),
      ...section('attributes', of.at.map(([name, value]) => mono(name + ' = ' + value))),
      ...section('nodes', (of.rep && of.rep.length > 1 ? of.rep : []).map(([replica, name]) => mono(name + (replica >= 0 ? '  replica ' + replica : '')))),
      ...neighbours(state.selected));
}
const mono = text => element('span', {className: 'mono'}, text);

function neighbours(id) {
  const list = [];
  for (const [from, to, control, mask] of drawing(state.scope).e) {
    if (!has(mask, state.stage) || (from !== id && to !== id)) continue;
    const other = itemOf(from === id ? to : from);
    if (!other) continue;
    const link = element('a', {tabIndex: 0, onclick: () => other.outside ? clicked((from === id ? to : from)) : select(from === id ? to : from)},
                         other.thing.n || 'graph');
    list.push(element('span', {}, from === id ? 'to ' : 'from ', link, control ? ' (order only)' : ''));
  }
  return section('neighbours', list);
}

function showScope(number) {
  const scope = data.scopes[number];
  panel.replaceChildren(
      element('h2', {}, scope.n || 'graph'),
      element('p', {}, scope.z + ' nodes'),
      element('p', {}, element('button', {id: 'open', onclick: () => openScope(number)}, 'Open'), ' or click it again, or Enter'),
      element('p', {}, ...tags(changesByScope(state.stage).get(number) || {})),
      ...section('stands for' + (scope.h ? ', one feeding the next' : ''), (scope.c || []).map(mono)),
      ...neighbours('s' + number));
}

function showOverview() {
  const stage = data.stages[state.stage], scope = data.scopes[state.scope];
  const parts = [element('h2', {}, scope.n || data.title), element('p', {}, last > 0 && state.scope === 0 ? stage.z + ' nodes at this stage' : scope.z + ' nodes in here')];
  if (last > 0) {
    const changes = changesByScope(state.stage);
    parts.push(element('h3', {}, 'stage ' + state.stage + ' of ' + last));
    parts.push(element('p', {}, mono(stage.p || stage.n), stage.t > 0 ? '  ' + (stage.t * 1e3).toPrecision(3) + ' ms' : ''));
    if (stage.e) parts.push(element('p', {className: 'error'}, stage.e));
    const here = state.scope === 0 ? changes.list : changes.list.filter(([, node]) => within(node.s, state.scope));
    const shown = 200;
    parts.push(...section('what it did', here.slice(0, shown).map(([what, node]) =>
        element('span', {}, element('span', {className: 'tag ' + what}, what), ' ', linkTo(node)))));
    if (here.length > shown) parts.push(element('p', {}, 'and ' + (here.length - shown) + ' more'));
    if (data.left_out.length > 0) parts.push(...section('passes that changed nothing', data.left_out.map(mono)));
  }
  if (scope.c) parts.push(...section('stands for', scope.c.map(mono)));
  panel.replaceChildren(...parts, ...helpText());
}
function within(scope, ancestor) {
  while (scope !== ancestor && scope !== 0) scope = data.scopes[scope].p;
  return scope === ancestor;
}
function showHelp() { panel.replaceChildren(...helpText()); }
function helpText() {
  const key = name => element('kbd', {}, name);
  const row = (keys, text) => element('p', {}, ...keys.flatMap(name => [key(name), ' ']), text);
  return [element('h3', {}, 'keys'), row(['/'], 'search'), row(['\u2190', '\u2191', '\u2192', '\u2193'], 'move: the selection, else the drawing'),
          row(['Enter'], 'open the selected scope'), row(['Backspace'], 'back'), row(['Esc'], 'let go, then one scope up'),
          row(['+', '-', '0'], 'zoom, whole drawing'), row(['[', ']'], 'stage before, stage after'), row(['d'], 'light or dark'),
          row(['?'], 'this help')];
}

// --- search

function matches(text) {
  text = text.trim().toLowerCase();
  if (text === '') return [];
  const hits = [];
  const limit = 60;
  data.scopes.forEach((scope, i) => {
    if (i > 0 && hits.length < limit && [scope.n, ...(scope.c || [])].some(name => name.toLowerCase().includes(text)))
      hits.push({name: scope.n, note: scope.c ? 'x ' + scope.c.length : 'scope', act: () => { go({scope: data.scopes[i].p, selected: 's' + i}); bringIntoView(state.selected); }});
  });
  // A name inside a copy that is not drawn is found in the one that is.
  const wanted = [text];
  for (const scope of data.scopes) {
    for (const copy of scope.c || []) {
      if (text.startsWith(copy.toLowerCase() + '/')) wanted.push(scope.n.toLowerCase() + text.slice(copy.length));
    }
  }
  for (const node of data.nodes) {
    if (hits.length >= limit) break;
    const now = node.a[node.a.length - 1], device = now[3] >= 0 ? data.devices[now[3]] : '';
    const haystack = (node.n + '\n' + node.o + '\n' + device).toLowerCase();
    if (wanted.some(one => haystack.includes(one)))
      hits.push({name: node.n, note: node.o + (device ? ' on ' + device : ''), act: () => reveal(node.i)});
  }
  return hits;
}
function showFound() {
  foundList.replaceChildren(...found.map((hit, i) => {
    const row = element('li', {role: 'option', ariaSelected: String(i === chosen), onclick: () => take(i)},
                        hit.name, element('small', {}, hit.note));
    return row;
  }));
  if (found.length === 0 && searchBox.value.trim() !== '') foundList.append(element('li', {}, 'nothing found'));
}
function take(i) {
  const hit = found[i];
  closeSearch();
  if (!hit) return;
  hit.act();
}
function closeSearch() {
  found = [];
  chosen = -1;
  searchBox.value = '';
  foundList.replaceChildren();
  canvas.focus();
}
searchBox.addEventListener('input', () => {
  found = matches(searchBox.value);
  chosen = found.length > 0 ? 0 : -1;
  showFound();
});
searchBox.addEventListener('keydown', event => {
  if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
    chosen = (chosen + (event.key === 'ArrowDown' ? 1 : found.length - 1)) % Math.max(found.length, 1);
    showFound();
    event.preventDefault();
  } else if (event.key === 'Enter') {
    take(chosen);
    event.preventDefault();
  } else if (event.key === 'Escape') {
    closeSearch();
    event.preventDefault();
  }
  event.stopPropagation();
});

// --- keyboard

// The nearest box in a direction; far to the side counts double.
function moveSelection(dx, dy) {
  const from = svg.querySelector('#' + state.selected);
  if (!from) return false;
  const middle = box => { const b = boundsOf(box); return {x: b.x + b.w / 2, y: b.y + b.h / 2}; };
  const start = middle(from);
  let best = null, least = Infinity;
  for (const box of svg.querySelectorAll('g.node:not(.absent):not(.outside)')) {
    const at = middle(box), along = (at.x - start.x) * dx + (at.y - start.y) * dy;
    const aside = Math.abs((at.x - start.x) * dy) + Math.abs((at.y - start.y) * dx);
    if (box === from || along <= 1) continue;
    if (along + 2 * aside < least) [best, least] = [box, along + 2 * aside];
  }
  if (best) {
    select(best.id);
    bringIntoView(best.id);
  }
  return true;
}
function arrow(dx, dy) {
  if (state.selected && moveSelection(dx, dy)) return;
  view.x += dx * view.w / 10;
  view.y += dy * view.h / 10;
  show();
}
const kKeys = {
  '/': () => { searchBox.focus(); searchBox.select(); },
  'ArrowLeft': () => arrow(-1, 0), 'ArrowRight': () => arrow(1, 0), 'ArrowUp': () => arrow(0, -1), 'ArrowDown': () => arrow(0, 1),
  '+': () => zoom(1 / 1.25), '=': () => zoom(1 / 1.25), '-': () => zoom(1.25), '0': fit,
  '[': () => setStage(state.stage - 1), ']': () => setStage(state.stage + 1),
  'd': toggleTheme, '?': () => helpButton.click(), 'Backspace': () => history.back(),
  'Enter': () => {
    const item = itemOf(state.selected);
    if (item && !item.isNode) openScope(item.number);
  },
  'Escape': () => {
    if (state.selected) select(null);
    else if (state.scope !== 0) go({scope: data.scopes[state.scope].p, selected: 's' + state.scope});
  },
};
document.addEventListener('keydown', event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const inControl = event.target.closest && event.target.closest('input, select, button, a');
  if (inControl && (event.key === 'Enter' || (event.key.startsWith('Arrow') && !event.target.closest('button, a')))) {
    if (event.key === 'Enter' && event.target.matches('a')) event.target.click();
    return;
  }
  const act = kKeys[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

// --- light and dark

function setTheme(theme) { document.documentElement.dataset.theme = theme; }
function toggleTheme() { setTheme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'); }
const prefersDark = window.matchMedia('(prefers-color-scheme: dark)');
setTheme(prefersDark.matches ? 'dark' : 'light');
prefersDark.addEventListener('change', event => setTheme(event.matches ? 'dark' : 'light'));

window.addEventListener('popstate', readAddress);
window.addEventListener('hashchange', readAddress);
readAddress();
document.documentElement.dataset.ready = 'yes';
