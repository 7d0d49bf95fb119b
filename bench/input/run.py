#!/usr/bin/env python3
"""bench/input - batches per second from files and from memory, Lockstep beside tf.data and PyTorch's DataLoader, in one run.

    bench/input/run.py [--quick] [--only tfrecord] [--rounds N] [--without NAME] [--binaries build/release/bench] [--json FILE]

Rivals are those of bench/training_step (its setup_peers.sh installs them). Method and targets: bench/README.md.
Exit status: 0, also where targets are missed; 1 where Lockstep cannot run; 2 for a wrong argument.
"""

import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
from contest import BINARIES, PEERS, Contest, Entry, fastest, is_built, parse_options, ratio

THREADS, BATCH = 2, 64
OF_RIVAL = {"tfrecord": 1.5, "slices": 1.5, "csv": 1.5, "gzip": 1.0}
COMPUTES = 50e-6  # seconds of the function of "map"
OF_THREADS = 0.95
LOCKSTEP = "Lockstep"
PARTS = [*OF_RIVAL, "map"]


class Bench(Contest):
    says = "rows"

    def __init__(self, options):
        super().__init__(options, HERE, LOCKSTEP)
        self.binary = str(options.binaries / "bench_input")
        self.cores = sorted(os.sched_getaffinity(0))[-THREADS:]

    def commands(self):
        yield LOCKSTEP, [self.binary, "--as", "lockstep"]
        if PEERS.exists():
            yield "tf.data", [str(PEERS), str(HERE / "peer_tensorflow.py")]
            yield "DataLoader", [str(PEERS), str(HERE / "peer_torch.py")]

    def run(self):
        workers = self.start_workers(self.commands(), THREADS, self.cores)
        print(f"{THREADS} threads, cores {self.cores}, batches of {BATCH}: " +
              ", ".join(f"{worker.name} {worker.version}" for worker in workers))
        for case in PARTS:
            if self.options.only and case not in self.options.only:
                continue
            takes_part = [w for w in workers if w.name == LOCKSTEP or (case != "map" and (w.name == "tf.data" or case == "slices"))]
            entries = [Entry(worker.name, worker, case, BATCH) for worker in takes_part]
            samples, noisy, rows = self.compare(entries, f"{case}, batches of {BATCH}", case=case, batch=BATCH)
            if any(answer != [BATCH, BATCH] for answer in rows.values()):
                print("  WRONG: a participant has other batches")
            where = case + (" (noisy)" if noisy else "")
            if LOCKSTEP not in samples:
                continue
            if case == "map":
                elements = BATCH / statistics.median(samples[LOCKSTEP])
                self.at_least("of two threads that do nothing else", where, elements / (THREADS / COMPUTES), OF_THREADS)
            elif rival := fastest(samples, [name for name in samples if name != LOCKSTEP]):
                self.at_least("of the better rival's speed", f"{where} {rival}", ratio(samples, LOCKSTEP, rival), OF_RIVAL[case])
        for worker in workers:
            worker.leave()
        self.print_targets()


def add_arguments(parser):
    parser.add_argument("--only", action="append", choices=PARTS)
    parser.add_argument("--binaries", type=pathlib.Path, default=BINARIES)
    parser.add_argument("--data", type=pathlib.Path, default=HERE.parent / "peers" / "input")


def main():
    options = parse_options(__doc__.splitlines()[0], add_arguments)
    options.binaries = options.binaries.resolve()
    binary = options.binaries / "bench_input"
    if not is_built(binary):
        return 1
    if subprocess.run([str(binary), "--make", str(options.data)]).returncode != 0:
        return 1
    os.environ["BENCH_INPUT"] = str(options.data.resolve())
    Bench(options).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
