"""PyTorch: DistributedDataParallel over Gloo, two processes with one thread each; --compile: torch.compile of the loss.

The models are those of training_step. This process is rank 0 and the worker; rank 1 does what it says through a pipe.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "training_step"))
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
import torch
import torch.distributed as dist

import peer_torch as models
import worker

REPLICAS = 2


class Loss(torch.nn.Module):
    def __init__(self, case, compiled):
        super().__init__()
        arrays = worker.parameters(case).items()
        self.p = torch.nn.ParameterDict({name: models.to_torch(case, name, array) for name, array in arrays})
        self.loss_of = torch.compile(models.MODELS[case], dynamic=False) if compiled else models.MODELS[case]

    def forward(self, x, target):
        return self.loss_of(dict(self.p), x, target)


def make_step(case, batch, rank, compiled):
    torch._dynamo.reset()
    model = torch.nn.parallel.DistributedDataParallel(Loss(case, compiled), gradient_as_bucket_view=True)
    x, target = (torch.from_numpy(array).chunk(REPLICAS)[rank] for array in worker.batch_of(case, batch))
    make = torch.optim.Adam if case == "transformer" else torch.optim.SGD
    optimizer = make(model.parameters(), lr=worker.LEARNING_RATE[case], fused=True)

    def steps(count):
        for _ in range(count):
            optimizer.zero_grad(set_to_none=True)
            loss = model(x, target)
            loss.backward()
            optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        return total.item() / REPLICAS

    return steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=REPLICAS)  # one each
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--store", help="of rank 1: the file where the ranks meet")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)

    rank = 1 if arguments.store else 0
    store = arguments.store or os.path.join(tempfile.mkdtemp(), "store")
    if rank == 0:
        other = subprocess.Popen([sys.executable, *sys.argv, "--store", store], stdin=subprocess.PIPE, text=True,
                                 stdout=subprocess.DEVNULL)
    answers = os.dup(1)
    os.dup2(2, 1)  # Gloo prints when it meets others, which is no answer
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=REPLICAS)
    os.dup2(answers, 1)

    def make(case, batch):
        return make_step(case, batch, rank, arguments.compile)

    if rank == 1:
        worker.follow(make)
    else:
        worker.serve("DDP-compile" if arguments.compile else "DDP", torch.__version__, worker.lead(make, other))
        other.stdin.close()
        other.wait()
    os._exit(0)  # Gloo's threads do not end by themselves


if __name__ == "__main__":
    main()
