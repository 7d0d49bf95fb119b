"""JAX: two processes with one device each, gradients averaged by pmean over Gloo. The models are those of training_step.

This process is rank 0 and the worker; rank 1 does what it says through a pipe.
"""

import argparse
import functools
import os
import pathlib
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "training_step"))
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
import jax

import worker

WORKERS = 2


def make_step(case, batch, rank):
    import jax.numpy as jnp

    import peer_jax as models

    def here(tree):
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], tree)

    rows = batch // WORKERS
    p = here({name: jnp.array(array) for name, array in worker.parameters(case).items()})
    x, target = (here(array[rank * rows:(rank + 1) * rows]) for array in worker.batch_of(case, batch))
    if case == "transformer":
        state, update = (here(jnp.float32(0)), jax.tree.map(jnp.zeros_like, p), jax.tree.map(jnp.zeros_like, p)), models.adam
    else:
        state, update = (), models.sgd

    @functools.partial(jax.pmap, axis_name="workers", donate_argnums=(0, 1))
    def step(p, state, x, target):
        loss, gradients = jax.value_and_grad(models.MODELS[case])(p, x, target)
        loss, gradients = jax.lax.pmean((loss, gradients), "workers")
        p, state = update(worker.LEARNING_RATE[case], p, state, gradients)
        return p, state, loss

    def steps(count):
        nonlocal p, state
        for _ in range(count):
            p, state, loss = step(p, state, x, target)
        jax.block_until_ready(p)
        return float(loss.addressable_data(0)[0])

    return steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=WORKERS)  # one each
    parser.add_argument("--coordinator", help="of rank 1: where the ranks meet")
    arguments = parser.parse_args()
    rank = 1 if arguments.coordinator else 0
    coordinator = arguments.coordinator
    if rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
        other = subprocess.Popen([sys.executable, *sys.argv, "--coordinator", coordinator], stdin=subprocess.PIPE,
                                 text=True, stdout=subprocess.DEVNULL)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator, WORKERS, rank)

    def make(case, batch):
        return make_step(case, batch, rank)

    if rank == 1:
        worker.follow(make)
    else:
        worker.serve("JAX", jax.__version__, worker.lead(make, other))
        other.kill()
    os._exit(0)  # the other one may be gone


if __name__ == "__main__":
    main()
