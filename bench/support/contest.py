"""bench/support/contest.py - processes that make steps by turns, timed so that their ratios can be trusted.

    class Mine(Contest): ...          # which cases, which participants, which targets
    entries = [Entry(worker.name, worker, "mlp", 64) for worker in self.start_workers(commands, threads, cores)]
    samples, noisy, losses = self.compare(entries, "mlp, batch 64", case="mlp")

Every participant is a process that waits on its standard input while others work (training_step/worker.py has the protocol);
all are pinned to the same cores. The method is that of bench/README.md. With --log FOLDER the standard error of each goes
into a file there.
"""

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
import typing

BENCH = pathlib.Path(__file__).resolve().parent.parent
BINARIES = BENCH.parent / "build" / "release" / "bench"
PEERS = BENCH / "peers" / "bin" / "python"


class Worker:
    """A participant: a process that answers commands."""

    def __init__(self, name, command, threads, cores, folder, log=None):
        environment = dict(os.environ)
        for library in ("OMP", "OPENBLAS"):
            environment[f"{library}_NUM_THREADS"] = str(threads)
        # How long idle threads of OpenBLAS spin: 2^16 cycles, not 2^26; the slices of others begin earlier than that.
        environment["OPENBLAS_THREAD_TIMEOUT"] = "16"
        self.name = name
        self.ended = False
        with contextlib.ExitStack() as opened:
            errors = opened.enter_context(open(log, "w")) if log else subprocess.DEVNULL
            self.process = subprocess.Popen(
                ["taskset", "-c", ",".join(map(str, cores)), *command, "--threads", str(threads)], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=folder,
                start_new_session=True)  # by which its own processes are known
        hello = self.process.stdout.readline().split()
        self.version = hello[1] if len(hello) > 1 else None

    def ask(self, *words):
        """The words of the answer; none where it has failed."""
        if self.ended:
            return []
        try:
            print(*words, file=self.process.stdin, flush=True)
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer or answer.startswith("error"):
            print(f"  {self.name}: {' '.join(map(str, words))}: {answer.strip() or 'it ended'}")
            self.ended = not answer
            return []
        return answer.split()

    def leave(self):
        self.process.stdin.close()
        self.process.wait()


class Neighbours:
    """CPU time that anybody but the participants, and what they started, uses."""

    def __init__(self, workers):
        self.sessions = {worker.process.pid for worker in workers}
        self.last = self.read()

    def read(self):
        threads = {}
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                if int(process) == os.getpid() or os.getsid(int(process)) in self.sessions:
                    continue
                for thread in os.listdir(f"/proc/{process}/task"):
                    with open(f"/proc/{process}/task/{thread}/schedstat") as file:
                        threads[thread] = int(file.readline().split()[0]) * 1e-9
            except (OSError, IndexError):
                pass  # it has just ended
        with open("/proc/stat") as file:
            stolen = int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")
        return threads, stolen

    def used(self):
        """Since the last call."""
        (threads, stolen), (before, stolen_before) = now, last = self.read(), self.last
        self.last = now
        ended = sum(1 for thread in before if thread not in threads)
        run = sum(max(0, seconds - before.get(thread, 0)) for thread, seconds in threads.items())
        return run + 1e-3 * ended + stolen - stolen_before


def spread(values):
    if len(values) == 1:
        return values * 3
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return [q1, median, q3]


def show(values, digits):
    q1, median, q3 = spread(values)
    return f"{median:.{digits}f} [{q1:.{digits}f}..{q3:.{digits}f}]"


class Entry(typing.NamedTuple):
    """Who takes part in a comparison, with what."""
    name: str
    worker: Worker
    case: str
    batch: int

    def ask(self, command, *words):
        return self.worker.ask(command, self.case, self.batch, *words)


def measure(entries, options):
    """name -> seconds of a step, one per round kept; whether the rounds were disturbed; how many were discarded."""
    which = 1 if options.cpu_time else 0

    def seconds(entry, steps):
        answer = entry.ask("run", steps)
        return float(answer[which]) / steps if answer else None

    steps = {}
    for entry in entries:
        one = min(filter(None, (seconds(entry, 2) for _ in range(2))), default=None)
        if one:
            steps[entry] = max(1, round(options.slice / one))
    entries = [entry for entry in entries if entry in steps]

    rounds = []
    neighbours = Neighbours([entry.worker for entry in entries])
    quiet = 0
    while quiet < options.rounds and len(rounds) < 2 * options.rounds:
        neighbours.used()
        begin = time.monotonic()
        times = {}
        shift = len(rounds) % len(entries)
        for entry in entries[shift:] + entries[:shift]:
            time.sleep(options.pause)  # the threads of the one before go to sleep
            seconds(entry, 1)  # caches and threads awake
            times[entry.name] = seconds(entry, steps[entry])
        others = neighbours.used() / (time.monotonic() - begin)
        if all(times.values()):
            rounds.append((others, times))
            quiet += others <= options.tolerance
    rounds.sort(key=lambda r: r[0])
    kept = rounds[: options.rounds]
    samples = {entry.name: [times[entry.name] for _, times in kept] for entry in entries}
    return samples, quiet < len(kept), len(rounds) - len(kept)


def ratio(samples, name, of):
    """Speed of `name`, of that of `of`; round by round, their median."""
    return statistics.median(t / o for t, o in zip(samples[of], samples[name]))


def fastest(samples, names):
    present = [name for name in names if name in samples]
    return min(present, key=lambda name: statistics.median(samples[name]), default=None)


class Contest:
    """Cases that participants compete in, figures and targets. A benchmark derives from it and says what to run."""

    says = "loss"  # what participants answer, at the first step and after the last of those that warm up

    def __init__(self, options, folder, ours, bounds=()):
        self.options = options
        self.folder = folder
        self.ours = ours
        self.bounds = bounds  # those who only stand for work: they have no loss
        self.targets = []  # (target, where, figure, limit, met)
        self.records = []

    def start_workers(self, commands, threads, cores):
        workers = []
        for name, command in commands:
            if name in self.options.without:
                continue
            worker = Worker(name, command, threads, cores, self.folder, self.log_of(name))
            if worker.version is None:
                print(f"{name}: not found")
                worker.leave()
            else:
                workers.append(worker)
        return workers

    def log_of(self, name):
        """Where a worker's standard error goes; None: nowhere."""
        if not self.options.log:
            return None
        os.makedirs(self.options.log, exist_ok=True)
        return os.path.join(self.options.log, name.replace(" ", "_") + ".log")

    def start(self, entries):
        """Starts a case: name -> losses at the first step and after the last of those that warm up."""
        losses = {}
        for entry in entries:
            answer = entry.ask("start")
            if len(answer) == 2:
                losses[entry.name] = [float(word) for word in answer]
        return losses

    def compare(self, entries, title, **record):
        """Starts, measures and prints a case: the samples of measure(), whether they were disturbed, and the losses."""
        losses = self.start(entries)
        started = [entry for entry in entries if entry.name in losses]
        if not started:
            return {}, False, {}
        samples, noisy, discarded = measure(started, self.options)
        print(f"\n{title}: {len(next(iter(samples.values())))} rounds, {discarded} discarded{'  NOISY' if noisy else ''}")
        ours = samples.get(self.ours)
        for name, times in samples.items():
            row = f"  {name:16} {show([1 / t for t in times], 1):28} steps/s"
            if ours and name != self.ours:
                row += f"   {self.ours} {show([t / o for t, o in zip(times, ours)], 2):20} of it"
            elif ours:
                row += " " * (33 + len(self.ours))
            if name not in self.bounds:
                row += f"   {self.says} %.4f -> %.4f" % tuple(losses[name])
            print(row)
            self.records.append({**record, "participant": name, "noisy": noisy,
                                 "steps_per_second": spread([1 / t for t in times]),
                                 "loss": losses[name] if name not in self.bounds else None})
        sys.stdout.flush()
        return samples, noisy, {name: losses[name] for name in samples if name not in self.bounds}

    @staticmethod
    def check_losses(losses, tolerance=0.02):
        for name, loss in losses.items():
            usual = [statistics.median(other[i] for other in losses.values()) for i in (0, 1)]
            if any(abs(a - b) > tolerance * b for a, b in zip(loss, usual)) or loss[1] >= loss[0]:
                print(f"  WRONG: {name} has other losses than the rest; its figures mean nothing")

    def at_least(self, target, where, figure, limit):
        self.targets.append((target, where, figure, limit, figure >= limit))

    def at_most(self, target, where, figure, limit):
        self.targets.append((target, where, figure, limit, figure <= limit))

    def print_targets(self):
        print("\ntargets")
        for target, group in itertools.groupby(sorted(self.targets, key=lambda t: t[0]), key=lambda t: t[0]):
            print(f"  {target}")
            for _, where, figure, limit, met in group:
                print(f"    {'PASS' if met else 'MISS'}  {figure:5.2f}  limit {limit:.2f}  {where}")
        if self.options.json:
            with open(self.options.json, "w") as file:
                json.dump({"figures": self.records, "targets": self.targets}, file, indent=1)


def parse_options(description, add_arguments, needs_peers=True):
    """The flags that all comparisons have, and what follows from them. needs_peers: rivals are those of bench/peers."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="5 short rounds instead of 15")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--without", action="append", default=[], help="a participant to leave out")
    parser.add_argument("--json")
    parser.add_argument("--log", help="a folder for the standard error of the participants")
    parser.set_defaults(cpu_time=False)
    add_arguments(parser)
    options = parser.parse_args()
    options.rounds = options.rounds or (5 if options.quick else 15)
    options.slice = 0.1 if options.quick else 0.25
    options.pause = 0.02
    options.tolerance = 0.02
    if needs_peers and not PEERS.exists():
        print("no rivals: bench/training_step/setup_peers.sh installs them")
    return options


def is_built(binary):
    if not binary.exists():
        print(f"{binary} is not there: build {binary.name}, or say where it is", file=sys.stderr)
    return binary.exists()
