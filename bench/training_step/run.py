#!/usr/bin/env python3
"""bench/training_step - steps per second of whole training steps, Lockstep beside its rivals, in one run.

    bench/training_step/run.py [--quick] [--case mlp-64] [--threads 1|2] [--rounds N] [--without NAME]
                               [--binary build/release/bench/bench_training_step] [--json FILE] [--cpu-time]

Every participant is a process that waits on its standard input while others work; all are pinned to the same cores.
Rivals are those that setup_peers.sh could install into bench/peers; without it Lockstep and BLAS run alone. Method and
targets: bench/README.md. --cpu-time compares CPU time, for one thread on a busy machine: no figure to quote.
Exit status: 0, also where targets are missed; 1 where Lockstep cannot run; 2 for a wrong argument.
"""

import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
from contest import BINARIES, PEERS, Contest, Entry, fastest, is_built, parse_options, ratio

CASES = [("mlp", 64), ("mlp", 256), ("mlp", 1024), ("cnn", 128), ("transformer", 8)]
# Of the speed of the step's products alone, by batch and threads.
OF_BOUND = {(64, 1): 0.88, (256, 1): 0.94, (1024, 1): 0.96, (64, 2): 0.75, (256, 2): 0.85, (1024, 2): 0.90}
# Of the best rival's speed; 1 where nothing is said.
OF_RIVAL = {("mlp", 64, 2): 1.5}
OF_LIVE_SET = 1.15

LOCKSTEP = "Lockstep"
BOUNDS = ("BLAS", "BLAS halves")


class Bench(Contest):
    def __init__(self, options):
        super().__init__(options, HERE, LOCKSTEP, BOUNDS)

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
        workers = self.start_workers(self.commands(threads), threads, cores)
        print(f"{threads} thread{'s' if threads > 1 else ''}, cores {cores}: " +
              ", ".join(f"{worker.name} {worker.version}" for worker in workers))
        try:
            for case, batch in CASES:
                if not self.options.case or f"{case}-{batch}" in self.options.case:
                    self.run_case([Entry(worker.name, worker, case, batch) for worker in workers], threads)
        finally:
            for worker in workers:
                worker.leave()

    def run_case(self, entries, threads):
        case, batch = entries[0].case, entries[0].batch
        samples, noisy, losses = self.compare(
            entries, f"{case}, batch {batch}, {threads} thread{'s' if threads > 1 else ''}",
            case=case, batch=batch, threads=threads)
        self.check_losses(losses)
        if LOCKSTEP not in samples:
            return
        where = f"{case}-{batch}/{threads}" + (" (noisy)" if noisy else "")
        bound = fastest(samples, BOUNDS)
        if bound and (batch, threads) in OF_BOUND:
            self.at_least("of the products alone", f"{where} {bound}", ratio(samples, LOCKSTEP, bound),
                          OF_BOUND[batch, threads])
        rival = fastest(samples, [name for name in samples if name not in (LOCKSTEP, *BOUNDS)])
        if rival:
            self.at_least("of the best rival's speed", f"{where} {rival}", ratio(samples, LOCKSTEP, rival),
                          OF_RIVAL.get((case, batch, threads), 1))
        lockstep = next(entry for entry in entries if entry.name == LOCKSTEP)
        self.judge_plan(lockstep.ask("plan"), where, threads)

    def judge_plan(self, answer, where, threads):
        """The answer: words, each "name=number"."""
        plan = dict(word.split("=") for word in answer if "=" in word)
        if not plan:
            return
        print("  plan: " + ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in plan.items()))
        if threads == 1:
            figure = int(plan["planned_bytes"]) / int(plan["live_set_bytes"])
            self.at_most("planned memory, of the live set", where, figure, OF_LIVE_SET)


def add_arguments(parser):
    parser.add_argument("--case", action="append", choices=[f"{case}-{batch}" for case, batch in CASES])
    parser.add_argument("--threads", action="append", type=int, choices=(1, 2))
    parser.add_argument("--binary", type=pathlib.Path, default=BINARIES / "bench_training_step")
    parser.add_argument("--cpu-time", action="store_true")


def main():
    options = parse_options(__doc__.splitlines()[0], add_arguments)
    options.binary = options.binary.resolve()
    if not is_built(options.binary):
        return 1
    Bench(options).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
