"""JAX on a card: one jit-compiled function a step, which is given its parameters to reuse. The models are those of training_step.

Attention in bf16 is cuDNN's, if it can be compiled; else XLA's.
"""

import argparse
import functools
import os
import sys

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import models  # says where the last two are
import jax
import jax.numpy as jnp

import peer_jax as cpu
import worker


def loss_function(case, attention):
    if models.model_of(case) == "mlp":
        return cpu.mlp
    return functools.partial(cpu.transformer, heads=models.HEADS, attention=attention)


def compile_step(case, attention, *arguments):
    rate = models.LEARNING_RATE[models.model_of(case)]
    loss_of = loss_function(case, attention)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(p, state, x, target):
        loss, gradients = jax.value_and_grad(loss_of)(p, x, target)
        if models.model_of(case) == "mlp":
            p, state = cpu.sgd(rate, p, state, gradients)
        else:
            p, state = cpu.adam(rate, p, state, gradients, models.WEIGHT_DECAY)
        return p, state, loss

    with jax.default_matmul_precision("default" if models.is_bf16(case) else "tensorfloat32"):
        return step.lower(*arguments).compile()


def make_step(case, batch):
    dtype = jnp.bfloat16 if models.is_bf16(case) else jnp.float32
    p = {name: jnp.array(array).astype(dtype) for name, array in models.parameters(case).items()}
    x, target = (jnp.array(array) for array in models.batch_of(case, batch))
    x = x.astype(dtype)
    state = ()
    if models.model_of(case) == "block":
        state = jnp.float32(0), jax.tree.map(jnp.zeros_like, p), jax.tree.map(jnp.zeros_like, p)
    for attention in ("cudnn", "xla") if models.is_bf16(case) else ("xla",):
        try:
            step = compile_step(case, attention, p, state, x, target)
            break
        except Exception as error:
            if attention == "xla":
                raise
            print(f"JAX: no attention by {attention}: {error}", file=sys.stderr)

    def make():
        nonlocal p, state
        p, state, loss = step(p, state, x, target)
        return loss

    def wait(loss):
        value = float(loss)
        jax.block_until_ready(p)  # the update too
        return value

    return models.steps_of(make, wait)


def plan(case, batch):
    """Of the process: of this case, if it has no other."""
    memory = jax.devices()[0].memory_stats() or {}
    return {"peak_bytes": memory["peak_bytes_in_use"]} if "peak_bytes_in_use" in memory else {}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.parse_args()
    if jax.default_backend() != "gpu":
        raise SystemExit("JAX finds no card")
    worker.serve("JAX", jax.__version__, make_step, plan)
