"""Our tables in PyTorch's own pipeline runtime: pipeline_runtime_test.py LOCKSTEP_BINARY

`lockstep schedule --export` writes tables for two ranks. Two processes over gloo load them into _PipelineScheduleRuntime,
run a step, and compare every gradient with one process's. Exit code 77 when torch is missing.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

try:
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

RANKS, WIDTH, ROWS = 2, 5, 3
# kind, micro-batches, further options; with --blocking the table has our sends and receives, else PyTorch adds its own.
TABLES = [
    ("naive", 3, []),
    ("gpipe", 4, []),
    ("gpipe", 4, ["--backward-order", "rising"]),
    ("1f1b", 1, []),
    ("1f1b", 5, ["--blocking"]),
    ("interleaved", 4, ["--chunks", "2"]),
    ("interleaved", 4, ["--chunks", "3", "--blocking"]),
    ("looped_bfs", 3, ["--chunks", "2"]),
    ("zb_h1", 4, []),
    ("zb_h2", 6, ["--blocking"]),
    ("interleaved_zb", 4, ["--chunks", "2", "--blocking"]),
    ("zb_v", 4, []),
    ("zb_v", 3, ["--blocking"]),
    ("dualpipe_v", 6, []),
    ("dualpipe_v", 5, ["--blocking"]),
]


def make_stage(index):
    torch.manual_seed(100 + index)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float64), torch.nn.Tanh())


def loss(output, target):
    return ((output - target) ** 2).sum()


def batch(microbatches):
    torch.manual_seed(7)
    shape = (microbatches * ROWS, WIDTH)
    return torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)


def reference_gradients(num_stages, microbatches):
    stages = [make_stage(i) for i in range(num_stages)]
    x, target = batch(microbatches)
    for stage in stages:
        x = stage(x)
    loss(x, target).backward()
    return [[p.grad for p in stage.parameters()] for stage in stages]


def stages_of_rank(csv, rank):
    """The numbers of the stages that stand in each rank's line."""
    lines = csv.read_text().splitlines()
    stages = [sorted({int(s) for s in re.findall(r"(\d+)F\d", line)}) for line in lines]
    return stages[rank], sum(map(len, stages))


def run_table(csv, microbatches, with_communication, rank):
    mine, num_stages = stages_of_rank(csv, rank)
    modules = {i: make_stage(i) for i in mine}
    stages = [PipelineStage(modules[i], i, num_stages, torch.device("cpu")) for i in mine]
    schedule = _PipelineScheduleRuntime(stages, microbatches, loss_fn=loss, scale_grads=False)
    schedule._load_csv(str(csv), format="compute_comms" if with_communication else "compute_only")
    x, target = batch(microbatches)
    schedule.step(*([x] if 0 in mine else []), **({"target": target} if num_stages - 1 in mine else {}))
    reference = reference_gradients(num_stages, microbatches)
    worst = 0.0
    for i in mine:
        for ours, theirs in zip(modules[i].parameters(), reference[i], strict=True):
            worst = max(worst, float((ours.grad - theirs).abs().max() / theirs.abs().max()))
    return worst


def be_rank(folder, rank):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    failed = 0
    for number, (kind, microbatches, options) in enumerate(TABLES):
        worst = run_table(folder / f"{number}.csv", microbatches, "--blocking" in options, rank)
        failed += not worst <= 1e-12
        print(f"rank {rank}: {kind} {microbatches} {' '.join(options)}: largest relative error {worst:.1e}", flush=True)
    # Threads of PyTorch's may still run when its objects are destroyed, which then ends the process ("terminate called").
    os._exit(failed)


def main(lockstep):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for number, (kind, microbatches, options) in enumerate(TABLES):
            command = [lockstep, "schedule", "--kind", kind, "--stages", str(RANKS), "--microbatches", str(microbatches)]
            subprocess.run([*command, *options, "--export", folder / f"{number}.csv"], check=True, stdout=subprocess.DEVNULL)
        ranks = [subprocess.Popen([sys.executable, __file__, "--rank", str(rank), name]) for rank in range(RANKS)]
        try:
            codes = [rank.wait(timeout=300) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    return 0 if codes == [0] * RANKS else 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "--rank":
        be_rank(pathlib.Path(sys.argv[3]), int(sys.argv[2]))
    sys.exit(main(sys.argv[1]))
