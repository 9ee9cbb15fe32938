"""lockstep calibrate microbatch --json: one document, whose stages and pipelines follow from its fitted parts.

    calibrate_test.py LOCKSTEP
"""

import json
import math
import pathlib
import subprocess
import sys

CONFIG = str(pathlib.Path(__file__).resolve().parents[1] / "configs" / "verify.toml")
COMMAND = [sys.argv[1], "calibrate", "microbatch", CONFIG, "--json", "--seconds", "0.2", "--samples", "1,3,6"]
PIPELINE = ["--set", "parallel.pipeline=2", "--set", "parallel.schedule=zb_h1", "--set", "parallel.stages=E+1,3+H"]
ACTIONS = ("forward", "backward", "input_grad", "weight_grad")

run = subprocess.run(COMMAND + PIPELINE, capture_output=True, text=True, timeout=120)
assert run.returncode == 0, run.stderr
document = json.loads(run.stdout)

parts = {part["name"]: part for part in document["parts"]}
assert [(name, part["count"]) for name, part in parts.items()] == [("embedding", 1), ("layer", 4), ("head", 1)], parts
for part in parts.values():
    assert [row["samples"] for row in part["measured"]] == [1, 3, 6], part
    assert all(row[action + "_s"] >= 0 for row in part["measured"] for action in ACTIONS), part


def time(action, layers, ends):
    fits = [(1, parts[end][action]) for end in ends] + [(layers, parts["layer"][action])]
    return sum(n * (fit["alpha_s"] + fit["beta_s_per_sample"] * document["microbatch"]) for n, fit in fits)


stages = document["stages"]
assert [stage["stage"] for stage in stages] == ["E+1", "3+H"], stages
for stage, layers, end in ((stages[0], 1, "embedding"), (stages[1], 3, "head")):
    for action in ACTIONS:
        assert math.isclose(stage[action + "_s"], time(action, layers, [end]), rel_tol=1e-9), (stage, action)

(pipeline,) = document["pipelines"]
assert (pipeline["stages"], pipeline["rows"]) == (2, 24), pipeline
if pipeline["best_estimate"] is not None:
    estimate = math.sqrt(pipeline["beta_s_per_row"] * 24 / pipeline["alpha_s"])
    assert math.isclose(pipeline["best_estimate"], estimate, rel_tol=1e-9), pipeline
assert 24 % pipeline["microbatches_dividing"] == 0, pipeline
print("calibrate: one document, whose numbers agree")
