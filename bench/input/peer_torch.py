"""PyTorch's DataLoader with two worker processes: rows in memory by lists of indices. It has no reader of the other formats."""

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "training_step"))
import worker

IMAGES = 60_000


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    threads = parser.parse_args().threads
    import torch
    from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

    torch.set_num_threads(1)

    class Rows(Dataset):
        def __init__(self):
            self.images, self.labels = torch.full((IMAGES, 28, 28), 0.5), torch.arange(IMAGES) % 10

        def __len__(self):
            return IMAGES

        def __getitem__(self, rows):
            rows = torch.as_tensor(rows)
            return self.images[rows], self.labels[rows]

    def make(case, batch):
        if case != "slices":
            raise ValueError(f"no reader for {case}")
        rows = Rows()
        loader = DataLoader(rows, sampler=BatchSampler(RandomSampler(rows), batch, drop_last=False), batch_size=None,
                            num_workers=threads, persistent_workers=True, prefetch_factor=4)

        def batches():
            while True:
                yield from loader

        iterator = batches()

        def steps(count):
            for _ in range(count):
                images, _ = next(iterator)
            return float(len(images))

        return steps

    worker.serve("DataLoader", torch.__version__, make)


if __name__ == "__main__":
    main()
