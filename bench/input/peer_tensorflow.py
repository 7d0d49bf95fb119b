"""tf.data: batches that are taken inside a tf.function, with two threads of its own and what it tunes by itself."""

import argparse
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "training_step"))
import worker

FOLDER = pathlib.Path(os.environ["BENCH_INPUT"])
SHUFFLED, FEATURES, IMAGES, COLUMNS = 10_000, 8, 60_000, 10


def dataset_of(tf, case, batch):
    tune = tf.data.AUTOTUNE
    if case in ("tfrecord", "gzip"):
        spec = {"x": tf.io.FixedLenFeature([FEATURES], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}
        name, packed = ("small.tfrecord", "") if case == "tfrecord" else ("small.tfrecord.gz", "GZIP")
        records = tf.data.TFRecordDataset(str(FOLDER / name), compression_type=packed, buffer_size=1 << 20)
        return (records.shuffle(SHUFFLED, seed=1).repeat().batch(batch)
                .map(lambda rows: tf.io.parse_example(rows, spec), num_parallel_calls=tune).prefetch(tune))
    if case == "slices":
        images, labels = tf.fill([IMAGES, 28, 28], 0.5), tf.range(IMAGES, dtype=tf.int64) % 10
        return (tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(IMAGES, seed=1).repeat()
                .batch(batch, num_parallel_calls=tune).prefetch(tune))
    if case == "csv":
        columns = [tf.constant([], tf.int64)] + [tf.constant([], tf.float32)] * COLUMNS
        return (tf.data.TextLineDataset(str(FOLDER / "table.csv"), buffer_size=1 << 20).skip(1).repeat().batch(batch)
                .map(lambda lines: tf.io.decode_csv(lines, columns), num_parallel_calls=tune).prefetch(tune))
    raise ValueError(f"no case {case}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    threads = parser.parse_args().threads
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(threads)
    tf.config.threading.set_intra_op_parallelism_threads(threads)

    def make(case, batch):
        options = tf.data.Options()
        options.threading.private_threadpool_size = threads
        options.deterministic = True
        iterator = iter(dataset_of(tf, case, batch).with_options(options))

        @tf.function
        def take(count):
            rows = tf.constant(0, tf.int64)
            for _ in tf.range(count):
                rows = tf.shape(tf.nest.flatten(next(iterator))[0], tf.int64)[0]
            return rows

        def steps(count):
            return float(take(tf.constant(count, tf.int64)))

        return steps

    worker.serve("tf.data", tf.__version__, make)


main()
