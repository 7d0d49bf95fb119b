"""TensorFlow: one tf.function a step (XLA off), with the fused update kernels that its optimizers use."""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

import worker


def mlp(p, x, labels):
    h = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, p["w1"]), p["b1"]))
    h = tf.nn.relu(tf.nn.bias_add(tf.matmul(h, p["w2"]), p["b2"]))
    return cross_entropy(tf.nn.bias_add(tf.matmul(h, p["w3"]), p["b3"]), labels)


def cnn(p, x, labels):
    for kernel, bias in (("k1", "b1"), ("k2", "b2")):
        x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, p[kernel], 1, "SAME"), p[bias]))
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    return cross_entropy(tf.nn.bias_add(tf.matmul(tf.reshape(x, (x.shape[0], -1)), p["w"]), p["b"]), labels)


def transformer(p, x, target):
    batch, sequence, width = x.shape
    heads = worker.HEADS

    def norm(x, scale, shift):
        mean, variance = tf.nn.moments(x, -1, keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, shift, scale, 1e-5)

    x = tf.reshape(x, (-1, width))
    h = norm(x, p["scale1"], p["shift1"])
    qkv = tf.nn.bias_add(tf.matmul(h, p["wqkv"]), p["bqkv"])
    qkv = tf.transpose(tf.reshape(qkv, (batch, sequence, 3, heads, width // heads)), (2, 0, 3, 1, 4))
    q, k, v = tf.unstack(qkv)
    weights = tf.nn.softmax(tf.matmul(q * (width // heads) ** -0.5, k, transpose_b=True))
    attended = tf.reshape(tf.transpose(tf.matmul(weights, v), (0, 2, 1, 3)), (-1, width))
    x = x + tf.nn.bias_add(tf.matmul(attended, p["wo"]), p["bo"])
    h = norm(x, p["scale2"], p["shift2"])
    h = tf.nn.gelu(tf.nn.bias_add(tf.matmul(h, p["w1"]), p["b1"]))
    x = x + tf.nn.bias_add(tf.matmul(h, p["w2"]), p["b2"])
    return tf.reduce_mean(tf.math.squared_difference(x, tf.reshape(target, (-1, width))))


def cross_entropy(logits, labels):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


MODELS = {"mlp": mlp, "cnn": cnn, "transformer": transformer}


def make_step(case, batch):
    p = {name: tf.Variable(array) for name, array in worker.parameters(case).items()}
    x, target = (tf.constant(array) for array in worker.batch_of(case, batch))
    variables = list(p.values())
    rate = tf.constant(worker.LEARNING_RATE[case])
    moments = [(tf.Variable(tf.zeros_like(v)), tf.Variable(tf.zeros_like(v))) for v in variables]
    power1, power2 = tf.Variable(0.9), tf.Variable(0.999)

    @tf.function(jit_compile=False)
    def step(x, target):
        with tf.GradientTape() as tape:
            loss = MODELS[case](p, x, target)
        gradients = tape.gradient(loss, variables)
        if case != "transformer":
            for v, g in zip(variables, gradients):
                tf.raw_ops.ResourceApplyGradientDescent(var=v.handle, alpha=rate, delta=g)
            return loss
        for v, g, (m1, m2) in zip(variables, gradients, moments):
            tf.raw_ops.ResourceApplyAdam(
                var=v.handle, m=m1.handle, v=m2.handle, beta1_power=power1, beta2_power=power2, lr=rate,
                beta1=0.9, beta2=0.999, epsilon=1e-8, grad=g)
        power1.assign(power1 * 0.9)
        power2.assign(power2 * 0.999)
        return loss

    def steps(count):
        for _ in range(count):
            loss = step(x, target)
        return float(loss.numpy())

    return steps


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
    tf.config.threading.set_inter_op_parallelism_threads(arguments.threads)
    worker.serve("TensorFlow", tf.__version__, make_step)
