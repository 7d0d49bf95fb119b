"""What the Python rivals share: data, sizes of the models, and the protocol of a worker.

A worker is a process that waits for commands on its standard input and does nothing between them:

    start CASE BATCH          build the step and make 20 steps: answers the loss at the first and at the last of them
    run CASE BATCH STEPS      make that many steps: answers the seconds they took, and the CPU time of all threads
    plan CASE BATCH           answers what the worker knows about the case: words, each "name=number"
    (end of input)            leave

It begins by saying who it is: "NAME VERSION". Answers are lines on standard output; everything else goes to standard
error. Data and initial weights are the same numbers for everybody (data.h has the C++ side), so that all losses agree:
a rival that did other work would show.
"""

import os
import sys
import time

import numpy as np

WARM_UP_STEPS = 20
# What plain SGD and Adam use.
LEARNING_RATE = {"mlp": 0.05, "cnn": 0.02, "transformer": 1e-3}
SEQUENCE, WIDTH, HEADS = 128, 256, 4

# Per model its parameters, in the order of their seeds: (name, shape, half of the range of the initial values).
# Convolutions are [height, width, in, out], dense weights [in, out].
PARAMETERS = {
    "mlp": [
        ("w1", (784, 512), 0.07), ("b1", (512,), 0), ("w2", (512, 512), 0.08), ("b2", (512,), 0),
        ("w3", (512, 10), 0.1), ("b3", (10,), 0),
    ],
    "cnn": [
        ("k1", (3, 3, 1, 32), 0.3), ("b1", (32,), 0), ("k2", (3, 3, 32, 64), 0.08), ("b2", (64,), 0),
        ("w", (7 * 7 * 64, 10), 0.04), ("b", (10,), 0),
    ],
    "transformer": [
        ("scale1", (WIDTH,), None), ("shift1", (WIDTH,), 0),
        ("wqkv", (WIDTH, 3 * WIDTH), 0.08), ("bqkv", (3 * WIDTH,), 0),
        ("wo", (WIDTH, WIDTH), 0.1), ("bo", (WIDTH,), 0),
        ("scale2", (WIDTH,), None), ("shift2", (WIDTH,), 0),
        ("w1", (WIDTH, 4 * WIDTH), 0.07), ("b1", (4 * WIDTH,), 0),
        ("w2", (4 * WIDTH, WIDTH), 0.07), ("b2", (WIDTH,), 0),
    ],
}


def bits(seed, count):
    h = np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B1) + np.uint32(seed * 0x85EBCA6B & 0xFFFFFFFF)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        h ^= h >> np.uint32(shift)
        h *= np.uint32(factor)
    return h ^ (h >> np.uint32(16))


def uniform(seed, shape, half):
    """Numbers in [-half, half)."""
    unit = (bits(seed, int(np.prod(shape))) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
    return (unit * np.float32(half)).reshape(shape)


def parameters(case):
    return initial_values(PARAMETERS[case])


def initial_values(table):
    """Name -> initial value; a half range of None means ones."""
    return {
        name: np.ones(shape, np.float32) if half is None else uniform(seed + 1, shape, half)
        for seed, (name, shape, half) in enumerate(table)
    }


def batch_of(case, batch):
    """(inputs, labels or targets)"""
    if case == "transformer":
        return uniform(100, (batch, SEQUENCE, WIDTH), 1), uniform(101, (batch, SEQUENCE, WIDTH), 1)
    shape = (batch, 784) if case == "mlp" else (batch, 28, 28, 1)
    return uniform(100, shape, 1), (bits(101, batch) % np.uint32(10)).astype(np.int64)


def serve(name, version, make_step, plan=lambda case, batch: {}):
    """make_step(case, batch) gives a function that makes n steps, waits for them and returns the last loss.

    plan(case, batch) gives what there is to know about the case: name -> number.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer

    def answer(*words):
        print(*words, file=answers, flush=True)

    answer(name, version)
    steps = {}
    for line in sys.stdin:
        command, case, batch, *rest = line.split()
        key = (case, int(batch))
        try:
            if command == "start":
                steps[key] = make_step(*key)
                first = steps[key](1)
                answer(first, steps[key](WARM_UP_STEPS - 1))
            elif command == "run":
                begin, used = time.perf_counter(), time.process_time()
                steps[key](int(rest[0]))
                answer(time.perf_counter() - begin, time.process_time() - used)
            elif command == "plan":
                answer(*(f"{what}={number}" for what, number in plan(*key).items()))
            else:
                answer("error: unknown command", command)
        except Exception as error:  # the driver goes on without this one
            print(f"{name}: {error}", file=sys.stderr)
            answer("error:", " ".join(str(error).split())[:200])


def follow(make):
    """Of a participant that is two processes, the other one: lines "CASE BATCH 0" make a step, others with a count make so many."""
    made = {}
    for line in sys.stdin:
        case, batch, count = line.split()
        if int(count) == 0:
            made[case, batch] = make(case, int(batch))
        else:
            made[case, batch](int(count))


def lead(make, other):
    """For serve(): makes steps here and in the other process, which follows."""
    def make_both(case, batch):
        def tell(count):
            print(case, batch, count, file=other.stdin, flush=True)

        tell(0)
        mine = make(case, batch)

        def steps(count):
            tell(count)
            return mine(count)

        return steps

    return make_both
