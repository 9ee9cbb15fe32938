"""Training over MPI: the same losses as over shared memory, verify holds, and a killed rank is named.

    training_test.py LOCKSTEP_BINARY
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

LOCKSTEP = sys.argv[1]
CONFIG = pathlib.Path(__file__).resolve().parents[2] / "configs" / "verify.toml"
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]


def losses(launcher, arguments, folder):
    """(the loss of every step as it was written, standard output)"""
    command = [*launcher, LOCKSTEP, "train", CONFIG, "--json", "--set", f"run.directory={folder}/run", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = pathlib.Path(folder, "run", "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines if "loss" in json.loads(line)], result.stdout


def same_losses(ranks):
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        shared_memory, _ = losses([], ["--ranks", str(ranks)], one)
        mpi, output = losses([*MPIRUN, "-n", str(ranks)], [], other)
    assert len(mpi) > 1 and mpi == shared_memory, f"{ranks} ranks: {mpi} over MPI, {shared_memory} over shared memory"
    json.loads(output)  # rank 0's alone
    print(f"{ranks} ranks: {len(mpi)} losses over MPI are those over shared memory, last {mpi[-1]}")


def verify_holds():
    layouts = "dp2,dp3,dp4,dp2-fixed_tree,dp4-fixed_tree"
    command = [LOCKSTEP, "verify", CONFIG, "--layouts", layouts, "--backend", "mpi", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    rows = json.loads(result.stdout)["layouts"]
    for row in rows:
        assert row["pass"] and (row["bitwise"] or "fixed_tree" not in row["name"]), row
    print(f"verify over MPI: worst gradient {max(row['max_rel_grad'] for row in rows):.1e}")


def killed_rank_is_named(options, expected_code):
    with tempfile.TemporaryDirectory() as folder:
        command = [*MPIRUN, *options, "-n", "3", LOCKSTEP, "train", CONFIG, "--set", "train.steps=100000000", "--set",
                   "train.global_batch=96", "--set", f"run.directory={folder}/run"]
        job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        metrics = pathlib.Path(folder, "run", "metrics.jsonl")
        until = time.monotonic() + 60
        while not metrics.exists() or metrics.read_text().count("\n") < 5:
            assert time.monotonic() < until and job.poll() is None, "the job did not get going"
            time.sleep(0.05)
        ranks = [int(pid) for pid in pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()]
        assert len(ranks) == 3, ranks
        start = time.monotonic()
        os.kill(ranks[1], signal.SIGKILL)
        output, _ = job.communicate(timeout=60)
        assert "rank 1 was lost" in output and "all_reduce" in output, output
        assert expected_code is None or job.returncode == expected_code, (job.returncode, output)
        print(f"killed rank, {' '.join(options) or 'as mpirun does'}: all gone after {time.monotonic() - start:.2f} s")


if __name__ == "__main__":
    if shutil.which("mpirun") is None:
        print("skipped: mpirun is not installed")
        sys.exit(0)
    for ranks in (2, 4):
        same_losses(ranks)
    verify_holds()
    killed_rank_is_named(["--enable-recovery"], None)
    killed_rank_is_named([], 128 + signal.SIGKILL)
