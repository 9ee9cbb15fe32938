"""Training whose ranks or launcher are killed or stopped in the middle of a step: it ends in time, says whom it lost, and
leaves nothing.

    training_faults_test.py LOCKSTEP_BINARY
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

LOCKSTEP = sys.argv[1]
CONFIG = pathlib.Path(__file__).resolve().parents[2] / "configs" / "verify.toml"
DEADLINE_S = 2
SLACK_S = 1  # of a busy machine, beyond the promised second


def runs(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"  # a zombie has ended
    except OSError:
        return False


class Job:
    """lockstep train in a layout with endless steps, past its first ones."""

    def __init__(self, folder, layout, ranks):
        self.metrics = pathlib.Path(folder, "run", "metrics.jsonl")
        self.launcher = subprocess.Popen(
            [LOCKSTEP, "train", CONFIG, "--layout", layout, "--set", "train.steps=100000000", "--set", "train.global_batch=96", "--set",
             f"run.deadline_s={DEADLINE_S}", "--set", f"run.directory={folder}/run"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        until = time.monotonic() + 60
        while not self.metrics.exists() or self.metrics.read_text().count("\n") < 5:
            assert time.monotonic() < until and self.launcher.poll() is None, "the job did not get going"
            time.sleep(0.05)
        self.ranks = [int(pid) for pid in pathlib.Path(f"/proc/{self.launcher.pid}/task/{self.launcher.pid}/children").read_text().split()]
        assert len(self.ranks) == ranks, "ranks are direct children of the launcher"

    def end(self):
        """(seconds until the launcher ended, its exit code, all output)"""
        start = time.monotonic()
        output, _ = self.launcher.communicate(timeout=60)
        return time.monotonic() - start, self.launcher.returncode, output

    def alive(self):
        return [pid for pid in self.ranks if runs(pid)]


def shows_where_the_others_were(output, victim):
    picture = output[output.index("What the ranks were in"):]
    for rank in range(3):
        assert (f"rank {rank} failed with: rank {rank}" in picture) == (rank != victim), output
    assert "group 'data'" in picture and "ended last: call" in picture, output


def killed_rank(job, victim):
    os.kill(job.ranks[victim], signal.SIGKILL)
    seconds, code, output = job.end()
    assert code == 3 and f"rank {victim}" in output and "was lost" in output and " during " in output, output
    shows_where_the_others_were(output, victim)
    assert seconds < 1 + SLACK_S, f"took {seconds:.2f} s"
    return seconds, output


def stopped_rank(job, victim):
    os.kill(job.ranks[victim], signal.SIGSTOP)
    seconds, code, output = job.end()
    assert code == 3 and f"rank {victim}" in output and re.search("all_reduce|all_gather|reduce_scatter", output), output
    assert seconds < DEADLINE_S + 1 + SLACK_S, f"took {seconds:.2f} s"
    return seconds, output


def killed_launcher(job, _):
    start = time.monotonic()
    job.launcher.kill()
    job.launcher.wait()
    while job.alive() and time.monotonic() - start < 10:
        time.sleep(0.01)
    return time.monotonic() - start, ""


def interrupted(job, _):
    job.launcher.send_signal(signal.SIGINT)
    seconds, code, output = job.end()
    assert code == 128 + signal.SIGINT, (code, output)
    return seconds, output


if __name__ == "__main__":
    for layout, ranks, scenario, victim in (
            ("dp3", 3, killed_rank, 0), ("dp3", 3, killed_rank, 2), ("dp3", 3, stopped_rank, 1), ("dp3", 3, killed_launcher, None),
            ("dp3", 3, interrupted, None), ("dp2-tp2", 4, killed_rank, 3), ("tp2-sp", 2, stopped_rank, 0),
            ("dp2-pp2", 4, killed_rank, 3), ("pp2-zb_v", 2, stopped_rank, 0)):
        with tempfile.TemporaryDirectory() as folder:
            job = Job(folder, layout, ranks)
            seconds, output = scenario(job, victim)
            assert not job.alive(), f"left running: {job.alive()}"
            print(f"{layout}: {scenario.__name__} {'' if victim is None else victim}: all gone after {seconds:.2f} s")
            print("".join(f"    {line}\n" for line in output.splitlines() if "error" in line), end="")
