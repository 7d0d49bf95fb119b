"""The cases of bench/gpu for the Python rivals; models.h has the C++ side, training_step/worker.py the generator.

A case is a model and its arithmetic: "mlp-tf32", "block-bf16". In bf16 weights, gradients, activations and the optimizer's
moments are bf16, and the loss is computed in f32.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "training_step"))
import worker

SEQUENCE, WIDTH, HEADS = 512, 1024, 16
LEARNING_RATE = {"mlp": 0.02, "block": 1e-4}
WEIGHT_DECAY = 0.01
STEPS_PER_LOSS = 10  # everybody fetches the loss as often

PARAMETERS = {
    "mlp": [
        ("w1", (784, 4096), 0.07), ("b1", (4096,), 0), ("w2", (4096, 4096), 0.03), ("b2", (4096,), 0),
        ("w3", (4096, 10), 0.03), ("b3", (10,), 0),
    ],
    "block": [
        ("scale1", (WIDTH,), None), ("shift1", (WIDTH,), 0),
        ("wqkv", (WIDTH, 3 * WIDTH), 0.04), ("bqkv", (3 * WIDTH,), 0),
        ("wo", (WIDTH, WIDTH), 0.05), ("bo", (WIDTH,), 0),
        ("scale2", (WIDTH,), None), ("shift2", (WIDTH,), 0),
        ("w1", (WIDTH, 4 * WIDTH), 0.035), ("b1", (4 * WIDTH,), 0),
        ("w2", (4 * WIDTH, WIDTH), 0.035), ("b2", (WIDTH,), 0),
    ],
}


def model_of(case):
    return case.split("-")[0]


def is_bf16(case):
    return case.endswith("-bf16")


def parameters(case):
    return worker.initial_values(PARAMETERS[model_of(case)])


def batch_of(case, batch):
    """(inputs, labels or targets); inputs are rounded to bf16 in such a case, targets stay f32."""
    if model_of(case) == "mlp":
        return worker.batch_of("mlp", batch)
    shape = (batch, SEQUENCE, WIDTH)
    return worker.uniform(100, shape, 1), worker.uniform(101, shape, 1)


def steps_of(make, wait):
    """The function that serve() wants: make() makes a step and gives its loss, wait(loss) fetches it."""
    def steps(count):
        for done in range(1, count + 1):
            loss = make()
            if done % STEPS_PER_LOSS == 0 or done == count:
                value = wait(loss)
        return value

    return steps
