"""TensorFlow: MirroredStrategy on two logical CPU devices, one tf.function a step (XLA off).

The models are those of training_step, and so are the fused update kernels, here on each replica's copy.
"""

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "training_step"))
import peer_tensorflow as models
import worker

tf = models.tf
REPLICAS = 2


def make_step(strategy, case, batch):
    with strategy.scope():
        p = {name: tf.Variable(array) for name, array in worker.parameters(case).items()}
        variables = list(p.values())
        moments = [(tf.Variable(tf.zeros(v.shape)), tf.Variable(tf.zeros(v.shape))) for v in variables]
    rate = tf.constant(worker.LEARNING_RATE[case])
    power1, power2 = tf.Variable(0.9), tf.Variable(0.999)
    rows = batch // REPLICAS

    def part(array):
        def of(context):
            replica = context.replica_id_in_sync_group
            return tf.constant(array[replica * rows:(replica + 1) * rows])
        return strategy.experimental_distribute_values_from_function(of)

    x, target = (part(array) for array in worker.batch_of(case, batch))

    def sgd(v, g):
        tf.raw_ops.ResourceApplyGradientDescent(var=v.handle, alpha=rate, delta=g)

    def adam(v, g, m1, m2, power1, power2):
        tf.raw_ops.ResourceApplyAdam(
            var=v.handle, m=m1.handle, v=m2.handle, beta1_power=power1, beta2_power=power2, lr=rate, beta1=0.9,
            beta2=0.999, epsilon=1e-8, grad=g)

    def apply(strategy, gradients, powers):
        reduced = strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.MEAN, list(zip(gradients, variables)))
        for v, g, m in zip(variables, reduced, moments):
            if case == "transformer":
                strategy.extended.update(v, adam, args=(g, *m, *powers))
            else:
                strategy.extended.update(v, sgd, args=(g,))

    def replica(x, target, powers):
        with tf.GradientTape() as tape:
            loss = models.MODELS[case](p, x, target)
        gradients = tape.gradient(loss, variables)
        tf.distribute.get_replica_context().merge_call(apply, args=(gradients, powers))
        return loss

    @tf.function(jit_compile=False)
    def step(x, target):
        losses = strategy.run(replica, args=(x, target, (power1.read_value(), power2.read_value())))
        if case == "transformer":
            power1.assign(power1 * 0.9)
            power2.assign(power2 * 0.999)
        return strategy.experimental_local_results(losses)

    def steps(count):
        for _ in range(count):
            losses = step(x, target)
        return sum(float(loss.numpy()) for loss in losses) / REPLICAS

    return steps


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=REPLICAS)
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
    tf.config.threading.set_inter_op_parallelism_threads(arguments.threads)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * REPLICAS)
    mirrored = tf.distribute.MirroredStrategy([f"CPU:{r}" for r in range(REPLICAS)])
    worker.serve("TensorFlow", tf.__version__, lambda case, batch: make_step(mirrored, case, batch))
