"""PyTorch on a card: eager; --compile: torch.compile that uses CUDA graphs; --graph: the whole step in one CUDA graph.

    --graph                  of eager kernels
    --graph --compile        of what torch.compile generates

Fused attention, fused optimizers, TF32 where the case says so: what PyTorch's guides recommend for cards. The models are
those of training_step.
"""

import argparse
import functools
import os

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")  # several of these compile at one time

import models  # says where the next two are
import torch

import peer_torch as cpu
import worker

LOSSES = {"mlp": cpu.mlp, "block": functools.partial(cpu.transformer, heads=models.HEADS)}


class Loss(torch.nn.Module):
    """Parameters of a module stay where they are: CUDA graphs need no copies of them."""

    def __init__(self, case, dtype):
        super().__init__()
        self.case = models.model_of(case)
        self.names = []
        for name, array in models.parameters(case).items():
            self.names.append(name)
            tensor = cpu.to_torch(case, name, array).to("cuda", dtype)
            self.register_parameter(name, torch.nn.Parameter(tensor))

    def forward(self, x, target):
        return LOSSES[self.case]({name: getattr(self, name) for name in self.names}, x, target)


def make_optimizer(case, parameters):
    rate = models.LEARNING_RATE[models.model_of(case)]
    if models.model_of(case) == "mlp":
        return torch.optim.SGD(parameters, lr=rate, fused=True)
    return torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=models.WEIGHT_DECAY,
                             fused=True, capturable=True)


def captured(make, module, optimizer):
    """make() as one CUDA graph. It runs a few times before, which the module and the optimizer must not show."""
    before = [p.detach().clone() for p in module.parameters()]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            make()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = make()
    with torch.no_grad():
        for p, value in zip(module.parameters(), before):
            p.copy_(value)
            for slot in optimizer.state[p].values():
                if torch.is_tensor(slot):
                    slot.zero_()
    torch.cuda.synchronize()

    def replay():
        graph.replay()
        return loss

    replay.uses = make, module, optimizer  # the graph holds no references to the memory that it reads
    return replay


def make_step(case, batch, arguments):
    dtype = torch.bfloat16 if models.is_bf16(case) else torch.float32
    module = Loss(case, dtype)
    x, target = (torch.from_numpy(array).cuda() for array in models.batch_of(case, batch))
    x = x.to(dtype)
    optimizer = make_optimizer(case, list(module.parameters()))
    loss_of = module
    if arguments.compile:
        torch._dynamo.reset()
        mode = "default" if arguments.graph else "reduce-overhead"
        if not arguments.graph:
            for tensor in (x, target):
                torch._dynamo.mark_static_address(tensor)
        loss_of = torch.compile(module, mode=mode, dynamic=False)

    def make():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(x, target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    if arguments.graph:
        make = captured(make, module, optimizer)

    def wait(loss):
        value = loss.item()
        torch.cuda.synchronize()  # the update too
        return value

    return models.steps_of(make, wait)


def plan(case, batch):
    """Of the process: of this case, if it has no other."""
    return {"peak_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--graph", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no card")
    torch.set_num_threads(arguments.threads)
    torch.set_float32_matmul_precision("high")
    name = "torch" + ("-compile" if arguments.compile else "") + ("-graph" if arguments.graph else "")
    worker.serve(name, torch.__version__, lambda case, batch: make_step(case, batch, arguments), plan)
