"""How well is a pipeline's step predicted? For two model sizes, four schedules and 1 to 16 micro-batches on two ranks:
the step as simulated with times of one rank, measured before the run, beside the step as recorded.

    .deps/python/bin/python benchmarks/pipeline/prediction.py [--sizes tiny,small] [--microbatches 1,2,4,8,16] [--steps 8] [--json FILE]

Nothing of a run enters its prediction: lockstep train writes simulated.json before its ranks start, and lockstep trace
compare lays trace.json over it. The errors are predicted / measured - 1 of the whole step.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOCKSTEP = ROOT / "build" / "release" / "bin" / "lockstep"
SIZES = {
    "tiny": dict(layers=4, hidden=128, heads=4, sequence=128, microbatch=2),
    "small": dict(layers=6, hidden=384, heads=6, sequence=256, microbatch=1),
}
LAYOUTS = {"gpipe": "pp2-gpipe", "1f1b": "pp2-1f1b", "interleaved": "pp2-v2-interleaved", "zb_h1": "pp2-zb_h1"}


def configuration(size, microbatches, steps, folder):
    s = SIZES[size]
    return f"""
[model]
layers = {s["layers"]}
hidden = {s["hidden"]}
heads = {s["heads"]}
vocab = 256
sequence = {s["sequence"]}
[data]
format = "synthetic"
[train]
steps = {steps}
global_batch = {s["microbatch"] * microbatches}
microbatch = {s["microbatch"]}
warmup_steps = 1
[run]
directory = "{folder}/run"
validate_every = 0
"""


def terms(size, schedule, microbatches, steps):
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "config.toml"
        config.write_text(configuration(size, microbatches, steps, folder))
        for command in (["train", config, "--layout", LAYOUTS[schedule], "--json"], ["trace", "compare", f"{folder}/run", "--json"]):
            result = subprocess.run([LOCKSTEP, *command], capture_output=True, text=True, timeout=600)
            if result.returncode != 0:
                sys.exit(f"{command[0]} of {size} {schedule} ended with {result.returncode}:\n{result.stderr}")
    return {term["name"]: term for term in json.loads(result.stdout)["terms"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="tiny,small")
    parser.add_argument("--microbatches", default="1,2,4,8,16")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--json")
    args = parser.parse_args()
    rows = []
    print(f"{'size':6} {'schedule':12} {'M':>3} {'predicted':>10} {'measured':>10} {'error':>8} {'bubble predicted':>17} {'measured':>9}")
    for size in args.sizes.split(","):
        for schedule in LAYOUTS:
            for microbatches in map(int, args.microbatches.split(",")):
                if schedule == "interleaved" and microbatches % 2 != 0:
                    continue  # interleaved micro-batches come in groups of the ranks
                found = terms(size, schedule, microbatches, args.steps)
                step, bubble = found["step"], found["bubble"]
                rows.append(dict(size=size, schedule=schedule, microbatches=microbatches, **step,
                                 bubble_predicted=bubble["predicted"], bubble_measured=bubble["measured"]))
                print(f"{size:6} {schedule:12} {microbatches:3} {step['predicted'] * 1e3:7.1f} ms {step['measured'] * 1e3:7.1f} ms "
                      f"{step['error'] * 100:+7.1f}% {bubble['predicted'] * 100:16.1f}% {bubble['measured'] * 100:8.1f}%", flush=True)
    errors = [abs(row["error"]) for row in rows]
    print(f"median error {statistics.median(errors) * 100:.1f} %, largest {max(errors) * 100:.1f} %, {len(rows)} runs")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
