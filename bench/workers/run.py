#!/usr/bin/env python3
"""bench/workers - steps per second of training steps on two processes, Lockstep beside its rivals, in one run.

    bench/workers/run.py [--quick] [--only mlp-64] [--rounds N] [--without NAME] [--binaries build/release/bench] [--json FILE]

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

WORKERS = 2
CASES = [("mlp", 64), ("mlp", 256), ("mlp", 1024), ("transformer", 8)]
OF_RIVAL = {("mlp", 64): 1.3, ("mlp", 1024): 1.1}
COLD_WORKERS = 4
COLD_SECONDS = 0.5
OVERLAP = 1.05

LOCKSTEP = "Lockstep"
PARTS = [f"{case}-{batch}" for case, batch in CASES] + ["cold", "overlap"]


class Bench(Contest):
    def __init__(self, options):
        super().__init__(options, HERE, LOCKSTEP)
        self.binary = str(options.binaries / "bench_workers")
        self.cores = sorted(os.sched_getaffinity(0))[-WORKERS:]

    def wanted(self, part):
        return not self.options.only or part in self.options.only

    def run(self):
        self.rivals()
        self.cold()
        self.overlap()
        self.print_targets()

    def commands(self):
        python = str(PEERS)
        yield LOCKSTEP, [self.binary, "--as", "workers"]
        if PEERS.exists():
            ddp = str(HERE.parent / "mirrored_step" / "peer_torch.py")
            yield "PyTorch DDP", [python, ddp]
            yield "DDP compile", [python, ddp, "--compile"]
            yield "TensorFlow", [python, str(HERE / "peer_tensorflow.py")]
            yield "JAX", [python, str(HERE / "peer_jax.py")]

    def rivals(self):
        cases = [(case, batch) for case, batch in CASES if self.wanted(f"{case}-{batch}")]
        if not cases:
            return
        workers = self.start_workers(self.commands(), WORKERS, self.cores)
        print(f"{WORKERS} workers, cores {self.cores}: " +
              ", ".join(f"{worker.name} {worker.version}" for worker in workers))
        for case, batch in cases:
            entries = [Entry(worker.name, worker, case, batch) for worker in workers]
            samples, noisy, losses = self.compare(entries, f"{case}, batch {batch}, {WORKERS} workers",
                                                  case=case, batch=batch, workers=WORKERS)
            self.check_losses(losses)
            rival = fastest(samples, [name for name in samples if name != LOCKSTEP])
            if LOCKSTEP in samples and rival and (case, batch) in OF_RIVAL:
                self.at_least("of the best rival's speed", f"{case}-{batch} {rival}" + (" (noisy)" if noisy else ""),
                              ratio(samples, LOCKSTEP, rival), OF_RIVAL[case, batch])
        for worker in workers:
            worker.leave()

    def cold(self):
        if not self.wanted("cold"):
            return
        times = []
        for _ in range(self.options.rounds):
            done = subprocess.run([self.binary, "--cold", str(COLD_WORKERS)], capture_output=True, text=True)
            if done.returncode != 0:
                print(f"  cold start: {done.stderr.strip()}")
                return
            times.append(float(done.stdout))
        print(f"\ncold start of {COLD_WORKERS} workers to the first committed step and the end: " +
              " ".join(f"{t:.3f}" for t in sorted(times)) + " s")
        self.at_most("seconds to the first committed step", f"{COLD_WORKERS} workers", statistics.median(times), COLD_SECONDS)

    def overlap(self):
        if not self.wanted("overlap"):
            return
        done = subprocess.run([self.binary, "--overlap"], capture_output=True, text=True)
        print("\n" + (done.stdout + done.stderr).strip())
        for line in done.stdout.splitlines():
            words = line.split()
            if line.endswith("one bucket"):
                self.at_most("time, of the longer of computing and exchanging, and a bucket",
                             f"{words[1]} ms and {words[4]} ms", float(words[words.index("both:") + 1]), OVERLAP)


def add_arguments(parser):
    parser.add_argument("--only", action="append", choices=PARTS)
    parser.add_argument("--binaries", type=pathlib.Path, default=BINARIES)


def main():
    options = parse_options(__doc__.splitlines()[0], add_arguments)
    options.binaries = options.binaries.resolve()
    if not is_built(options.binaries / "bench_workers"):
        return 1
    if len(os.sched_getaffinity(0)) < WORKERS:
        print(f"two workers need {WORKERS} cores", file=sys.stderr)
        return 1
    Bench(options).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
