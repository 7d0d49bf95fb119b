'use strict';
// The page of io/drawings/html.h: its data, its elements, and where the reader is. The other files of this folder follow in the same script:
// drawing.js, details.js, search.js, input.js. The data (element #data) has short names:
//   stages    n name, p pass with options, e error, t seconds, z nodes, b compared with the stage before by name
//   scopes    n name, l label, p parent, z nodes inside by stage, m stages (bits), b the node whose regions it shows,
//             c names of the copies it stands for, h they are chained
//   nodes     i number, n name, o op (place in ops), k kind, s scope, m stages, r a result,
//             a appearances: [stage, change, copies, device colour, replica colour, place in its scope's facts, name if another]
//   devices   names of the device colours, all_devices the same with every device; replicas: of the replica colours
// Each scope's drawing is an element of its own (#drawing<scope>), read when it is looked at:
//   svg       ids in it: n<i>, s<i>, outside of the scope on<i> and os<i>, joined ones mb and ma, edges e<i>
//   e         edges: [from, to, control, stages, label]
//   t         labels of boxes that differ between stages: [id, label]
//   mb, ma    ids of what the joined stubs stand for
//   f         facts: out, in, at (attributes), dev, rep, lat (what replicas hold), site, fn, from, by, why, fl, mem, u
// A label is a text, or a list of [from which stage on, text].

const data = JSON.parse(document.getElementById('data').textContent);
const drawings = new Map();
function drawing(scope) {
  if (!drawings.has(scope)) drawings.set(scope, JSON.parse(document.getElementById('drawing' + scope).textContent));
  return drawings.get(scope);
}
for (const node of data.nodes) {
  node.o = data.ops[node.o];
  node.k = node.k || 'compute';
}
const nodes = new Map(data.nodes.map(node => [node.i, node]));
const kChanges = ['', 'added', 'rewired', 'changed', 'remade'];
const last = data.stages.length - 1;
const state = {scope: 0, stage: last, selected: null, colour: 'device'};

// --- what is there at a stage

const has = (mask, stage) => stage >= 0 && Math.floor(mask / 2 ** stage) % 2 === 1;
const appearance = (node, stage) => node.a.find(one => one[0] === stage);
// Where it is not there: as it was last, else as it comes to be.
const appearanceNear = (node, stage) => node.a.findLast(one => one[0] <= stage) || node.a[0];
const nameAt = (node, stage) => appearanceNear(node, stage)[6] || node.n;
const textAt = (label, stage) => typeof label === 'string' ? label : label.findLast(one => one[0] <= stage)[1];

// What became of a box or an edge at a stage: '', a change, 'removed', or 'absent'.
function fate(mask, stage, change) {
  if (has(mask, stage)) return change;
  return has(mask, stage - 1) ? 'removed' : 'absent';
}
const isNew = (mask, stage) => stage > 0 && has(mask, stage) && !has(mask, stage - 1);
function nodeFate(node, stage) {
  const now = appearance(node, stage);
  return fate(node.m, stage, now ? kChanges[now[1]] : '');
}
function scopeFate(scope, number, stage) {
  return fate(scope.m, stage, isNew(scope.m, stage) ? 'added' : changesByScope(stage).get(number) ? 'changed' : '');
}
const edgeFate = (mask, stage) => fate(mask, stage, isNew(mask, stage) ? 'added' : '');

// The stage nearest to this one at which something can be seen.
function stageWith(mask, stage) {
  if (fate(mask, stage, '') !== 'absent') return stage;
  for (let far = 1; far <= last; ++far) {
    if (has(mask, stage - far)) return stage - far;
    if (stage + far <= last && has(mask, stage + far)) return stage + far;
  }
  return stage;
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

// --- the page

function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

const pathBar = element('nav', {id: 'path', ariaLabel: 'Path of scopes'});
const searchBox = element('input', {type: 'search', placeholder: 'Search name, op, device  ( / )', ariaLabel: 'Search',
                                    role: 'combobox', ariaExpanded: 'false', ariaAutoComplete: 'list', autocomplete: 'off'});
searchBox.setAttribute('aria-controls', 'found');
const foundList = element('ul', {id: 'found', role: 'listbox', ariaLabel: 'Found'});
const colourBox = element('select', {id: 'colour', title: 'What colours mean', ariaLabel: 'Colour by'},
                          element('option', {value: 'device'}, 'colour by device'),
                          element('option', {value: 'replica'}, 'colour by replica'));
const backButton = element('button', {id: 'back', title: 'Back (Backspace)', ariaLabel: 'Back', onclick: goBack}, '\u2190');
const themeButton = element('button', {id: 'theme', title: 'Light or dark (d)', ariaLabel: 'Light or dark', onclick: toggleTheme}, '\u25d0');
const helpButton = element('button', {id: 'help', title: 'Help (?)', ariaLabel: 'Help', onclick: () => { select(null); showHelp(); }}, '?');
const canvas = element('div', {id: 'drawing', tabIndex: 0, role: 'application', ariaLabel: 'Drawing: arrow keys move the selection, Enter opens'});
const mini = element('div', {id: 'mini', title: 'Overview: drag to move'});
const legend = element('div', {id: 'legend'});
const empty = element('div', {id: 'empty', hidden: true}, 'Nothing in this scope at this stage');
const panel = element('aside', {id: 'details', ariaLabel: 'Details'});
const announced = element('div', {id: 'announced', role: 'status'});  // what screen readers say
const slider = element('input', {type: 'range', id: 'stage', min: 0, max: last, step: 1, ariaLabel: 'Stage'});
const stageText = element('output', {id: 'stage-text'});
const footer = element('footer', {hidden: last === 0},
                       element('button', {id: 'previous', title: 'Previous stage ( [ )', ariaLabel: 'Previous stage',
                                          onclick: () => setStage(state.stage - 1)}, '\u25c0'),
                       slider,
                       element('button', {id: 'next', title: 'Next stage ( ] )', ariaLabel: 'Next stage',
                                          onclick: () => setStage(state.stage + 1)}, '\u25b6'),
                       stageText);
document.body.append(
    element('header', {}, element('h1', {}, data.title), backButton, pathBar,
            element('div', {id: 'search'}, searchBox, foundList), colourBox, themeButton, helpButton),
    element('main', {}, canvas, empty, legend, mini, announced,
            element('div', {id: 'zoom'},
                    element('button', {title: 'Zoom in (+)', ariaLabel: 'Zoom in', onclick: () => zoom(1 / 1.25)}, '+'),
                    element('button', {title: 'Zoom out (-)', ariaLabel: 'Zoom out', onclick: () => zoom(1.25)}, '\u2212'),
                    element('button', {id: 'fit', title: 'Whole drawing (0)', onclick: fit}, 'fit'))),
    panel, footer);

// --- where we are: kept in the address, so that the browser's back and forward work

const addressOf = (scope, stage, selected) => '#scope=' + scope + '&stage=' + stage + (selected ? '&at=' + selected : '');
const depth = () => (history.state && history.state.depth) || 0;  // pages of our own behind this one
function go(changes, replace = false) {
  Object.assign(state, changes);
  const address = addressOf(state.scope, state.stage, state.selected);
  if (address !== location.hash) {
    if (replace) history.replaceState({depth: depth()}, '', address);
    else history.pushState({depth: depth() + 1}, '', address);
  }
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
const goUp = () => go({scope: data.scopes[state.scope].p, selected: 's' + state.scope});
function goBack() {
  if (depth() > 0) history.back();
  else if (state.scope !== 0) goUp();  // where a link led us in; never out of the page
}
function openScope(scope) { go({scope, stage: stageWith(data.scopes[scope].m, state.stage), selected: null}); }
function select(id) { go({selected: id}, true); }
function setStage(stage) { go({stage: Math.max(0, Math.min(last, stage))}, true); }
// Goes to where a node, or a scope as a box, is drawn, and to a stage at which it is there.
function reveal(id) {
  const {isNode, thing} = itemOf(id);
  go({scope: isNode ? thing.s : thing.p, stage: stageWith(thing.m, state.stage), selected: id});
  bringIntoView(id);
}

let drawnScope = -1;
function render() {
  const other = drawnScope !== state.scope;
  if (other) draw();
  applyStage();
  if (other) fit();  // around the legend, which is there now
  showPath();
  showDetails();
  showStage();
  backButton.disabled = depth() === 0 && state.scope === 0;
}
