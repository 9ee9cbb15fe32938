"""How fast does lockstep train beside plain PyTorch? Alternates the two, prints medians, ratios and their spread.

    .deps/python/bin/python benchmarks/training/compare.py [--rounds 5] [--steps 20] [--sizes tiny,small] [--cases ddp,tp] [--json FILE]

Cases: one process; DDP on two ranks; DDP with four accumulated micro-batches; tensor parallelism on two ranks, without and
with sequence parallelism, beside DTensor's (both untied, with the loss over a split vocabulary); on two ranks zero1 beside DDP with
ZeroRedundancyOptimizer, zero2 beside FSDP2 that keeps parameters after forward, zero3 beside FSDP2; pipelines of two ranks and
eight micro-batches (pp-...) beside the class of torch.distributed.pipelining of the same order; accumulate: one process that
accumulates those eight. One thread per rank. In the same rounds two independent copies of the one-process run at once: their
summed speed over one copy's is the ceiling of what two ranks could reach on this machine, and the parallel figures are also
given as a share of it. Pipelines are given relative to each side's own one process with the same micro-batches, and as a share
of the bound there: what the schedule's bubble leaves of two ranks, times the ceiling / 2.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LOCKSTEP = ROOT / "build" / "release" / "bin" / "lockstep"
SIZES = {
    "tiny": dict(layers=4, hidden=128, heads=4, sequence=128, batch=16),
    "small": dict(layers=6, hidden=384, heads=6, sequence=256, batch=8),
}
# name -> (layout, parts that a global batch is cut into)
CASES = {"single": ("single", 1), "ddp": ("dp2", 2), "ddp-accumulate": ("dp2", 8), "tp": ("tp2", 1), "tp-sp": ("tp2-sp", 1),
         "zero1": ("dp2-zero1", 2), "zero2": ("dp2-zero2", 2), "zero3": ("dp2-zero3", 2),
         "accumulate": ("single", 8), "pp-gpipe": ("pp2-gpipe", 8), "pp-1f1b": ("pp2", 8),
         "pp-interleaved": ("pp2-v2-interleaved", 8), "pp-zb-h1": ("pp2-zb_h1", 8),
         "pp-interleaved-zb": ("pp2-v2-interleaved_zb", 8), "pp-zb-v": ("pp2-zb_v", 8)}
# What a schedule's bubble leaves of K = 2 ranks at M = 8 micro-batches: K M / (M + (K - 1) / v), and of kinds with split
# backwards what `lockstep schedule` simulates where both halves take a forward's time (24 of 25 and of 24.5 are busy).
BUBBLE_LIMIT = {"pp-gpipe": 16 / 9, "pp-1f1b": 16 / 9, "pp-interleaved": 16 / 8.5,
                "pp-zb-h1": 48 / 25, "pp-interleaved-zb": 48 / 24.5, "pp-zb-v": 48 / 24.5}


def configuration(size, case, steps, folder):
    s = SIZES[size]
    microbatch = s["batch"] // CASES[case][1]
    return f"""
[model]
layers = {s["layers"]}
hidden = {s["hidden"]}
heads = {s["heads"]}
kv_heads = {s["heads"]}
ffn_hidden = {4 * s["hidden"]}
vocab = 256
sequence = {s["sequence"]}
tie_embeddings = {"false" if case.startswith("tp") else "true"}
[data]
format = "synthetic"
[train]
steps = {steps}
global_batch = {s["batch"]}
microbatch = {microbatch}
lr = 1e-3
decay = "none"
weight_decay = 0.01
clip_norm = 0.0
[run]
directory = "{folder}/run"
validate_every = 0
"""


def start_ours(size, case, steps, folder):
    folder = pathlib.Path(tempfile.mkdtemp(dir=folder))
    (folder / "config.toml").write_text(configuration(size, case, steps + 5, folder))
    return subprocess.Popen([LOCKSTEP, "train", folder / "config.toml", "--layout", CASES[case][0], "--json"], stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL)


def finish_ours(process):
    out, _ = process.communicate(timeout=600)
    if process.returncode != 0:
        sys.exit(f"lockstep train ended with {process.returncode}")
    return json.loads(out)["tokens_per_s_median"]


def peer(size, case, steps):
    result = subprocess.run([sys.executable, HERE / "pytorch_peer.py", "--size", size, "--strategy", case, "--steps", str(steps)],
                            capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"the PyTorch peer failed at {size} {case}:\n{result.stderr}")
    return json.loads(result.stdout)["tokens_per_s"]


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f})"


def measure(size, args, folder):
    ours, theirs, ceiling = {case: [] for case in args.cases}, {case: [] for case in args.cases}, []
    for _ in range(args.rounds):
        for case in args.cases:
            theirs[case].append(peer(size, case, args.steps))
            ours[case].append(finish_ours(start_ours(size, case, args.steps, folder)))
        copies = [start_ours(size, "single", args.steps, folder) for _ in range(2)]
        ceiling.append(sum(finish_ours(copy) for copy in copies) / ours["single"][-1])
    rows = []
    for case in args.cases:
        ratios = [a / b for a, b in zip(ours[case], theirs[case])]
        row = dict(size=size, case=case, lockstep=statistics.median(ours[case]), pytorch=statistics.median(theirs[case]), ratio=ratios)
        if case != "single":
            row["share_of_ceiling"] = [p / s / c for p, s, c in zip(ours[case], ours["single"], ceiling)]
            row["pytorch_share_of_ceiling"] = [p / s / c for p, s, c in zip(theirs[case], theirs["single"], ceiling)]
        if case in BUBBLE_LIMIT:
            row["over_one_rank"] = [p / s for p, s in zip(ours[case], ours["accumulate"])]
            row["pytorch_over_one_rank"] = [p / s for p, s in zip(theirs[case], theirs["accumulate"])]
            row["share_of_bound"] = [g / (BUBBLE_LIMIT[case] * c / 2) for g, c in zip(row["over_one_rank"], ceiling)]
        rows.append(row)
    return rows, ceiling


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--sizes", default="tiny,small")
    parser.add_argument("--cases", default=",".join(CASES), help="single is always among them, and accumulate with pipelines")
    parser.add_argument("--json")
    args = parser.parse_args()
    named = set(args.cases.split(",")) | {"single"}
    if named & set(BUBBLE_LIMIT):
        named.add("accumulate")
    args.cases = [case for case in CASES if case in named]
    everything = {}
    print(f"{'size':6} {'case':17} {'lockstep':>9} {'PyTorch':>9}  {'ratio (min..max)':20} {'share of ceiling':20} {'PyTorch share':20} "
          f"{'over one rank':20} {'share of bound':20} PyTorch over one rank")
    for size in args.sizes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            rows, ceiling = measure(size, args, folder)
        for row in rows:
            figures = [row[key] for key in ("ratio", "share_of_ceiling", "pytorch_share_of_ceiling", "over_one_rank",
                                            "share_of_bound", "pytorch_over_one_rank") if key in row]
            print(f"{size:6} {row['case']:17} {row['lockstep']:9.0f} {row['pytorch']:9.0f}  "
                  + " ".join(f"{spread(figure):20}" for figure in figures).rstrip())
        print(f"{size:6} two copies at once / one: {spread(ceiling)}", flush=True)
        everything[size] = dict(rows=rows, ceiling=ceiling)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
