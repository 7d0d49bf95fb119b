
// --- details: the panel beside the drawing

const mono = text => element('span', {className: 'mono'}, text);
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
// A real link, so that it can be reached by keyboard and opened in another tab.
function linkTo(id, text) {
  const {isNode, thing} = itemOf(id);
  const address = addressOf(isNode ? thing.s : thing.p, stageWith(thing.m, state.stage), id);
  return element('a', {href: address, onclick: event => { event.preventDefault(); reveal(id); }}, text || thing.n || 'graph');
}
const linkToNode = node => linkTo('n' + node.i, nameAt(node, state.stage));
const inside = id => id.replace(/^o/, '');  // the id it has where it is drawn
function section(title, items) {
  return items.length === 0 ? [] : [element('h3', {}, title), element('ul', {}, ...items.map(item => element('li', {}, item)))];
}

function showDetails() {
  const item = itemOf(state.selected);
  if (!item) return showOverview();
  if (item.more) return showMore(item.more);
  if (!item.isNode) return showScope(item);
  const node = item.thing;
  const now = appearanceNear(node, state.stage), name = nameAt(node, state.stage);
  const of = drawing(node.s).f[now[5]];
  const what = nodeFate(node, state.stage);
  const head = [element('h2', {}, item.outside ? linkTo('n' + item.number, name) : name)];
  if (item.outside) head.push(element('p', {}, 'outside of this scope: Enter goes there'));
  if (what) head.push(element('p', {}, element('span', {className: 'tag ' + (what === 'absent' ? 'removed' : what)},
                                               what === 'absent' ? 'not there at this stage' : what)));
  const devices = [...new Set(of.dev)];
  const where = of.u ? ' per row (unknown dimensions counted as 1)' : '';
  panel.replaceChildren(
      ...head,
      facts([['op', node.o], ['kind', node.k + (node.r ? ', a result' : '')], ['once called', name === node.n ? '' : node.n],
             ['replicas', now[2] > 1 ? 'x ' + now[2] : of.rep && of.rep[0][0] >= 0 ? String(of.rep[0][0]) : ''],
             ['they hold', of.lat === 'mirrored' ? 'mirrored: the same bits on all' : of.lat],
             ['device', devices.join(', ')],
             ['work', of.fl > 0 ? number(of.fl) + 'flop' + where : ''],
             ['memory', of.mem > 0 ? number(of.mem) + 'B read and written' + (of.fl > 0 ? '' : where) : ''],
             ['made at', of.site ? of.site + (of.fn ? ' in ' + of.fn : '') : ''],
             ['stems from', of.from], ['made by', of.by], ['why', of.why]]),
      ...section('gives', of.out.map(mono)), ...section('takes', of.in.map(mono)),
      ...section('attributes', of.at.map(([key, value]) => mono(key + ' = ' + value))),
      ...section('nodes', (of.rep && of.rep.length > 1 ? of.rep : []).map(([replica, each]) => mono(each + (replica >= 0 ? '  replica ' + replica : '')))),
      ...neighbours(state.selected));
}

function neighbours(id) {
  const list = [];
  for (const [from, to, control, mask, label] of drawing(state.scope).e) {
    if (!has(mask, state.stage) || (from !== id && to !== id)) continue;
    const other = from === id ? to : from, item = itemOf(other);
    if (!item) continue;
    const what = control ? ' (order only)' : '  ' + textAt(label, state.stage).replaceAll('\n', ', ');
    const link = item.more ? element('button', {onclick: () => select(other)}, item.more.length + ' more') : linkTo(inside(other));
    list.push(element('span', {}, from === id ? 'to ' : 'from ', link, mono(what)));
  }
  return section('neighbours', list);
}

function showMore(ids) {
  panel.replaceChildren(element('h2', {}, ids.length + ' more outside of this scope'),
                        ...section('they are', ids.map(id => linkTo(inside(id)))));
}

const nodesText = count => count + (count === 1 ? ' node' : ' nodes');
// What is in a scope, which stands for as many as it and those around it were folded from.
function sizeText(scope) {
  let times = 1;
  for (let at = scope; at !== data.scopes[0]; at = data.scopes[at.p]) times *= at.c ? at.c.length : 1;
  const size = scope.z[state.stage];
  return times > 1 && size % times === 0 ? nodesText(size / times) + ' x ' + times : nodesText(size);
}
function showScope(item) {
  const scope = item.thing;
  panel.replaceChildren(
      element('h2', {}, scope.n || 'graph'),
      element('p', {}, sizeText(scope) + (last > 0 ? ' at this stage' : '')),
      element('p', {}, element('button', {id: 'open', onclick: () => openScope(item.number)}, 'Open'), ' or click it again, or Enter'),
      element('p', {}, ...tags(changesByScope(state.stage).get(item.number) || {})),
      ...section('stands for' + (scope.h ? ', one feeding the next' : ''), (scope.c || []).map(mono)),
      ...neighbours(state.selected));
}

function showOverview() {
  const stage = data.stages[state.stage], scope = data.scopes[state.scope];
  const count = sizeText(scope);
  const parts = [element('h2', {}, scope.n || data.title), element('p', {}, count + (last > 0 ? ' at this stage' : ' in here'))];
  if (last > 0) {
    const changes = changesByScope(state.stage);
    parts.push(element('h3', {}, 'stage ' + (state.stage + 1) + ' of ' + data.stages.length));
    parts.push(element('p', {}, mono(stage.p || stage.n), stage.t > 0 ? '  ' + (stage.t * 1e3).toPrecision(3) + ' ms' : ''));
    if (state.stage > 0)
      parts.push(element('p', {id: 'compared'}, stage.b ? 'compared by name: it shares no origin with the stage before'
                                                        : 'compared by the identity of nodes'));
    if (stage.e) parts.push(element('p', {className: 'error'}, stage.e));
    const here = state.scope === 0 ? changes.list : changes.list.filter(([, node]) => within(node.s, state.scope));
    const shown = 200;
    parts.push(...section('what it did', here.slice(0, shown).map(([what, node]) =>
        element('span', {}, element('span', {className: 'tag ' + what}, what), ' ', linkToNode(node)))));
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
  const arrows = ['\u2190', '\u2191', '\u2192', '\u2193'];
  return [element('h3', {}, 'keys'), row(['/'], 'search'), row(arrows, 'select the next box'), row(['Shift', ...arrows], 'move the drawing'),
          row(['Enter'], 'open the selected scope, go to what is outside'), row(['Backspace'], 'back'), row(['Esc'], 'let go, then one scope up'),
          row(['+', '-', '0'], 'zoom, whole drawing'), row(['[', ']'], 'stage before, stage after'), row(['d'], 'light or dark'),
          row(['?'], 'this help')];
}
