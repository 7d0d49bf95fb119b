#!/usr/bin/env python3
"""bench/mirrored_step - steps per second of training steps on two replicas, Lockstep beside its rivals, in one run.

    bench/mirrored_step/run.py [--quick] [--only mlp-64] [--rounds N] [--without NAME] [--binaries build/release/bench]
                               [--json FILE]

Rivals are those of bench/training_step (its setup_peers.sh installs them). Method and targets: bench/README.md.
Exit status: 0, also where targets are missed; 1 where Lockstep cannot run; 2 for a wrong argument.
"""

import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
from contest import BINARIES, PEERS, Contest, Entry, fastest, is_built, parse_options, ratio

REPLICAS = 2
CASES = [("mlp", 64), ("mlp", 256), ("mlp", 1024), ("transformer", 8)]
# Of the best rival's speed; or, where the products alone do not permit that, of theirs.
OF_RIVAL = {("mlp", 64): 2.0, ("mlp", 256): 1.3, ("mlp", 1024): 1.1, ("transformer", 8): 1.0}
OF_BOUND = {("mlp", 64): 0.72, ("mlp", 256): 0.82, ("mlp", 1024): 0.88}
# Rows of one replica, when there are two of them and when it is alone.
WEAK = [256, 512]
WEAK_SCALING = 0.92
# Of the time by hand, with so many replicas.
TINY_REPLICAS = 8
TINY_OVERHEAD = 1.2

LOCKSTEP = "Lockstep"
BOUNDS = ("BLAS", "BLAS halves")
PARTS = [f"{case}-{batch}" for case, batch in CASES] + [f"weak-{rows}" for rows in WEAK] + ["tiny"]


class Bench(Contest):
    def __init__(self, options):
        super().__init__(options, HERE, LOCKSTEP, BOUNDS)
        self.mirrored = str(options.binaries / "bench_mirrored_step")
        self.training = str(options.binaries / "bench_training_step")
        self.cores = sorted(os.sched_getaffinity(0))[-REPLICAS:]

    def wanted(self, part):
        return not self.options.only or part in self.options.only

    def run(self):
        self.rivals()
        self.weak_scaling()
        self.overhead()
        self.print_targets()

    def commands(self):
        python = str(PEERS)
        yield LOCKSTEP, [self.mirrored, "--as", "mirrored"]
        yield "BLAS", [self.training, "--as", "blas"]
        yield "BLAS halves", [self.training, "--as", "halves"]
        if PEERS.exists():
            yield "PyTorch DDP", [python, str(HERE / "peer_torch.py")]
            yield "DDP compile", [python, str(HERE / "peer_torch.py"), "--compile"]
            yield "TensorFlow", [python, str(HERE / "peer_tensorflow.py")]
            yield "JAX pmap", [python, str(HERE / "peer_jax.py")]

    def rivals(self):
        cases = [(case, batch) for case, batch in CASES if self.wanted(f"{case}-{batch}")]
        if not cases:
            return
        workers = self.start_workers(self.commands(), REPLICAS, self.cores)
        print(f"{REPLICAS} replicas, cores {self.cores}: " +
              ", ".join(f"{worker.name} {worker.version}" for worker in workers))
        for case, batch in cases:
            entries = [Entry(worker.name, worker, case, batch) for worker in workers]
            samples, noisy, losses = self.compare(entries, f"{case}, batch {batch}, {REPLICAS} replicas",
                                                  case=case, batch=batch, replicas=REPLICAS)
            self.check_losses(losses)
            if LOCKSTEP in samples:
                self.judge(samples, case, batch, f"{case}-{batch}" + (" (noisy)" if noisy else ""))
        for worker in workers:
            worker.leave()

    def judge(self, samples, case, batch, where):
        bound = fastest(samples, BOUNDS)
        rival = fastest(samples, [name for name in samples if name not in (LOCKSTEP, *BOUNDS)])
        limit = OF_RIVAL[case, batch]
        if rival and bound and ratio(samples, bound, rival) < limit:
            print(f"  judged by {bound}, whose products alone make {ratio(samples, bound, rival):.2f} of {rival}'s speed")
            self.at_least("of the products alone",
                          f"{where} {bound} ({ratio(samples, LOCKSTEP, rival):.2f} of {rival})",
                          ratio(samples, LOCKSTEP, bound), OF_BOUND[case, batch])
        elif rival:
            self.at_least("of the best rival's speed", f"{where} {rival}", ratio(samples, LOCKSTEP, rival), limit)

    def weak_scaling(self):
        for rows in filter(lambda rows: self.wanted(f"weak-{rows}"), WEAK):
            command = [self.mirrored, "--as", "mirrored"]
            many = self.start_workers([(LOCKSTEP, command)], REPLICAS, self.cores)[0]
            one = self.start_workers([("1 replica", command)], 1, self.cores[-1:])[0]
            entries = [Entry(many.name, many, "mlp", rows * REPLICAS), Entry(one.name, one, "mlp", rows)]
            samples, noisy, _ = self.compare(entries, f"mlp, {rows} rows a replica", case="mlp", rows=rows)
            if len(samples) == len(entries):
                self.at_least("weak scaling", f"{rows} rows a replica" + (" (noisy)" if noisy else ""),
                              ratio(samples, LOCKSTEP, one.name), WEAK_SCALING)
            many.leave()
            one.leave()

    def overhead(self):
        if not self.wanted("tiny"):
            return
        workers = self.start_workers([(LOCKSTEP, [self.mirrored, "--as", "mirrored"]),
                                      ("Taskflow", [self.mirrored, "--as", "taskflow"])], REPLICAS, self.cores)
        entries = [Entry(worker.name, worker, "tiny", TINY_REPLICAS) for worker in workers]
        samples, noisy, losses = self.compare(entries, f"tiny, {TINY_REPLICAS} replicas on {REPLICAS} threads",
                                              case="tiny", replicas=TINY_REPLICAS)
        self.check_losses(losses)
        if len(samples) == len(entries):
            self.at_most("time, of a step by hand in Taskflow",
                         f"{TINY_REPLICAS} replicas" + (" (noisy)" if noisy else ""),
                         ratio(samples, "Taskflow", LOCKSTEP), TINY_OVERHEAD)
        for worker in workers:
            worker.leave()


def add_arguments(parser):
    parser.add_argument("--only", action="append", choices=PARTS)
    parser.add_argument("--binaries", type=pathlib.Path, default=BINARIES)


def main():
    options = parse_options(__doc__.splitlines()[0], add_arguments)
    options.binaries = options.binaries.resolve()
    if not all(is_built(options.binaries / name) for name in ("bench_mirrored_step", "bench_training_step")):
        return 1
    if len(os.sched_getaffinity(0)) < REPLICAS:
        print(f"two replicas need {REPLICAS} cores", file=sys.stderr)
        return 1
    Bench(options).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
