"""parallel.stages = "measured": whoever starts the ranks, they get one cut, and train as one process does; the run says
where it was cut; weights go from one cut to another; verify and calibrate take the same word.

    measured_stages_test.py LOCKSTEP_BINARY
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib

LOCKSTEP = sys.argv[1]
CONFIG = str(pathlib.Path(__file__).resolve().parents[1] / "configs" / "verify.toml")
PIPELINE = ["--set", "parallel.pipeline=2"]
MEASURED = [*PIPELINE, "--set", "parallel.stages=measured"]


def lockstep(command):
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def train(folder, name, arguments, launcher=(), config=CONFIG):
    """(every step's loss, parallel.stages as the run has it, what was said)"""
    run = pathlib.Path(folder, name)
    settings = ["--set", f"run.directory={run}", "--set", "train.precision=fp64"]
    output = lockstep([*launcher, LOCKSTEP, "train", config, "--json", *settings, *arguments])
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    stages = tomllib.loads((run / "config.toml").read_text())["parallel"]["stages"]
    return losses, stages, output.stdout + output.stderr


def same(losses, others):
    return len(losses) == len(others) > 1 and all(abs(a - b) <= 1e-10 * abs(a) for a, b in zip(losses, others))


def trains_as_one_process(folder):
    single, _, _ = train(folder, "single", [])
    launchers = {"train": ((), ["--ranks", "2"]), "launch": ([LOCKSTEP, "launch", "--ranks", "2", "--"], [])}
    if shutil.which("mpirun") is not None:
        launchers["mpirun"] = (["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"], [])
    for name, (launcher, ranks) in launchers.items():
        losses, stages, said = train(folder, name, [*MEASURED, *ranks], launcher)
        assert same(single, losses), (name, single, losses)
        assert re.fullmatch(r"E(\+[1-4])?,([1-4]\+)?H", stages), (name, stages)
        assert said.count(f'parallel.stages = "{stages}", as measured') == 1, said
        print(f"{name}: cut {stages}, losses of one process")
    # The configuration that the run left is this very cut.
    again, _, said = train(folder, "again", ["--ranks", "2"], config=str(pathlib.Path(folder, "train", "config.toml")))
    assert same(single, again) and "as measured" not in said, said


def weights_go_to_another_cut(folder):
    weights = ["--set", f"model.weights={folder}/train/weights"]
    single, _, _ = train(folder, "single_on", weights)
    for cut in ("E,4+H", "E+4,H", "measured"):
        losses, _, _ = train(folder, "on", [*weights, *PIPELINE, "--ranks", "2", "--set", f'parallel.stages="{cut}"'])
        assert same(single, losses), (cut, single, losses)


def verify_measures():
    for backend in ("in_process", "shared_memory"):
        layouts = "single,pp2,pp2-v2-interleaved,tp2-pp2-zb_v"
        result = lockstep([LOCKSTEP, "verify", CONFIG, "--layouts", layouts, "--backend", backend, "--json", *MEASURED[2:]])
        rows = json.loads(result.stdout)["layouts"]
        assert len(rows) == 4 and all(row["pass"] for row in rows), rows
        assert result.stderr.count("as measured") == 3, result.stderr


def calibrate_cuts_by_what_it_measured():
    result = lockstep([LOCKSTEP, "calibrate", "microbatch", CONFIG, "--json", "--seconds", "0.2", *MEASURED])
    document = json.loads(result.stdout)
    microbatches = 24 // document["microbatch"]
    cost = {}
    for part in document["parts"]:
        of_one = sum(part[action]["alpha_s"] + part[action]["beta_s_per_sample"] * document["microbatch"] for action in ("forward", "backward"))
        cost[part["name"]] = microbatches * of_one + part["optimizer_s"]

    def longest(layers):
        return max(cost["embedding"] + layers * cost["layer"], (4 - layers) * cost["layer"] + cost["head"])

    cut = [stage["stage"] for stage in document["stages"]]
    layers = int(cut[0].removeprefix("E").removeprefix("+") or 0)
    assert longest(layers) <= min(map(longest, range(5))) * (1 + 1e-9), (cut, cost)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        trains_as_one_process(folder)
        weights_go_to_another_cut(folder)
    verify_measures()
    calibrate_cuts_by_what_it_measured()
    print("measured stages: the same cut for every rank, the same losses for every cut")
