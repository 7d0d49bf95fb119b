"""PyTorch: eager, or with --compile through torch.compile (which needs a C++ compiler at run time).

Matrices are stored as nn.Linear stores them, images and kernels channels-last, attention is the fused one, optimizers
are the fused ones: the settings PyTorch's own guides recommend for the CPU.
"""

import argparse

import torch
import torch.nn.functional as F

import worker


def to_torch(case, name, array):
    t = torch.from_numpy(array)
    if t.dim() == 4:  # a kernel: [height, width, in, out] -> [out, in, height, width]
        return t.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
    if case == "cnn" and name == "w":  # images are flattened channel by channel
        t = t.reshape(7, 7, 64, 10).permute(2, 0, 1, 3).reshape(7 * 7 * 64, 10)
    return t.t().contiguous() if t.dim() == 2 else t.clone()


def mlp(p, x, labels):
    h = F.relu(F.linear(x, p["w1"], p["b1"]))
    h = F.relu(F.linear(h, p["w2"], p["b2"]))
    return F.cross_entropy(F.linear(h, p["w3"], p["b3"]).float(), labels)


def cnn(p, x, labels):
    h = F.max_pool2d(F.relu(F.conv2d(x, p["k1"], p["b1"], padding=1)), 2)
    h = F.max_pool2d(F.relu(F.conv2d(h, p["k2"], p["b2"], padding=1)), 2)
    return F.cross_entropy(F.linear(h.flatten(1), p["w"], p["b"]), labels)


def transformer(p, x, target, heads=worker.HEADS):
    batch, sequence, width = x.shape
    h = F.layer_norm(x, (width,), p["scale1"], p["shift1"])
    qkv = F.linear(h, p["wqkv"], p["bqkv"]).view(batch, sequence, 3, heads, width // heads)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, sequence, width)
    x = x + F.linear(attended, p["wo"], p["bo"])
    h = F.layer_norm(x, (width,), p["scale2"], p["shift2"])
    h = F.gelu(F.linear(h, p["w1"], p["b1"]))
    x = x + F.linear(h, p["w2"], p["b2"])
    return F.mse_loss(x.float(), target)


MODELS = {"mlp": mlp, "cnn": cnn, "transformer": transformer}


def make_step(case, batch, compiled):
    torch._dynamo.reset()
    p = {name: to_torch(case, name, array).requires_grad_() for name, array in worker.parameters(case).items()}
    x, target = (torch.from_numpy(array) for array in worker.batch_of(case, batch))
    if case == "cnn":
        x = x.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    make = torch.optim.Adam if case == "transformer" else torch.optim.SGD
    optimizer = make(p.values(), lr=worker.LEARNING_RATE[case], fused=True)
    loss_of = torch.compile(MODELS[case], dynamic=False) if compiled else MODELS[case]

    def steps(count):
        for _ in range(count):
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(p, x, target)
            loss.backward()
            optimizer.step()
        return loss.item()

    return steps


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_num_interop_threads(1)
    name = "torch.compile" if arguments.compile else "torch-eager"
    worker.serve(name, torch.__version__, lambda case, batch: make_step(case, batch, arguments.compile))
