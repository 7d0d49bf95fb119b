"""The pages of io/html.h in a real browser: Chromium without a window, driven through chromedriver's W3C WebDriver protocol.

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
        'Backspace': '\ue003'}
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

    def drag(self, css, dx, dy):
        origin = {ELEMENT: self.find(css)}
        self.call('POST', self.session + '/actions', {'actions': [{'type': 'pointer', 'id': 'mouse', 'actions': [
            {'type': 'pointerMove', 'origin': origin, 'x': -300, 'y': -250}, {'type': 'pointerDown', 'button': 0},
            {'type': 'pointerMove', 'origin': 'pointer', 'x': dx, 'y': dy, 'duration': 20},
            {'type': 'pointerUp', 'button': 0}]}]})

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
        for word in ['placeholder', 'x 4', 'f32[?,16]', 'make_pages.cpp:']:
            self.assertIn(word, details)
        self.assertEqual(b.run('return document.querySelectorAll("#drawing .selected").length'), 1)
        b.screenshot('graph-selected')

    def test_layers_are_drawn_once_and_opened(self):
        b = self.browser
        b.open('graph.html')
        folded = b.run('return data.scopes.filter(s => s.c && s.c.length > 3).map(s => s.n)')
        self.assertTrue(folded)
        box = self.scope(folded[0])
        b.run('openScope(data.scopes[arguments[0]].p)', int(box[2:]))
        b.click(box)
        self.assertIn('stands for', b.text('#details'))
        b.click('#open')
        self.assertEqual(b.run('return state.scope'), int(box[2:]))
        self.assertEqual(b.text('#path [aria-current]'), b.run('return data.scopes[state.scope].l'))
        b.screenshot('scope')
        self.assertGreater(b.run('return document.querySelectorAll("#drawing g.node.outside").length'), 0)
        b.click('#back')
        b.wait(f'state.scope !== {int(box[2:])}')
        b.click(box)
        b.press('Enter')
        self.assertEqual(b.run('return state.scope'), int(box[2:]))
        b.click('#path button')
        self.assertEqual(b.run('return state.scope'), 0)

    def test_search(self):
        b = self.browser
        b.open('graph.html')
        b.press('/')
        self.assertEqual(b.run('return document.activeElement.type'), 'search')
        b.type('#search input', 'matmul')
        self.assertGreater(b.run('return document.querySelectorAll("#found li").length'), 0)
        b.screenshot('search')
        b.press('Enter')
        self.assertIn('matmul', b.text('#details'))
        self.assertEqual(b.run('return document.querySelectorAll("#drawing .selected").length'), 1)
        for words in ['cpu:0', 'placeholder']:  # by device, by op
            b.run('searchBox.value = ""')
            b.type('#search input', words)
            self.assertGreater(b.run('return found.length'), 0, words)
            b.press('Escape')
        # A name in a copy that is not drawn leads to the one that is.
        copy = b.run('const s = data.scopes.find(s => s.c && s.c.length > 3 && data.nodes.some(n => n.n.startsWith(s.n + "/")));'
                     'return s.c[2] + data.nodes.find(n => n.n.startsWith(s.n + "/")).n.slice(s.n.length)')
        b.type('#search input', copy)
        self.assertGreater(b.run('return found.length'), 0, copy)
        b.press('Escape')
        b.type('#search input', 'no such thing')
        self.assertIn('nothing found', b.text('#found'))
        b.press('Escape')

    def test_keyboard_and_pointer_move_the_view(self):
        b = self.browser
        b.open('graph.html')
        start = b.run('return {...view}')
        b.press('+')
        self.assertLess(b.run('return view.w'), start['w'])
        b.press('Right')
        self.assertGreater(b.run('return view.x'), start['x'])
        b.drag('#drawing', 120, 60)
        moved = b.run('return view.x')
        b.drag('#drawing', -120, -60)
        self.assertGreater(b.run('return view.x'), moved)
        b.press('0')
        self.assertAlmostEqual(b.run('return view.w'), start['w'])
        b.click(self.box('x'))
        b.press('Down')  # now it is the selection that moves
        self.assertNotEqual('#' + b.run('return state.selected'), self.box('x'))
        b.press('Escape')
        self.assertIsNone(b.run('return state.selected'))
        self.assertGreater(b.run('return document.querySelectorAll("#mini g.node").length'), 0)

    def test_slider_shows_what_passes_did(self):
        b = self.browser
        b.open('passes.html')
        stages = b.run('return data.stages.map(s => s.n)')
        self.assertIn('insert-all-reduce', stages)
        b.run('setStage(arguments[0])', stages.index('insert-all-reduce'))
        b.screenshot('passes-insert-all-reduce')
        self.assertIn('added', b.text('#stage-text'))
        place = b.run('const box = document.querySelector("#drawing g.node.box:not(.absent)").getBoundingClientRect();'
                      'return [box.x, box.y]')
        added = b.run('return [...document.querySelectorAll("#drawing g.node.added")].map(g => itemOf(g.id).thing.o)')
        inside = b.run('return changesByScope(state.stage).list.filter(([what]) => what === "added").map(([, n]) => n.o)')
        self.assertIn('all_reduce', inside)
        self.assertTrue(set(added) <= set(inside))
        # One layout: what is there in both stages stays where it is.
        first = b.run('return "#" + document.querySelector("#drawing g.node.box:not(.absent)").id')
        b.press(']')
        again = b.run('const box = document.querySelector(arguments[0]).getBoundingClientRect(); return [box.x, box.y]', first)
        self.assertEqual(place, again)
        b.run('setStage(arguments[0])', stages.index('replicate'))
        self.assertIn('remade', b.text('#stage-text'))
        self.assertIn('x 4', b.text('#drawing'))
        b.screenshot('passes-replicate')
        removed = [i for i in range(1, len(stages)) if b.run('return "removed" in changesByScope(arguments[0]).total', i)]
        self.assertTrue(removed)
        b.run('setStage(arguments[0])', removed[0])
        name = b.run('return changesByScope(state.stage).list.find(([what]) => what === "removed")[1].n')
        b.run('reveal(data.nodes.find(n => n.n === arguments[0]).i)', name)
        self.assertIn('removed', b.text('#details'))
        b.screenshot('passes-removed')
        b.press('[', '[')
        b.run('const s = document.getElementById("stage"); s.value = 0; s.dispatchEvent(new Event("input"))')
        self.assertEqual(b.run('return state.stage'), 0)
        self.assertTrue(b.run('return document.getElementById("previous").disabled'))

    def test_dark(self):
        b = self.browser
        b.open('passes.html')
        light = b.run('return getComputedStyle(document.body).backgroundColor')
        b.click('#theme')
        self.assertNotEqual(b.run('return getComputedStyle(document.body).backgroundColor'), light)
        b.screenshot('dark')
        b.press('d')
        self.assertEqual(b.run('return getComputedStyle(document.body).backgroundColor'), light)

    def test_large_graphs_open_quickly(self):
        b = self.browser
        # What folds, and what has to be cut into parts, a page ten times as large.
        for page, limit in [('large.html', 3), ('unnamed.html', 10)]:
            with self.subTest(page):
                start = time.monotonic()
                b.open(page)
                b.run('return document.querySelector("#drawing svg").getBBox().width')  # laid out
                seconds = time.monotonic() - start
                nodes = b.run('return data.stages[0].z')
                print(f'{page}: {nodes} nodes open in {seconds:.2f} s', file=sys.stderr)
                self.assertGreaterEqual(nodes, 20000)
                self.assertLess(seconds, limit)
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
