#!/usr/bin/env python3
"""bench/training_step - steps per second of whole training steps, Lockstep beside its rivals, in one run.

    bench/training_step/run.py [--quick] [--case mlp-64] [--threads 1|2] [--rounds N] [--without NAME]
                               [--binary build/release/bench/bench_training_step] [--json FILE] [--cpu-time]

Every participant is a process that waits on its standard input while others work; all are pinned to the same cores.
Rivals are those that setup_peers.sh could install into bench/peers; without it Lockstep and BLAS run alone. Method and
targets: bench/README.md. --cpu-time compares CPU time, for one thread on a busy machine: no figure to quote.
Exit status: 0, also where targets are missed; 1 where Lockstep cannot run; 2 for a wrong argument.
"""

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PEERS = HERE.parent / "peers" / "bin" / "python"

CASES = [("mlp", 64), ("mlp", 256), ("mlp", 1024), ("cnn", 128), ("transformer", 8)]
# Of the speed of the step's products alone, by batch and threads.
OF_BOUND = {(64, 1): 0.88, (256, 1): 0.94, (1024, 1): 0.96, (64, 2): 0.75, (256, 2): 0.85, (1024, 2): 0.90}
# Of the best rival's speed; 1 where nothing is said.
OF_RIVAL = {("mlp", 64, 2): 1.5}
OF_LIVE_SET = 1.15

LOCKSTEP = "Lockstep"
BOUNDS = ("BLAS", "BLAS halves")


class Worker:
    """A participant: a process that answers commands."""

    def __init__(self, name, command, threads, cores):
        environment = dict(os.environ)
        for library in ("OMP", "OPENBLAS"):
            environment[f"{library}_NUM_THREADS"] = str(threads)
        # How long idle threads of OpenBLAS spin: 2^16 cycles, not 2^26; the slices of others begin earlier than that.
        environment["OPENBLAS_THREAD_TIMEOUT"] = "16"
        self.name = name
        self.ended = False
        self.process = subprocess.Popen(
            ["taskset", "-c", ",".join(map(str, cores)), *command, "--threads", str(threads)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, cwd=HERE)
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
    """CPU time that anybody but the participants uses."""

    def __init__(self, own):
        self.own = {str(process) for process in own}
        self.last = self.read()

    def read(self):
        threads = {}
        for process in filter(str.isdigit, os.listdir("/proc")):
            if process in self.own:
                continue
            try:
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


def measure(workers, case, batch, options):
    """name -> seconds of a step, one per round kept; and whether the rounds were disturbed."""
    which = 1 if options.cpu_time else 0

    def seconds(worker, steps):
        answer = worker.ask("run", case, batch, steps)
        return float(answer[which]) / steps if answer else None

    steps = {}
    for worker in workers:
        one = min(filter(None, (seconds(worker, 2) for _ in range(2))), default=None)
        if one:
            steps[worker] = max(1, round(options.slice / one))
    workers = [worker for worker in workers if worker in steps]

    rounds = []
    neighbours = Neighbours([os.getpid()] + [worker.process.pid for worker in workers])
    quiet = 0
    while quiet < options.rounds and len(rounds) < 2 * options.rounds:
        neighbours.used()
        begin = time.monotonic()
        times = {}
        shift = len(rounds) % len(workers)
        for worker in workers[shift:] + workers[:shift]:
            time.sleep(options.pause)  # the threads of the one before go to sleep
            seconds(worker, 1)  # caches and threads awake
            times[worker.name] = seconds(worker, steps[worker])
        others = neighbours.used() / (time.monotonic() - begin)
        if all(times.values()):
            rounds.append((others, times))
            quiet += others <= options.tolerance
    rounds.sort(key=lambda r: r[0])
    kept = rounds[: options.rounds]
    samples = {worker.name: [times[worker.name] for _, times in kept] for worker in workers}
    return samples, quiet < len(kept), len(rounds) - len(kept)


class Bench:
    def __init__(self, options):
        self.options = options
        self.targets = []  # (target, where, figure, limit, met)
        self.records = []

    def commands(self, threads):
        python = str(PEERS)
        binary = str(self.options.binary)
        yield LOCKSTEP, [binary, "--as", "lockstep"]
        yield "BLAS", [binary, "--as", "blas"]
        if threads == 2:
            yield "BLAS halves", [binary, "--as", "halves"]
        if PEERS.exists():
            yield "PyTorch eager", [python, str(HERE / "peer_torch.py")]
            yield "PyTorch compile", [python, str(HERE / "peer_torch.py"), "--compile"]
            yield "TensorFlow", [python, str(HERE / "peer_tensorflow.py")]
            yield "JAX", [python, str(HERE / "peer_jax.py")]

    def run(self):
        if self.options.cpu_time:
            print("in CPU time, not in time: no figure to quote")
        for threads in self.options.threads or (1, 2):
            cores = sorted(os.sched_getaffinity(0))
            if threads > len(cores):
                print(f"{threads} threads: left out, there are {len(cores)} cores")
                continue
            self.run_with(threads, cores[-threads:])
        self.print_targets()

    def run_with(self, threads, cores):
        workers = []
        for name, command in self.commands(threads):
            if name in self.options.without:
                continue
            worker = Worker(name, command, threads, cores)
            if worker.version is None:
                print(f"{name}: not found")
                worker.leave()
            else:
                workers.append(worker)
        print(f"{threads} thread{'s' if threads > 1 else ''}, cores {cores}: " +
              ", ".join(f"{worker.name} {worker.version}" for worker in workers))
        try:
            for case, batch in CASES:
                if not self.options.case or f"{case}-{batch}" in self.options.case:
                    self.run_case(workers, case, batch, threads)
        finally:
            for worker in workers:
                worker.leave()

    def run_case(self, workers, case, batch, threads):
        losses = {}
        for worker in workers:
            answer = worker.ask("start", case, batch)
            if len(answer) == 2:
                losses[worker.name] = [float(word) for word in answer]
        started = [worker for worker in workers if worker.name in losses]
        if not started:
            return
        samples, noisy, discarded = measure(started, case, batch, self.options)
        where = f"{case}-{batch}/{threads}" + (" (noisy)" if noisy else "")
        print(f"\n{case}, batch {batch}, {threads} thread{'s' if threads > 1 else ''}: "
              f"{len(next(iter(samples.values())))} rounds, {discarded} discarded{'  NOISY' if noisy else ''}")
        ours = samples.get(LOCKSTEP)
        for name, times in samples.items():
            row = f"  {name:16} {show([1 / t for t in times], 1):28} steps/s"
            if ours and name != LOCKSTEP:
                row += f"   Lockstep {show([t / o for t, o in zip(times, ours)], 2):20} of it"
            elif ours:
                row += " " * 41
            if name not in BOUNDS:
                row += "   loss %.4f -> %.4f" % tuple(losses[name])
            print(row)
            self.records.append({"case": case, "batch": batch, "threads": threads, "participant": name,
                                 "steps_per_second": spread([1 / t for t in times]), "noisy": noisy,
                                 "loss": losses[name] if name not in BOUNDS else None})
        self.check_losses({name: loss for name, loss in losses.items() if name not in BOUNDS})
        if ours:
            self.judge(samples, case, batch, threads, where)
            lockstep = next(worker for worker in started if worker.name == LOCKSTEP)
            self.judge_plan(lockstep.ask("plan", case, batch), where, threads)
        sys.stdout.flush()

    @staticmethod
    def check_losses(losses):
        for name, loss in losses.items():
            usual = [statistics.median(other[i] for other in losses.values()) for i in (0, 1)]
            if any(abs(a - b) > 0.02 * b for a, b in zip(loss, usual)) or loss[1] >= loss[0]:
                print(f"  WRONG: {name} has other losses than the rest; its figures mean nothing")

    def target(self, target, where, figure, limit, met):
        self.targets.append((target, where, figure, limit, met))

    def judge(self, samples, case, batch, threads, where):
        ours = samples[LOCKSTEP]

        def best(names):
            present = [name for name in names if name in samples]
            return min(present, key=lambda name: statistics.median(samples[name]), default=None)

        bound = best(BOUNDS)
        if bound and (batch, threads) in OF_BOUND:
            figure = statistics.median(t / o for t, o in zip(samples[bound], ours))
            limit = OF_BOUND[batch, threads]
            self.target("of the products alone", f"{where} {bound}", figure, limit, figure >= limit)
        rival = best(name for name in samples if name not in (LOCKSTEP, *BOUNDS))
        if rival:
            figure = statistics.median(t / o for t, o in zip(samples[rival], ours))
            limit = OF_RIVAL.get((case, batch, threads), 1)
            self.target("of the best rival's speed", f"{where} {rival}", figure, limit, figure >= limit)

    def judge_plan(self, answer, where, threads):
        """The answer: words, each "name=number"."""
        plan = dict(word.split("=") for word in answer if "=" in word)
        if not plan:
            return
        print("  plan: " + ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in plan.items()))
        if threads == 1:
            figure = int(plan["planned_bytes"]) / int(plan["live_set_bytes"])
            self.target("planned memory, of the live set", where, figure, OF_LIVE_SET, figure <= OF_LIVE_SET)

    def print_targets(self):
        print("\ntargets")
        for target, group in itertools.groupby(sorted(self.targets, key=lambda t: t[0]), key=lambda t: t[0]):
            print(f"  {target}")
            for _, where, figure, limit, met in group:
                print(f"    {'PASS' if met else 'MISS'}  {figure:5.2f}  limit {limit:.2f}  {where}")
        if self.options.json:
            with open(self.options.json, "w") as file:
                json.dump({"figures": self.records, "targets": self.targets}, file, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="5 short rounds instead of 15")
    parser.add_argument("--case", action="append", choices=[f"{case}-{batch}" for case, batch in CASES])
    parser.add_argument("--threads", action="append", type=int, choices=(1, 2))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--without", action="append", default=[], help="a participant to leave out")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/release/bench/bench_training_step")
    parser.add_argument("--json")
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    options.rounds = options.rounds or (5 if options.quick else 15)
    options.slice = 0.1 if options.quick else 0.25
    options.pause = 0.02
    options.tolerance = 0.02
    options.binary = options.binary.resolve()
    if not options.binary.exists():
        print(f"{options.binary} is not there: build bench_training_step, or say --binary", file=sys.stderr)
        return 1
    if not PEERS.exists():
        print("no rivals: bench/training_step/setup_peers.sh installs them")
    Bench(options).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
