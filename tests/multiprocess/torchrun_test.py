"""Ranks that torchrun starts on one host meet in shared memory: the same losses as under lockstep's own launcher, a
killed rank and one that never comes are named, and two jobs do not meet.

    torchrun_test.py LOCKSTEP_BINARY
"""

import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

LOCKSTEP = sys.argv[1]
ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "verify.toml"


def train(folder, *settings):
    words = [LOCKSTEP, "train", str(CONFIG), "--set", f"run.directory={folder}/run"]
    for setting in settings:
        words += ["--set", setting]
    return words


def losses(folder):
    lines = [json.loads(line) for line in pathlib.Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def run(command, **options):
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"


def start(rank, ranks, port, command):
    """As torchrun starts a rank."""
    variables = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks,
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def torchrun_trains():
    with tempfile.TemporaryDirectory() as own, tempfile.TemporaryDirectory() as theirs:
        run([*train(own), "--ranks", "3"])
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node", "3"]
        run([*torchrun, *train(theirs)])
        assert len(losses(own)) > 1 and losses(own) == losses(theirs), (losses(own), losses(theirs))
        print(f"torchrun, 3 ranks: {len(losses(own))} losses as under lockstep's launcher")


def killed_rank_is_named():
    with tempfile.TemporaryDirectory() as folder:
        command = train(folder, "train.steps=100000000")
        ranks = [start(rank, 3, 29_701, command) for rank in range(3)]
        metrics = pathlib.Path(folder, "run", "metrics.jsonl")
        until = time.monotonic() + 60
        while not metrics.exists() or metrics.read_text().count("\n") < 5:
            assert time.monotonic() < until and all(rank.poll() is None for rank in ranks), "the job did not get going"
            time.sleep(0.05)
        ranks[1].send_signal(signal.SIGKILL)
        begun = time.monotonic()
        for rank in (0, 2):
            output, _ = ranks[rank].communicate(timeout=30)
            assert ranks[rank].returncode == 3 and "rank 1 was lost (its process has ended)" in output, output
        print(f"killed: the others ended after {time.monotonic() - begun:.2f} s and name it")
        ranks[1].communicate()


def missing_rank_is_named():
    with tempfile.TemporaryDirectory() as folder:
        command = train(folder, "run.deadline_s=1.5")
        ranks = [start(rank, 3, 29_702, command) for rank in (0, 1)]
        outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
        assert ranks[0].returncode == 3 and "waited 1.5 s for rank 2 to meet" in outputs[0], outputs
        assert ranks[1].returncode == 3, outputs
        print("missing: named at the deadline")


def second_job_of_the_same_name_is_refused():
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        first = start(0, 2, 29_705, train(one))
        time.sleep(1)  # it waits for its rank 1
        output, _ = start(0, 2, 29_705, train(other)).communicate(timeout=60)
        assert "another job meets on this host as MASTER_ADDR=127.0.0.1 MASTER_PORT=29705" in output, output
        for rank in (start(1, 2, 29_705, train(one)), first):
            output, _ = rank.communicate(timeout=120)
            assert rank.returncode == 0, output
        print("a second job of the same name: refused with the name, the first goes on")


def two_jobs_do_not_meet():
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        jobs = [start(rank, 2, port, train(folder)) for rank in (1, 0) for port, folder in ((29_703, one), (29_704, other))]
        for job in jobs:
            output, _ = job.communicate(timeout=120)
            assert job.returncode == 0, output
        assert losses(one) == losses(other)
        print("two jobs at once: each among itself")


if importlib.util.find_spec("torch") is None:
    print("skipped: no PyTorch for this Python")
    sys.exit(77)
torchrun_trains()
killed_rank_is_named()
missing_rank_is_named()
second_job_of_the_same_name_is_refused()
two_jobs_do_not_meet()
