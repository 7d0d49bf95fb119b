
// --- search: by name, op, device; replicas and folded copies by their own names

const kMaxFound = 60;
let found = [], foundAll = 0, chosen = -1;

// A name without what says which replica, and the largest number that was said: boxes of replicas have the name of the first.
function withoutReplica(text) {
  let replica = -1;
  const rest = text.split('/').filter(part => {
    const match = /^replica_(\d+)$/.exec(part);
    if (match) replica = Math.max(replica, Number(match[1]));
    return !match;
  });
  return {rest: rest.join('/'), replica};
}

// "a/b/c", "b/c", "c": a name may be written without the scopes around it.
function endsOf(name) {
  const parts = name.split('/');
  return parts.map((_, i) => parts.slice(i).join('/'));
}

function matches(text) {
  text = text.trim().toLowerCase();
  if (text === '') return [];
  const hits = [];
  data.scopes.forEach((scope, i) => {
    if (i > 0 && [scope.n, ...(scope.c || [])].some(name => name.toLowerCase().includes(text)))
      hits.push({id: 's' + i, name: scope.n, note: scope.c ? 'x ' + scope.c.length : 'scope'});
  });
  // A name inside a copy that is not drawn is found in the one that is.
  const {rest, replica} = withoutReplica(text);
  const wanted = [text];
  for (const scope of data.scopes) {
    for (const copy of scope.c || []) {
      const drawn = endsOf(scope.n.toLowerCase());
      endsOf(copy.toLowerCase()).forEach((end, i) => {
        if (rest.startsWith(end + '/')) wanted.push(drawn[i] + rest.slice(end.length));
      });
    }
  }
  const devices = new Set();  // colours
  data.all_devices.forEach((set, i) => { if (set.toLowerCase().includes(text)) devices.add(i); });
  for (const node of data.nodes) {
    const haystack = (node.n + '\n' + node.o).toLowerCase();
    const fits = wanted.some(one => haystack.includes(one)) ||
                 node.a.some(one => devices.has(one[3]) || (one[6] && one[6].toLowerCase().includes(text)) ||
                                    (replica >= 0 && one[2] > replica && haystack.includes(rest)));
    if (!fits) continue;
    const now = appearanceNear(node, state.stage), device = now[3] >= 0 ? data.devices[now[3]] : '';
    hits.push({id: 'n' + node.i, name: now[6] || node.n, note: node.o + (device ? ' on ' + device : '')});
  }
  const isExact = hit => wanted.includes(hit.name.toLowerCase());
  return [...hits.filter(isExact), ...hits.filter(hit => !isExact(hit))];
}
function showFound() {
  foundList.replaceChildren(...found.map((hit, i) => element(
      'li', {id: 'found' + i, role: 'option', ariaSelected: String(i === chosen), onclick: () => take(i)}, hit.name, element('small', {}, hit.note))));
  const note = text => foundList.append(element('li', {className: 'note', role: 'presentation'}, text));
  if (foundAll > found.length) note('and ' + (foundAll - found.length) + ' more');
  if (foundAll === 0 && searchBox.value.trim() !== '') note('nothing found');
  searchBox.ariaExpanded = String(found.length > 0);
  if (chosen >= 0) {
    searchBox.setAttribute('aria-activedescendant', 'found' + chosen);
    foundList.children[chosen].scrollIntoView({block: 'nearest'});
  } else {
    searchBox.removeAttribute('aria-activedescendant');
  }
}
function take(i) {
  const hit = found[i];
  closeSearch();
  if (hit) reveal(hit.id);
}
function closeSearch() {
  searchBox.value = '';
  search();
  canvas.focus();
}
function search() {
  const all = matches(searchBox.value);
  foundAll = all.length;
  found = all.slice(0, kMaxFound);
  chosen = found.length > 0 ? 0 : -1;
  showFound();
}
searchBox.addEventListener('input', search);
searchBox.addEventListener('keydown', event => {
  if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
    if (found.length > 0) chosen = (chosen + (event.key === 'ArrowDown' ? 1 : found.length - 1)) % found.length;
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
