"""JAX: one jit-compiled function a step, which is given its parameters to reuse (donated arguments).

The number of threads follows from the cores the process may use.
"""

import argparse
import functools

import jax
import jax.numpy as jnp

import worker


def mlp(p, x, labels):
    h = jax.nn.relu(x @ p["w1"] + p["b1"])
    h = jax.nn.relu(h @ p["w2"] + p["b2"])
    return cross_entropy(h @ p["w3"] + p["b3"], labels)


def cnn(p, x, labels):
    for kernel, bias in (("k1", "b1"), ("k2", "b2")):
        x = jax.lax.conv_general_dilated(x, p[kernel], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x + p[bias])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return cross_entropy(x.reshape(x.shape[0], -1) @ p["w"] + p["b"], labels)


def transformer(p, x, target, heads=worker.HEADS, attention=None):
    batch, sequence, width = x.shape

    def norm(x, scale, shift):
        wide = x.astype(jnp.float32)
        wide = (wide - wide.mean(-1, keepdims=True)) * jax.lax.rsqrt(wide.var(-1, keepdims=True) + 1e-5)
        return (wide * scale + shift).astype(x.dtype)

    h = norm(x, p["scale1"], p["shift1"])
    qkv = (h @ p["wqkv"] + p["bqkv"]).reshape(batch, sequence, 3, heads, width // heads)
    q, k, v = jnp.moveaxis(qkv, 2, 0)
    attended = jax.nn.dot_product_attention(q, k, v, implementation=attention).reshape(batch, sequence, width)
    x = x + attended @ p["wo"] + p["bo"]
    h = norm(x, p["scale2"], p["shift2"])
    h = jax.nn.gelu(h @ p["w1"] + p["b1"], approximate=False)
    x = x + h @ p["w2"] + p["b2"]
    return jnp.mean(jnp.square(x.astype(jnp.float32) - target))


def cross_entropy(logits, labels):
    logits = logits.astype(jnp.float32)
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1))


MODELS = {"mlp": mlp, "cnn": cnn, "transformer": transformer}


def in_f32(formula, *trees):
    """formula of the trees' leaves, computed in f32, in the dtype of the first."""
    def leaf(first, *rest):
        return formula(*(array.astype(jnp.float32) for array in (first, *rest))).astype(first.dtype)

    return jax.tree.map(leaf, *trees)


def sgd(rate, p, state, gradients):
    return in_f32(lambda v, g: v - rate * g, p, gradients), state


def adam(rate, p, state, gradients, decay=0.0):
    """With a decay: AdamW."""
    count, m1, m2 = state
    count = count + 1
    m1 = in_f32(lambda m, g: 0.9 * m + 0.1 * g, m1, gradients)
    m2 = in_f32(lambda m, g: 0.999 * m + 0.001 * g * g, m2, gradients)
    scale = rate / (1 - 0.9**count)
    unbiased = jax.lax.rsqrt(1 - 0.999**count)
    p = in_f32(lambda v, a, b: v * (1 - rate * decay) - scale * a / (jnp.sqrt(b) * unbiased + 1e-8), p, m1, m2)
    return p, (count, m1, m2)


def make_step(case, batch):
    p = {name: jnp.array(array) for name, array in worker.parameters(case).items()}
    x, target = (jnp.array(array) for array in worker.batch_of(case, batch))
    if case == "transformer":
        state, update = (jnp.float32(0), jax.tree.map(jnp.zeros_like, p), jax.tree.map(jnp.zeros_like, p)), adam
    else:
        state, update = (), sgd

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(p, state, x, target):
        loss, gradients = jax.value_and_grad(MODELS[case])(p, x, target)
        p, state = update(worker.LEARNING_RATE[case], p, state, gradients)
        return p, state, loss

    def steps(count):
        nonlocal p, state
        for _ in range(count):
            p, state, loss = step(p, state, x, target)
        jax.block_until_ready(p)
        return float(loss)

    return steps


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.parse_args()
    worker.serve("JAX", jax.__version__, make_step)
