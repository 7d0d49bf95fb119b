"""The pages of io/drawings/html.h in a real browser: Chromium without a window, driven through chromedriver's W3C WebDriver protocol.

    browser_test.py --pages <folder of make_pages> --chromium <program> --driver <program> [--screenshots <folder>]

Uses Python's standard library alone.
"""
import argparse
import base64
import json
import pathlib
import re
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

ELEMENT = 'element-6066-11e4-a52e-4f735466cecf'  # how the protocol names a reference to an element
KEYS = {'Enter': '\ue007', 'Escape': '\ue00c', 'Left': '\ue012', 'Up': '\ue013', 'Right': '\ue014', 'Down': '\ue015',
        'Backspace': '\ue003', 'Shift': '\ue008', 'Tab': '\ue004', 'Home': '\ue011', 'End': '\ue010'}
options = None


class Browser:
    def __init__(self, dark=False):
        self.driver = subprocess.Popen([options.driver, '--port=0'], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                       text=True)
        port = None
        for line in self.driver.stdout:
            found = re.search(r'started successfully on port (\d+)', line)
            if found:
                port = found.group(1)
                break
        if port is None:
            raise RuntimeError('chromedriver did not start')
        self.base = f'http://127.0.0.1:{port}'
        arguments = ['--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage',
                     '--window-size=1400,900', '--allow-file-access-from-files']
        if dark:
            arguments.append('--blink-settings=preferredColorScheme=0')
        reply = self.call('POST', '/session', {'capabilities': {'alwaysMatch': {
            'browserName': 'chrome',
            'goog:chromeOptions': {'binary': options.chromium, 'args': arguments},
            'goog:loggingPrefs': {'browser': 'ALL'}}}})
        self.session = '/session/' + reply['sessionId']

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {'Content-Type': 'application/json'}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return json.load(reply)['value']
        except urllib.error.HTTPError as error:
            raise AssertionError(f'{method} {path}: ' + json.load(error)['value']['message']) from None

    def close(self):
        try:
            self.call('DELETE', self.session)
        finally:
            self.driver.terminate()
            self.driver.wait(10)
            self.driver.stdout.close()

    def open(self, page):
        self.call('POST', self.session + '/url', {'url': (pathlib.Path(options.pages) / page).resolve().as_uri()})
        self.wait('document.documentElement.dataset.ready === "yes"')

    def run(self, script, *arguments):
        return self.call('POST', self.session + '/execute/sync', {'script': script, 'args': list(arguments)})

    def wait(self, condition, seconds=20):
        end = time.monotonic() + seconds
        while not self.run('return ' + condition):
            if time.monotonic() > end:
                raise AssertionError(f'never became true: {condition}')

    def find(self, css):
        return self.call('POST', self.session + '/element', {'using': 'css selector', 'value': css})[ELEMENT]

    def click(self, css):
        self.call('POST', f'{self.session}/element/{self.find(css)}/click', {})

    def type(self, css, text):
        self.call('POST', f'{self.session}/element/{self.find(css)}/value', {'text': text})

    def press(self, *keys):
        actions = []
        for key in keys:
            value = KEYS.get(key, key)
            actions += [{'type': 'keyDown', 'value': value}, {'type': 'keyUp', 'value': value}]
        self.call('POST', self.session + '/actions', {'actions': [{'type': 'key', 'id': 'keys', 'actions': actions}]})

    def press_with(self, modifier, key):
        down, up = [[{'type': kind, 'value': KEYS.get(name, name)} for name in names] for kind, names in
                    [('keyDown', [modifier, key]), ('keyUp', [key, modifier])]]
        self.call('POST', self.session + '/actions', {'actions': [{'type': 'key', 'id': 'keys', 'actions': down + up}]})

    def wheel(self, css, dy, dx=0):
        self.call('POST', self.session + '/actions', {'actions': [{'type': 'wheel', 'id': 'wheel', 'actions': [
            {'type': 'scroll', 'origin': {ELEMENT: self.find(css)}, 'x': 0, 'y': 0, 'deltaX': dx, 'deltaY': dy}]}]})

    # Presses at one place of an element, from its middle, and lets go at another.
    def drag_from(self, css, x, y, dx, dy):
        origin = {ELEMENT: self.find(css)}
        self.call('POST', self.session + '/actions', {'actions': [{'type': 'pointer', 'id': 'mouse', 'actions': [
            {'type': 'pointerMove', 'origin': origin, 'x': x, 'y': y}, {'type': 'pointerDown', 'button': 0},
            {'type': 'pointerMove', 'origin': 'pointer', 'x': dx, 'y': dy, 'duration': 20},
            {'type': 'pointerUp', 'button': 0}]}]})

    def resize(self, width, height):
        self.call('POST', self.session + '/window/rect', {'width': width, 'height': height})

    def drag(self, css, dx, dy):
        self.drag_from(css, -300, -250, dx, dy)

    def text(self, css):
        return self.run('return document.querySelector(arguments[0]).innerText', css)

    def screenshot(self, name):
        if options.screenshots:
            folder = pathlib.Path(options.screenshots)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / (name + '.png')).write_bytes(base64.b64decode(self.call('GET', self.session + '/screenshot')))

    def errors(self):
        return [entry['message'] for entry in self.call('POST', self.session + '/se/log', {'type': 'browser'})
                if entry['level'] == 'SEVERE']


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()

    def tearDown(self):
        self.assertEqual(self.browser.errors(), [])

    # The number in the page's data of the box, or of the scope, with this name.
    def box(self, name):
        number = self.browser.run('const n = data.nodes.find(n => n.n === arguments[0]); return n ? n.i : -1', name)
        self.assertGreaterEqual(number, 0, name)
        return f'#n{number}'

    def scope(self, name):
        number = self.browser.run('return data.scopes.findIndex(s => s.n === arguments[0])', name)
        self.assertGreater(number, 0, name)
        return f'#s{number}'

    def search(self, text):
        self.browser.press('/')
        self.browser.type('#search input', text)

    def found(self):
        return self.browser.run('return [...document.querySelectorAll("#found li[role=option]")].map(li => li.innerText)')

    # Moves the slider with its own keys.
    def to_stage(self, stage):
        b = self.browser
        b.run('document.getElementById("stage").focus()')
        b.press('Home', *['Right'] * stage)
        self.assertEqual(b.run('return state.stage'), stage)

    # The lines of a box's label.
    def label(self, css):
        return self.browser.run('return [...document.querySelectorAll("#drawing " + arguments[0] + " text")]'
                                '.map(t => t.textContent).filter(t => t !== "")', css)

    def test_click_shows_what_a_node_is(self):
        b = self.browser
        b.open('graph.html')
        b.screenshot('graph')
        b.click('#drawing g.node.collective')
        details = b.text('#details')
        self.assertIn('collective', details)
        self.assertIn('attributes', details)
        self.assertIn('made by', details)
        b.click(self.box('x'))
        details = b.text('#details')
        for word in ['placeholder', 'x 4', 'f32[?,16]', 'make_pages.cpp:', 'per replica']:
            self.assertIn(word, details)
        self.assertEqual(b.run('return document.querySelectorAll("#drawing .selected").length'), 1)
        b.screenshot('graph-selected')
        # A link among the neighbours leads there.
        name = b.text('#details a')
        b.click('#details a')
        self.assertIn(name, b.text('#details h2'))

    def test_layers_are_drawn_once_and_opened(self):
        b = self.browser
        b.open('graph.html')
        folded = b.run('return data.scopes.filter(s => s.c && s.c.length > 3).map(s => s.n)')
        self.assertTrue(folded)
        box = self.scope(folded[0])
        self.search(folded[0])
        b.press('Enter')
        self.assertEqual('#' + b.run('return state.selected'), box)
        copies = b.run('return data.scopes[arguments[0]].c.length', int(box[2:]))
        self.assertTrue(any(f'x {copies}' in line for line in self.label(box)), self.label(box))
        self.assertIn('stands for', b.text('#details'))
        self.assertRegex(b.text('#details'), rf'\d+ nodes? x {copies}\n')
        b.click('#open')
        self.assertEqual(b.run('return state.scope'), int(box[2:]))
        self.assertEqual(b.text('#path [aria-current]'), b.run('return data.scopes[state.scope].l'))
        b.screenshot('scope')
        self.assertGreater(b.run('return document.querySelectorAll("#drawing g.node.outside").length'), 0)
        b.click('#back')
        b.wait(f'state.scope !== {int(box[2:])}')
        b.click('#drawing')  # lets go
        b.click(box)
        b.press('Enter')
        self.assertEqual(b.run('return state.scope'), int(box[2:]))
        # What is outside can be reached with the keyboard, and gone to.
        for _ in range(30):
            b.press('Up')
            if b.run('return itemOf(state.selected).outside'):
                break
        self.assertTrue(b.run('const i = itemOf(state.selected); return i && i.outside'))
        b.press('Enter')
        self.assertNotEqual(b.run('return state.scope'), int(box[2:]))
        self.assertEqual(b.run('return document.querySelectorAll("#drawing .selected").length'), 1)
        b.click('#path button')
        self.assertEqual(b.run('return state.scope'), 0)

    def test_results_have_a_double_line(self):
        b = self.browser
        b.open('pair.html')
        fills = b.run('return [...document.querySelectorAll("#drawing " + arguments[0] + " :is(polygon, path, ellipse)")]'
                      '.map(shape => getComputedStyle(shape).fill)', self.box('out'))
        self.assertEqual(len(fills), 2)
        self.assertNotEqual(fills[0], 'none')
        self.assertEqual(fills[1], 'none', 'the outer line must not hide the inner one')

    def test_nothing_lies_under_the_legend(self):
        b = self.browser
        covers = ('const overlap = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;'
                  'return [...svg.querySelectorAll("g.node:not(.absent)")].filter(box => [legend, mini].some(over => !over.hidden &&'
                  ' overlap(box.getBoundingClientRect(), over.getBoundingClientRect()))).map(box => box.id)')
        for page in ['graph.html', 'passes.html', 'pair.html']:
            b.open(page)
            self.assertEqual(b.run(covers), [], page)

    def test_a_narrow_window_holds_everything(self):
        b = self.browser
        try:
            b.resize(520, 900)
            b.open('passes.html')
            self.assertLessEqual(b.run('return document.documentElement.scrollWidth'), b.run('return innerWidth'))
            for part in ['header', 'main', 'aside', 'footer', '#help', '#next']:
                right, bottom = b.run('const box = document.querySelector(arguments[0]).getBoundingClientRect();'
                                      'return [box.right - innerWidth, box.bottom - innerHeight]', part)
                self.assertLessEqual(right, 1, part)
                self.assertLessEqual(bottom, 1, part)
            b.screenshot('narrow')
        finally:
            b.resize(1400, 900)

    def test_back_never_leaves_the_page(self):
        b = self.browser
        b.open('graph.html')
        b.press('Backspace', 'Backspace')
        self.assertEqual(b.run('return document.title'), 'A graph')
        self.assertTrue(b.run('return document.getElementById("back").disabled'))

    def test_search(self):
        b = self.browser
        b.open('graph.html')
        b.press('/')
        self.assertEqual(b.run('return document.activeElement.type'), 'search')
        b.type('#search input', 'matmul')
        self.assertTrue(self.found())
        b.screenshot('search')
        b.press('Down')
        wanted = self.found()[1]
        b.press('Enter')
        self.assertEqual(b.run('return document.querySelectorAll("#drawing .selected:not(.absent)").length'), 1)
        self.assertIn(b.text('#details h2'), wanted)
        # By device, also the last of many; by op.
        for words, shown in [('cpu:3', 'cpu:3'), ('placeholder', 'placeholder')]:
            self.search(words)
            self.assertTrue(self.found(), words)
            b.press('Enter')
            self.assertIn(shown, b.text('#details'))
        # A replica by its own name leads to the box of all of them.
        replica = b.run('for (const s of data.scopes.keys()) for (const f of drawing(s).f)'
                        '  if (f.rep && f.rep.length > 1 && f.rep[1][1].includes("replica_1")) return f.rep[1][1]')
        self.search(replica)
        self.assertTrue(self.found(), replica)
        b.press('Enter')
        self.assertIn(replica, b.text('#details'))
        # A name in a copy that is not drawn leads to the one that is.
        copy, drawn = b.run('const s = data.scopes.find(s => s.c && s.c.length > 3 && data.nodes.some(n => n.n.startsWith(s.n + "/")));'
                            'const n = data.nodes.find(n => n.n.startsWith(s.n + "/")).n;'
                            'return [s.c[2] + n.slice(s.n.length), n]')
        # Also without the scopes around it.
        for name in [copy, copy[copy.index('layer_'):]]:
            self.search(name)
            b.press('Enter')
            self.assertEqual(b.text('#details h2'), drawn)
        self.search('e')
        self.assertRegex(b.text('#found'), r'and \d+ more')
        b.press('Escape')
        self.search('no such thing')
        self.assertIn('nothing found', b.text('#found'))
        b.press('Escape')

    def test_search_goes_to_a_stage_that_has_it(self):
        b = self.browser
        b.open('passes.html')
        gone = b.run('return data.nodes.find(n => !has(n.m, last) && !has(n.m, last - 1)).n')
        self.search(gone)
        b.press('Enter')
        self.assertEqual(b.text('#details h2'), gone)
        self.assertLess(b.run('return state.stage'), b.run('return last'))
        self.assertEqual(b.run('return document.querySelectorAll("#drawing .selected:not(.absent)").length'), 1)

    def test_keyboard_and_pointer_move_the_view(self):
        b = self.browser
        b.open('graph.html')
        start = b.run('return {...view}')
        b.press('+')
        self.assertLess(b.run('return view.w'), start['w'])
        before = b.run('return view.x')
        b.press_with('Shift', 'Right')
        self.assertGreater(b.run('return view.x'), before)
        b.drag('#drawing', 120, 60)
        moved = b.run('return view.x')
        b.drag('#drawing', -120, -60)
        self.assertGreater(b.run('return view.x'), moved)
        width = b.run('return view.w')
        b.wheel('#drawing', -120)
        self.assertLess(b.run('return view.w'), width)
        width = b.run('return view.w')
        b.wheel('#drawing', 0, 120)
        self.assertEqual(b.run('return view.w'), width)
        # The window may change its size: what is seen keeps its scale.
        scale = b.run('return view.w / canvas.clientWidth')
        b.resize(1200, 800)
        b.wait(f'Math.abs(view.w / canvas.clientWidth - {scale}) < 1e-6 && canvas.clientWidth < {width / scale - 1}')
        b.resize(1400, 900)
        b.wait(f'Math.abs(view.w / canvas.clientWidth - {scale}) < 1e-6 && canvas.clientWidth > {width / scale - 20}')
        b.press('0')
        self.assertAlmostEqual(b.run('return view.w'), start['w'], 1)
        # The overview moves what is seen: by a click, and by dragging.
        b.press('+', '+', '+')
        b.drag_from('#mini', -20, -20, 0, 0)
        corner = b.run('return {...view}')
        b.drag_from('#mini', -20, -20, 30, 30)
        self.assertGreater(b.run('return view.x'), corner['x'])
        self.assertGreater(b.run('return view.y'), corner['y'])
        b.press('0')
        # Arrows select.
        b.click('#drawing')
        b.press('Escape')
        self.assertIsNone(b.run('return state.selected'))
        b.press('Down')
        first = b.run('return state.selected')
        self.assertIsNotNone(first)
        b.press('Down')
        self.assertNotEqual(b.run('return state.selected'), first)
        self.assertEqual(b.run('return canvas.getAttribute("aria-activedescendant")'), b.run('return state.selected'))
        b.press('Escape')
        self.assertIsNone(b.run('return state.selected'))
        self.assertGreater(b.run('return document.querySelectorAll("#mini g.node").length'), 0)

    def test_slider_shows_what_passes_did(self):
        b = self.browser
        b.open('passes.html')
        stages = b.run('return data.stages.map(s => s.n)')
        self.assertIn('insert-all-reduce', stages)
        self.to_stage(stages.index('insert-all-reduce'))
        b.screenshot('passes-insert-all-reduce')
        self.assertIn('added', b.text('#stage-text'))
        place = b.run('const box = document.querySelector("#drawing g.node.box:not(.absent)").getBoundingClientRect();'
                      'return [box.x, box.y]')
        added = b.run('return [...document.querySelectorAll("#drawing g.node.box.added")].map(g => itemOf(g.id).thing.o)')
        inside = b.run('return changesByScope(state.stage).list.filter(([what]) => what === "added").map(([, n]) => n.o)')
        self.assertIn('all_reduce', inside)
        self.assertTrue(set(added) <= set(inside))
        # One layout: what is there in both stages stays where it is.
        first = b.run('return "#" + document.querySelector("#drawing g.node.box:not(.absent)").id')
        b.press(']')
        again = b.run('const box = document.querySelector(arguments[0]).getBoundingClientRect(); return [box.x, box.y]', first)
        self.assertEqual(place, again)
        # The overview shows this stage, not all of them.
        shown = '.querySelectorAll("g.node:not(.absent)").length'
        self.assertEqual(b.run('return mini' + shown), b.run('return svg' + shown))
        # Boxes say how many replicas they are of at this stage, and scopes how many nodes are in them.
        x = self.box('x')
        replicas = b.run('return data.nodes.find(n => n.n === "x").a.map(a => [a[0], a[2]])')
        for stage in [replicas[0], replicas[len(replicas) // 2], replicas[-1]]:
            self.to_stage(stage[0])
            self.assertEqual(any('x ' + str(stage[1]) in line for line in self.label(x)), stage[1] > 1, stage)
        scopes = b.run('return [...svg.querySelectorAll("g.node.scope:not(.holder)")].map(g => g.id)'
                       '.filter(id => !itemOf(id).thing.c)')
        self.assertTrue(scopes)
        for stage in range(len(stages)):
            self.to_stage(stage)
            for scope in scopes:
                size, mask = b.run('const s = itemOf(arguments[0]).thing; return [s.z[state.stage], s.m]', scope)
                if mask >> stage & 1:
                    self.assertIn(f'{size} node' + ('' if size == 1 else 's'), self.label('#' + scope), stage)
                    added = stage > 0 and not mask >> (stage - 1) & 1
                    self.assertEqual(b.run('return svg.getElementById(arguments[0]).classList.contains("added")', scope), added)
        self.to_stage(stages.index('replicate'))
        self.assertIn('remade', b.text('#stage-text'))
        self.assertIn('x 4', b.text('#drawing'))
        b.screenshot('passes-replicate')
        removed = [i for i in range(1, len(stages)) if b.run('return "removed" in changesByScope(arguments[0]).total', i)]
        self.assertTrue(removed)
        self.to_stage(removed[0])
        b.click('#details li:has(.tag.removed) a')
        self.assertIn('removed', b.text('#details'))
        self.assertEqual(b.run('return document.querySelectorAll("#drawing .removed.selected").length'), 1)
        b.screenshot('passes-removed')
        b.press('[', '[')
        self.to_stage(0)
        self.assertTrue(b.run('return document.getElementById("previous").disabled'))
        b.click('#next')
        self.assertEqual(b.run('return state.stage'), 1)

    def test_before_and_after(self):
        b = self.browser
        b.open('pair.html')
        self.assertEqual(b.run('return state.stage'), 1)
        self.assertIn('stage 2 of 2', b.text('#details'))
        self.assertIn('compared by name', b.text('#compared'))
        changes = b.run('return Object.fromEntries(changesByScope(1).list.map(([what, n]) => [n.n, what]))')
        self.assertEqual(changes, {'rate': 'changed', 'out': 'rewired', 'extra': 'added', 'gone': 'removed'})
        self.assertEqual(b.run('return document.querySelectorAll("#drawing g.node.remade").length'), 0)
        b.screenshot('pair')
        # One more value flows into the scope than before, and the edge says so.
        b.click(self.box('rate'))
        self.assertIn('changed', b.text('#details'))
        b.click('#previous')
        self.assertNotIn('changed', b.text('#details'))
        self.assertIn('1.0', b.text('#details'))

    def test_outside_things_that_are_joined_can_be_reached(self):
        b = self.browser
        b.open('pair.html')
        box = self.scope('wide')
        b.click(box)
        b.press('Enter')
        b.click('#mb')
        joined = b.run('return drawing(state.scope).mb.length')
        self.assertGreater(joined, 0)
        self.assertEqual(b.run('return document.querySelectorAll("#details li a").length'), joined)
        name = b.text('#details li a')
        b.click('#details li a')
        self.assertEqual(b.text('#details h2'), name)

    def test_dark(self):
        b = self.browser
        b.open('passes.html')
        light = b.run('return getComputedStyle(document.body).backgroundColor')
        b.click('#theme')
        self.assertNotEqual(b.run('return getComputedStyle(document.body).backgroundColor'), light)
        b.screenshot('dark')
        b.press('d')
        self.assertEqual(b.run('return getComputedStyle(document.body).backgroundColor'), light)
        b.run('colourBox.focus()')
        b.press('d')  # a letter for the list of colours
        self.assertEqual(b.run('return getComputedStyle(document.body).backgroundColor'), light)

    def test_large_graphs_open_quickly(self):
        b = self.browser
        # What folds, and what has to be cut into parts, a page ten times as large.
        for page in ['large.html', 'unnamed.html']:
            with self.subTest(page):
                start = time.monotonic()
                b.open(page)
                b.run('return document.querySelector("#drawing svg").getBBox().width')  # laid out
                seconds = time.monotonic() - start
                nodes = b.run('return data.stages[0].z')
                print(f'{page}: {nodes} nodes open in {seconds:.2f} s', file=sys.stderr)
                self.assertGreaterEqual(nodes, 20000)
                self.assertLess(seconds, 3)
                b.screenshot(page.split('.')[0])
                b.click('#drawing g.node.scope, #drawing g.node.part')
                b.press('Enter')
                self.assertNotEqual(b.run('return state.scope'), 0)


class DarkByPreference(unittest.TestCase):
    def test_starts_dark(self):
        browser = Browser(dark=True)
        try:
            browser.open('graph.html')
            prefers = browser.run('return matchMedia("(prefers-color-scheme: dark)").matches')
            self.assertEqual(browser.run('return document.documentElement.dataset.theme'), 'dark' if prefers else 'light')
            self.assertTrue(prefers)
        finally:
            browser.close()


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    for name in ['pages', 'chromium', 'driver']:
        parser.add_argument('--' + name, required=True)
    parser.add_argument('--screenshots')
    options, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
