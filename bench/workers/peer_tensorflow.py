"""TensorFlow: MultiWorkerMirroredStrategy, two processes with one thread each, one tf.function a step (XLA off).

The models are those of training_step, and so are the fused update kernels. This process is the chief and the worker; the other one
does what it says through a pipe.
"""

import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "training_step"))
import worker

WORKERS = 2


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def make_step(tf, models, strategy, rank, case, batch):
    with strategy.scope():
        p = {name: tf.Variable(array) for name, array in worker.parameters(case).items()}
        variables = list(p.values())
        moments = [(tf.Variable(tf.zeros(v.shape)), tf.Variable(tf.zeros(v.shape))) for v in variables]
        power1, power2 = tf.Variable(0.9), tf.Variable(0.999)
    rate = tf.constant(worker.LEARNING_RATE[case])
    rows = batch // WORKERS
    x, target = (tf.constant(array[rank * rows:(rank + 1) * rows]) for array in worker.batch_of(case, batch))

    def replica(x, target):
        with tf.GradientTape() as tape:
            loss = models.MODELS[case](p, x, target)
        context = tf.distribute.get_replica_context()
        *gradients, loss = context.all_reduce(tf.distribute.ReduceOp.MEAN, [*tape.gradient(loss, variables), loss])
        for v, g, (m1, m2) in zip(variables, gradients, moments):
            if case == "transformer":
                tf.raw_ops.ResourceApplyAdam(
                    var=v.handle, m=m1.handle, v=m2.handle, beta1_power=power1.read_value(),
                    beta2_power=power2.read_value(), lr=rate, beta1=0.9, beta2=0.999, epsilon=1e-8, grad=g)
            else:
                tf.raw_ops.ResourceApplyGradientDescent(var=v.handle, alpha=rate, delta=g)
        if case == "transformer":
            for power, decay in ((power1, 0.9), (power2, 0.999)):
                tf.raw_ops.AssignVariableOp(resource=power.handle, value=power.read_value() * decay)
        return loss

    @tf.function(jit_compile=False)
    def step(x, target):
        return strategy.run(replica, args=(x, target))

    def steps(count):
        for _ in range(count):
            loss = step(x, target)
        return float(strategy.experimental_local_results(loss)[0].numpy())

    return steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=WORKERS)  # one each
    parser.add_argument("--config", help="of the other one: its TF_CONFIG")
    arguments = parser.parse_args()
    rank = 1 if arguments.config else 0
    if rank == 0:
        cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(WORKERS)]}
        configs = [json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}}) for i in range(WORKERS)]
        other = subprocess.Popen([sys.executable, *sys.argv, "--config", configs[1]], stdin=subprocess.PIPE, text=True,
                                 stdout=subprocess.DEVNULL)
        os.environ["TF_CONFIG"] = configs[0]
    else:
        os.environ["TF_CONFIG"] = arguments.config
    import peer_tensorflow as models

    tf = models.tf
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING))

    def make(case, batch):
        return make_step(tf, models, strategy, rank, case, batch)

    if rank == 1:
        worker.follow(make)
    else:
        worker.serve("TensorFlow", tf.__version__, worker.lead(make, other))
        other.kill()
    os._exit(0)  # the other one may be gone


if __name__ == "__main__":
    main()
