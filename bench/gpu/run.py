#!/usr/bin/env python3
"""bench/gpu - steps per second of whole training steps on one NVIDIA card, Lockstep beside its rivals, in one run.

    bench/gpu/run.py [--quick] [--case mlp-tf32] [--rounds N] [--without NAME] [--python PYTHON] [--log FOLDER]
                     [--binary build/release/bench/bench_gpu] [--json FILE]

Every participant is a process that leaves the card alone while others work. Rivals are those that PYTHON can import: that of
bench/peers, or else python3. --quick starts the rivals of all cases at one time, so that their compilers disturb each other.
Method and targets: bench/README.md.
Exit status: 0, also where targets are missed; 1 where Lockstep cannot run; 2 for a wrong argument.
"""

import concurrent.futures
import os
import pathlib
import signal
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
from contest import BINARIES, PEERS, Contest, Entry, Worker, fastest, is_built, parse_options, ratio, spread

CASES = [("mlp-tf32", 1024), ("mlp-bf16", 1024), ("block-tf32", 16), ("block-bf16", 16)]
# Of the best rival's speed; 1 where nothing is said.
OF_RIVAL = {"mlp-bf16": 1.1}
OF_ROOFLINE = 0.8
OF_MEMORY = 1.05
LOSS_TOLERANCE = 0.01

LOCKSTEP, BOUND, COMPILE = "Lockstep", "bound", "torch.compile"
# Those that compile for long have a process for each case, so that all of them can do it at one time.
COMPILERS = (COMPILE, "compiled graph", "JAX")
HOST_THREADS = 4

MLP_WIDTHS = [784, 4096, 4096, 10]
SEQUENCE, WIDTH, INNER = 512, 1024, 4096


def moved_bytes(case, batch):
    """What a step has to read and write besides its products, which read their factors and write their results.

    Updates read the weight and its gradient and write the weight; AdamW reads and writes two slots as well. All of them are
    counted as wide as the weights, as if gradients did not have to be read by anything else.

    mlp    of each hidden layer, what went through relu is read once more for the gradient; bias and relu are applied to what
           a product writes. The rest is small.
    block  in rows of WIDTH: the input is read by the first norm, by the residual and by the norm's gradient (3); each norm
           writes what a product reads (2); the sum after attention is read by the second norm, by the residual and by the
           norm's gradient (3); the loss reads the target (1), f32. Backward: the second norm's gradient reads what flows into
           it and past it, and writes their sum (3), the first one's what flows into it (1).
           In rows of INNER: what enters gelu is written beside what leaves it, and read for the gradient (2).
           Scores and weights of attention stay on the chip.
    """
    size = 2 if case.endswith("-bf16") else 4
    if case.startswith("mlp"):
        weights = sum(a * b + b for a, b in zip(MLP_WIDTHS, MLP_WIDTHS[1:]))
        return size * (3 * weights + batch * sum(MLP_WIDTHS[1:-1]))
    weights = 4 * WIDTH * WIDTH + 2 * WIDTH * INNER + 4 * WIDTH + INNER + WIDTH + 4 * WIDTH
    rows = batch * SEQUENCE
    return size * (7 * weights + rows * (12 * WIDTH + 2 * INNER)) + 4 * rows * WIDTH


def numbers(answer):
    """Words, each "name=number"."""
    return {name: float(number) for name, number in (word.split("=") for word in answer if "=" in word)}


class Bench(Contest):
    def __init__(self, options):
        super().__init__(options, HERE, LOCKSTEP, (BOUND,))
        self.limit = 100 if options.quick else 400  # seconds for the start of a worker, or of a case
        self.workers = []
        self.started = {}  # (name, case) -> losses, seconds

    def commands(self):
        """Name, command; rivals first."""
        python, binary = self.options.python, str(self.options.binary)
        torch = [python, str(HERE / "peer_torch.py")]
        yield COMPILE, [*torch, "--compile"]
        yield "compiled graph", [*torch, "--compile", "--graph"]
        yield "JAX", [python, str(HERE / "peer_jax.py")]
        yield "torch CUDA graph", [*torch, "--graph"]
        yield "PyTorch eager", torch
        yield BOUND, [binary, "--as", "bound"]
        yield LOCKSTEP, [binary, "--as", "lockstep"]

    def run(self):
        cases = [(case, batch) for case, batch in CASES if not self.options.case or case in self.options.case]
        try:
            entries = self.start_all(cases)
            for case, batch in cases:
                self.run_case(case, batch, entries[case])
            self.print_targets()
        finally:
            for worker in self.workers:
                self.end(worker)
        return any(name == LOCKSTEP for name, _ in self.started)

    @staticmethod
    def end(worker):
        """With all that it has started. It holds nothing that it would have to put away."""
        try:
            os.killpg(worker.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        worker.process.wait()

    def start_all(self, cases):
        """case -> entries. Lockstep and the bound start last, with the card to themselves."""
        entries = {case: [] for case, _ in cases}
        jobs = []  # (name, command, cases of the process)
        for name, command in self.commands():
            if name not in self.options.without:
                groups = [[case] for case in cases] if name in COMPILERS else [cases]
                jobs += [(name, command, group) for group in groups]
        rivals = [job for job in jobs if job[0] not in (LOCKSTEP, BOUND)]
        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(max_workers=len(rivals) if self.options.quick and rivals else 1) as pool:
            for made in pool.map(lambda job: self.start_process(*job), rivals):
                for entry in made:
                    entries[entry.case].append(entry)
        for job in jobs:
            if job not in rivals:
                for entry in self.start_process(*job):
                    entries[entry.case].append(entry)
        versions = {worker.name: worker.version for worker in self.workers if worker.version}
        print(", ".join(f"{name} {version}" for name, version in versions.items()))
        print(f"started in {time.monotonic() - begin:.0f} s")
        return entries

    def start_process(self, name, command, cases):
        """A worker, and the start of its cases one after another: its entries."""
        cores = sorted(os.sched_getaffinity(0))
        log = self.log_of(f"{name}-{cases[0][0]}" if len(cases) == 1 else name)
        try:
            worker = Worker(name, command, min(HOST_THREADS, len(cores)), cores, self.folder, log)
        except OSError as error:
            print(f"{name}: {error}")
            return []
        self.workers.append(worker)
        if worker.version is None:
            print(f"{name}: not found")
            return []
        entries = []
        for case, batch in cases:
            entry = Entry(name, worker, case, batch)
            watch = threading.Timer(self.limit, self.end, [worker])
            watch.start()
            begin = time.monotonic()
            answer = entry.ask("start")
            watch.cancel()
            if len(answer) == 2:
                self.started[name, case] = [float(word) for word in answer], time.monotonic() - begin
                entries.append(entry)
        return entries

    def start(self, entries):
        """They have started."""
        return {entry.name: self.started[entry.name, entry.case][0] for entry in entries}

    def run_case(self, case, batch, entries):
        samples, noisy, losses = self.compare(entries, f"{case}, batch {batch}", case=case, batch=batch)
        if not samples:
            return
        print("  start, 20 steps included: " + ", ".join(
            f"{entry.name} {self.started[entry.name, case][1]:.1f} s" for entry in entries))
        self.check_losses(losses, LOSS_TOLERANCE)
        if LOCKSTEP not in samples:
            return
        where = case + (" (noisy)" if noisy else "")
        rival = fastest(samples, [name for name in samples if name not in (LOCKSTEP, BOUND)])
        if rival:
            self.at_least("of the best rival's speed", f"{where} {rival}", ratio(samples, LOCKSTEP, rival),
                          OF_RIVAL.get(case, 1))
        plans = {entry.name: numbers(entry.ask("plan")) for entry in entries if entry.name in samples}
        self.judge_roofline(samples, plans, case, batch, where)
        self.judge_memory(plans, case, where)
        sys.stdout.flush()

    def judge_roofline(self, samples, plans, case, batch, where):
        rate = plans.get(BOUND, {}).get("copy_bytes_per_second")
        if not rate:
            return
        moving = moved_bytes(case, batch) / rate
        shares = [(products + moving) / ours for products, ours in zip(samples[BOUND], samples[LOCKSTEP])]
        products = spread(samples[BOUND])[1]
        print(f"  roofline: products {products * 1e6:.0f} us, {moved_bytes(case, batch) / 2**20:.0f} MiB besides at "
              f"{rate * 1e-12:.2f} TB/s {moving * 1e6:.0f} us: {1 / (products + moving):.1f} steps/s")
        self.at_least("of the roofline", where, spread(shares)[1], OF_ROOFLINE)

    def judge_memory(self, plans, case, where):
        for name, plan in plans.items():
            words = [f"{what.replace('_', ' ')} {number:.0f}" for what, number in plan.items() if name != BOUND]
            if words:
                print(f"  {name}: " + ", ".join(words))
        ours, theirs = (plans.get(name, {}).get("peak_bytes") for name in (LOCKSTEP, COMPILE))
        if ours and theirs and case.startswith("block"):
            self.at_most("peak memory, of torch.compile's", where, ours / theirs, OF_MEMORY)


def add_arguments(parser):
    parser.add_argument("--case", action="append", choices=[case for case, _ in CASES])
    parser.add_argument("--binary", type=pathlib.Path, default=BINARIES / "bench_gpu")
    parser.add_argument("--python", default=str(PEERS) if PEERS.exists() else "python3", help="with the rivals")


def main():
    options = parse_options(__doc__.splitlines()[0], add_arguments, needs_peers=False)
    options.binary = options.binary.resolve()
    options.tolerance = 0.5  # what is measured is the card: neighbours on other cores matter little
    if not is_built(options.binary):
        return 1
    return 0 if Bench(options).run() else 1


if __name__ == "__main__":
    sys.exit(main())
