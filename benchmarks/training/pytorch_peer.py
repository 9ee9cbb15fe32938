"""The peer of compare.py: plain PyTorch trains the same GPT on the same kind of batches and prints its median tokens/s.

    python pytorch_peer.py --size tiny --strategy STRATEGY --steps 20      (--help lists the strategies)

Byte-level GPT, fp32, eager: learned positions, pre-LN blocks (fused qkv with bias, causal scaled_dot_product_attention,
4x MLP with exact GELU), final LN, head tied to the token embedding, mean cross-entropy, fused AdamW(1e-3, decay 0.01).
tp, tp-sp: separate query, key and value, an untied head, split over two ranks by torch.distributed.tensor.parallel.
zero1: DDP with ZeroRedundancyOptimizer; zero2 and zero3: FSDP2 by blocks, without and with freeing after forward.
accumulate: one process, eight micro-batches. pp-...: torch.distributed.pipelining, eight micro-batches, blocks cut evenly; the
tied table is on the first and the last stage, and its gradient is added over the two ranks, or is one of one rank.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

SIZES = {
    "tiny": dict(layers=4, hidden=128, heads=4, sequence=128, batch=16),
    "small": dict(layers=6, hidden=384, heads=6, sequence=256, batch=8),
}
VOCAB, WARMUP = 256, 5
MICROBATCHES = {"ddp-accumulate": 4, "accumulate": 8}  # of one rank
# strategy -> (class, stages per rank, whether stages lie as a V: the first and the last on rank 0)
PIPELINES = {"pp-gpipe": ("ScheduleGPipe", 1, False), "pp-1f1b": ("Schedule1F1B", 1, False),
             "pp-interleaved": ("ScheduleInterleaved1F1B", 2, False), "pp-zb-h1": ("ScheduleInterleavedZeroBubble", 1, False),
             "pp-interleaved-zb": ("ScheduleInterleavedZeroBubble", 2, False), "pp-zb-v": ("ScheduleZBVZeroBubble", 2, True)}
PIPELINE_MICROBATCHES = 8
STRATEGIES = ("single", "ddp", "ddp-accumulate", "tp", "tp-sp", "zero1", "zero2", "zero3", "accumulate", *PIPELINES)


def build(size):
    import torch.nn as nn
    import torch.nn.functional as F

    class Block(nn.Module):
        def __init__(self, hidden, heads):
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
            self.qkv, self.projection = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
            self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

        def forward(self, x):
            batch, sequence, hidden = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(batch, sequence, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.projection(y.transpose(1, 2).reshape(batch, sequence, hidden))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(VOCAB, size["hidden"]), nn.Embedding(size["sequence"], size["hidden"])
            self.blocks = nn.Sequential(*(Block(size["hidden"], size["heads"]) for _ in range(size["layers"])))
            self.norm = nn.LayerNorm(size["hidden"])
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, tokens):
            x = tokens if self.positions is None else self.tokens(tokens) + self.positions.weight
            x = self.blocks(x)
            return x if self.norm is None else F.linear(self.norm(x), self.tokens.weight)

        def keep_stage(self, stage, stages, is_v):
            """Drops what is not of this stage of a pipeline. Six blocks in four stages leave both ranks as many."""
            edge = (lambda s: len(self.blocks) * s // stages) if is_v else (lambda s: round(len(self.blocks) * s / stages))
            self.blocks = self.blocks[edge(stage):edge(stage + 1)]
            if stage > 0:
                self.positions = None
            if stage + 1 < stages:
                self.norm = None
            if self.positions is None and self.norm is None:
                self.tokens = None

    return GPT()


def build_split(size, sequence_parallel):
    """The same with DTensor's tensor parallelism; with sequence_parallel activations between layers are split too."""
    import torch.nn as nn
    import torch.nn.functional as F
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                                   parallelize_module)

    class Split(nn.Module):
        """Linears over one input, which is put together once."""

        def __init__(self, hidden, outputs, count):
            super().__init__()
            self.linears = nn.ModuleList(nn.Linear(hidden, outputs) for _ in range(count))

        def forward(self, x):
            return [linear(x) for linear in self.linears]

    class Block(nn.Module):
        def __init__(self, hidden, heads):
            super().__init__()
            self.head_size = hidden // heads
            self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
            self.qkv, self.projection = Split(hidden, hidden, 3), nn.Linear(hidden, hidden)
            self.up, self.down = Split(hidden, 4 * hidden, 1), nn.Linear(4 * hidden, hidden)

        def forward(self, x):
            q, k, v = (part.unflatten(-1, (-1, self.head_size)).transpose(1, 2) for part in self.qkv(self.norm1(x)))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.projection(y.transpose(1, 2).flatten(2))
            return x + self.down(F.gelu(self.up(self.norm2(x))[0]))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            hidden = size["hidden"]
            self.tokens, self.positions = nn.Embedding(VOCAB, hidden), nn.Embedding(size["sequence"], hidden)
            self.blocks = nn.Sequential(*(Block(hidden, size["heads"]) for _ in range(size["layers"])))
            self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, VOCAB, bias=False)

        def forward(self, tokens, positions):
            return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions(positions))))

    between = Shard(1) if sequence_parallel else Replicate()
    plan = {"tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
            "head": ColwiseParallel(input_layouts=between, use_local_output=False)}
    if sequence_parallel:
        plan["norm"] = SequenceParallel()
    for layer in range(size["layers"]):
        block = f"blocks.{layer}"
        for part in ("qkv", "up"):
            plan[f"{block}.{part}"] = PrepareModuleInput(input_layouts=between, desired_input_layouts=Replicate())
            for i in range(3 if part == "qkv" else 1):
                plan[f"{block}.{part}.linears.{i}"] = ColwiseParallel()
        for part in ("projection", "down"):
            plan[f"{block}.{part}"] = RowwiseParallel(output_layouts=between)
        if sequence_parallel:
            plan.update({f"{block}.norm1": SequenceParallel(), f"{block}.norm2": SequenceParallel()})
    return parallelize_module(GPT(), init_device_mesh("cpu", (2,)), plan)


def worker(args):
    import contextlib

    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    torch.set_num_threads(1)
    torch.manual_seed(1)
    size = SIZES[args.size]
    if args.world > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{args.port}", rank=args.rank, world_size=args.world)
    if args.strategy.startswith("tp"):
        return measure_split(args, size)
    if args.strategy in PIPELINES:
        return measure_pipeline(args, size)
    model = build(size)
    wrapped, micro = model, MICROBATCHES.get(args.strategy, 1)
    if args.strategy in ("zero2", "zero3"):
        from torch.distributed.fsdp import fully_shard

        mesh = dist.init_device_mesh("cpu", (args.world,))
        for part in (*model.blocks, model):
            fully_shard(part, mesh=mesh, reshard_after_forward=args.strategy == "zero3")
    elif args.world > 1:
        wrapped = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=micro == 1)
    settings = dict(lr=1e-3, weight_decay=0.01, fused=True)
    if args.strategy == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, **settings)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), **settings)
    rows = torch.randint(0, VOCAB, (4, size["batch"], size["sequence"] + 1))
    batches = [
        [(m[:, :-1].contiguous(), m[:, 1:].contiguous()) for m in batch.chunk(args.world)[args.rank].chunk(micro)] for batch in rows
    ]

    def step(i):
        parts = batches[i % len(batches)]
        for n, (x, y) in enumerate(parts):
            last = n + 1 == len(parts)
            with contextlib.nullcontext() if last or args.world == 1 else wrapped.no_sync():
                loss = F.cross_entropy(wrapped(x).view(-1, VOCAB), y.view(-1)) / len(parts)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    write_times(step, args)


def measure_split(args, size):
    import torch
    import torch.nn.functional as F
    from torch.distributed.tensor.parallel import loss_parallel

    sequence_parallel = args.strategy == "tp-sp"
    model = build_split(size, sequence_parallel)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, foreach=False)
    rows = torch.randint(0, VOCAB, (4, size["batch"], size["sequence"] + 1))
    positions = torch.arange(size["sequence"])
    if sequence_parallel:
        positions = positions.chunk(args.world)[args.rank]

    def step(i):
        row = rows[i % len(rows)]
        with loss_parallel():
            logits = model(row[:, :-1].contiguous(), positions)
            F.cross_entropy(logits.flatten(0, 1), row[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    write_times(step, args)


def measure_pipeline(args, size):
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.distributed import pipelining

    name, chunks, is_v = PIPELINES[args.strategy]
    count, last = args.world * chunks, args.world * chunks - 1
    microbatch = (size["batch"] // PIPELINE_MICROBATCHES, size["sequence"])
    models, stages = {}, []
    for index in ([args.rank, last - args.rank] if is_v else range(args.rank, count, args.world)):
        torch.manual_seed(1)
        model = models[index] = build(size)
        model.keep_stage(index, count, is_v)
        hidden, logits = (torch.empty(*microbatch, width, device="meta", requires_grad=True) for width in (size["hidden"], VOCAB))
        tokens = torch.empty(microbatch, dtype=torch.long, device="meta")
        stages.append(pipelining.PipelineStage(model, index, count, torch.device("cpu"), input_args=tokens if index == 0 else hidden,
                                               output_args=logits if index == last else hidden))
    both_ends = 0 in models and last in models
    if both_ends:
        models[last].tokens.weight = models[0].tokens.weight
    schedule = getattr(pipelining, name)(
        stages[0] if name in ("ScheduleGPipe", "Schedule1F1B") else stages,
        n_microbatches=PIPELINE_MICROBATCHES, scale_grads=False,
        loss_fn=lambda logits, y: F.cross_entropy(logits.flatten(0, 1), y.flatten()) / PIPELINE_MICROBATCHES)
    parameters = {id(p): p for model in models.values() for p in model.parameters()}
    optimizer = torch.optim.AdamW(parameters.values(), lr=1e-3, weight_decay=0.01, fused=True)
    tied = [models[end].tokens.weight for end in (0, last) if end in models]
    batches = [(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())
               for rows in torch.randint(0, VOCAB, (4, size["batch"], size["sequence"] + 1))]

    def step(i):
        x, y = batches[i % len(batches)]
        schedule.step(*([x] if 0 in models else []), return_outputs=False, **(dict(target=y, losses=[]) if last in models else {}))
        if not both_ends and tied:
            dist.all_reduce(tied[0].grad)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    write_times(step, args)


def write_times(step, args):
    import gc

    for i in range(WARMUP):
        step(i)
    gc.collect()
    gc.freeze()
    times = []
    for i in range(args.steps):
        begin = time.perf_counter()
        step(i)
        times.append(time.perf_counter() - begin)
    with open(args.result, "w") as out:
        json.dump(times, out)
    os._exit(0)  # destroys nothing that PyTorch's threads still use: some of its ranks would abort


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--strategy", choices=STRATEGIES, default="single")
    parser.add_argument("--steps", type=int, default=20)
    for name, kind in (("rank", int), ("world", int), ("port", int), ("result", str)):
        parser.add_argument("--" + name, type=kind, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.world:
        return worker(args)
    world = 1 if args.strategy in ("single", "accumulate") else 2
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    # glibc keeps memory between steps, as lockstep's init() makes it do: the same for both sides.
    environment.update(MALLOC_MMAP_THRESHOLD_="33554432", MALLOC_TRIM_THRESHOLD_="1073741824")
    with tempfile.TemporaryDirectory() as folder:
        results = [os.path.join(folder, str(rank)) for rank in range(world)]
        ranks = [
            subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--rank", str(rank), "--world", str(world), "--port", str(port),
                              "--result", results[rank]], env=environment)
            for rank in range(world)
        ]
        if any(rank.wait(timeout=600) for rank in ranks):
            sys.exit("a rank of the PyTorch peer failed")
        times = [json.load(open(result)) for result in results]
    median = statistics.median(max(step) for step in zip(*times))  # a step lasts as long as its slowest rank
    size = SIZES[args.size]
    print(json.dumps({"tokens_per_s": size["batch"] * size["sequence"] / median, "step_s": median}))


if __name__ == "__main__":
    main()
