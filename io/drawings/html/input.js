
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
  pan(-dx * view.w / canvas.clientWidth, -dy * view.h / canvas.clientHeight);
  drag.x = event.clientX;
  drag.y = event.clientY;
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
  if (item.outside && !item.more) return reveal(inside(id));
  if (!item.isNode && !item.more && state.selected === id) return openScope(item.number);  // the second click opens it
  select(id);
}
canvas.addEventListener('wheel', event => {
  event.preventDefault();
  if (event.deltaY === 0) return;  // sideways
  const at = place(event);
  zoom(event.deltaY > 0 ? 1.15 : 1 / 1.15, at.x, at.y);
}, {passive: false});
function moveTo(event) {  // a place in the overview
  const frame = mini.getBoundingClientRect();
  const scale = Math.max(whole.w / frame.width, whole.h / frame.height);
  centre(whole.x + whole.w / 2 + (event.clientX - frame.left - frame.width / 2) * scale,
         whole.y + whole.h / 2 + (event.clientY - frame.top - frame.height / 2) * scale);
}
mini.addEventListener('pointerdown', event => {
  mini.setPointerCapture(event.pointerId);
  moveTo(event);
});
mini.addEventListener('pointermove', event => { if (mini.hasPointerCapture(event.pointerId)) moveTo(event); });
new ResizeObserver(() => {
  resized();
  canvas.dataset.width = canvas.clientWidth;
}).observe(canvas);

// --- keyboard

const middle = box => { const b = boundsOf(box); return {x: b.x + b.w / 2, y: b.y + b.h / 2}; };
function choose(box) {
  select(box.id);
  bringIntoView(box.id);
  announced.textContent = box.getAttribute('aria-label');
}
// The nearest box in a direction; far to the side counts double. Without a selection: the first one, from the top.
function moveSelection(dx, dy) {
  const boxes = [...svg.querySelectorAll('g.node:not(.absent)')];
  const from = boxes.find(box => box.id === state.selected);
  if (!from) {
    const first = boxes.filter(box => !box.matches('.outside')).map(box => [middle(box), box])
                      .sort(([a], [b]) => a.y - b.y || a.x - b.x)[0];
    if (first) choose(first[1]);
    return;
  }
  const start = middle(from);
  let best = null, least = Infinity;
  for (const box of boxes) {
    const at = middle(box), along = (at.x - start.x) * dx + (at.y - start.y) * dy;
    const aside = Math.abs((at.x - start.x) * dy) + Math.abs((at.y - start.y) * dx);
    if (box === from || along <= 1) continue;
    if (along + 2 * aside < least) [best, least] = [box, along + 2 * aside];
  }
  if (best) choose(best);
}
const kArrows = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
const kKeys = {
  '/': () => { searchBox.focus(); searchBox.select(); },
  '+': () => zoom(1 / 1.25), '=': () => zoom(1 / 1.25), '-': () => zoom(1.25), '0': fit,
  '[': () => setStage(state.stage - 1), ']': () => setStage(state.stage + 1),
  'd': toggleTheme, '?': () => helpButton.click(), 'Backspace': goBack,
  'Enter': () => {
    const item = itemOf(state.selected);
    if (item && item.outside && !item.more) reveal(inside(state.selected));
    else if (item && !item.isNode && !item.more) openScope(item.number);
  },
  'Escape': () => {
    if (state.selected) select(null);
    else if (state.scope !== 0) goUp();
  },
};
document.addEventListener('keydown', event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const control = event.target.closest && event.target.closest('input, select, button, a');
  // Controls keep their own keys: a list all of them, a slider its arrows, what can be pressed Enter.
  if (control && (control.matches('select') || (control.matches('input') && event.key in kArrows) ||
                  (control.matches('button, a') && event.key === 'Enter')))
    return;
  const arrow = kArrows[event.key], act = kKeys[event.key];
  if (!arrow && !act) return;
  event.preventDefault();
  if (act) act();
  else if (event.shiftKey) pan(arrow[0] * view.w / 10, arrow[1] * view.h / 10);
  else moveSelection(...arrow);
});

// --- light and dark

function setTheme(theme) { document.documentElement.dataset.theme = theme; }
function toggleTheme() { setTheme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'); }
const prefersDark = window.matchMedia('(prefers-color-scheme: dark)');
setTheme(prefersDark.matches ? 'dark' : 'light');
prefersDark.addEventListener('change', event => setTheme(event.matches ? 'dark' : 'light'));

window.addEventListener('popstate', readAddress);
window.addEventListener('hashchange', readAddress);
if (!history.state) history.replaceState({depth: 0}, '');
readAddress();
document.documentElement.dataset.ready = 'yes';
