"""JAX: pmap over two host devices, gradients averaged by pmean, parameters donated. The models are those of training_step."""

import argparse
import functools
import os
import pathlib
import sys

REPLICAS = 2
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={REPLICAS}"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "training_step"))
import jax
import jax.numpy as jnp

import peer_jax as models
import worker


def make_step(case, batch):
    def everywhere(tree):
        return jax.pmap(lambda _: tree)(jnp.arange(REPLICAS))

    p = {name: jnp.array(array) for name, array in worker.parameters(case).items()}
    x, target = (jax.pmap(lambda part: part)(array.reshape(REPLICAS, batch // REPLICAS, *array.shape[1:]))
                 for array in worker.batch_of(case, batch))
    if case == "transformer":
        zeros = jax.tree.map(jnp.zeros_like, p)
        state, update = everywhere((jnp.float32(0), zeros, zeros)), models.adam
    else:
        state, update = (), models.sgd
    p = everywhere(p)

    @functools.partial(jax.pmap, axis_name="replicas", donate_argnums=(0, 1))
    def step(p, state, x, target):
        loss, gradients = jax.value_and_grad(models.MODELS[case])(p, x, target)
        p, state = update(worker.LEARNING_RATE[case], p, state, jax.lax.pmean(gradients, "replicas"))
        return p, state, loss

    def steps(count):
        nonlocal p, state
        for _ in range(count):
            p, state, loss = step(p, state, x, target)
            # Several steps under way starve each other's all-reduce of threads: XLA gives up after 40 seconds.
            jax.block_until_ready(p)
        return float(loss.mean())

    return steps


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=REPLICAS)
    parser.parse_args()
    worker.serve("JAX", jax.__version__, make_step)
