"""Two hosts of two ranks each on a link of 200 Mbit/s: the training runs, and all_reduce sends over the link
what its program says, which is least for the hierarchical one. Times are printed, beside those of OpenMPI's own.

    hosts_test.py LOCKSTEP_BINARY MPI_TEST_BINARY
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import hosts

LOCKSTEP, MPI_TEST = sys.argv[1:3]
CONFIG = pathlib.Path(__file__).resolve().parents[2] / "configs" / "verify.toml"
COUNT = 1 << 20  # 4 MiB
REPEATS = 3
IN_TURNS = 2


def run(command):
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
    return result.stdout


def losses(launcher, arguments):
    with tempfile.TemporaryDirectory() as folder:
        run([*launcher, LOCKSTEP, "train", str(CONFIG), "--set", f"run.directory={folder}/run", *arguments])
        lines = [json.loads(line) for line in pathlib.Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def training_runs(folder):
    here = losses([], ["--ranks", "4", "--set", "train.precision=fp64"])
    there = losses(hosts.mpirun(folder, 2), ["--set", "train.precision=fp64"])
    worst = max(abs(a - b) / abs(a) for a, b in zip(here, there, strict=True))
    assert len(here) > 1 and worst < 1e-10, f"{there} on two hosts, {here} on one"
    print(f"training on two hosts: {len(there)} losses within {worst:.1e} of one host's")


def tensor_ranks_share_memory_inside(folder):
    """With tensor ranks on one host only gradients cross the link; with tensor ranks across it, activations too."""
    layout = ["--layout", "dp2-tp2", "--set", "train.precision=fp64"]
    here = losses([], layout)
    sent = []
    for order in ("tp,cp,ep,dp,pp", "dp,cp,ep,tp,pp"):
        before = hosts.sent_bytes(0)
        there = losses(hosts.mpirun(folder, 2), [*layout, "--set", f"parallel.order={order}"])
        sent.append(hosts.sent_bytes(0) - before)
        worst = max(abs(a - b) / abs(a) for a, b in zip(here, there, strict=True))
        assert worst < 1e-10, f"{order}: {there} on two hosts, {here} on one"
    print(f"dp2-tp2 on two hosts: {sent[0] / 2**20:.2f} MiB over the link with tensor ranks inside, "
          f"{sent[1] / 2**20:.2f} MiB with tensor ranks across")
    assert sent[0] < sent[1], sent


def all_reduce(folder, algorithm):
    """(median us, bytes that the first host sent beyond what an empty job does, those of the program)"""

    def sent(repeats, count):
        before = hosts.sent_bytes(0)
        output = run([*hosts.mpirun(folder, 2), MPI_TEST, "--as-rank", "all_reduces_between_hosts", algorithm, str(count),
                      str(repeats)])
        return hosts.sent_bytes(0) - before, json.loads(output)

    overhead, _ = sent(REPEATS, 1)
    total, report = sent(REPEATS, COUNT)
    return report["median_us"], (total - overhead) / REPEATS, report["leaving_bytes"]


def all_reduces_send_what_they_say(folder):
    times = {"hierarchical": [], "ring": [], "native": []}
    for _ in range(IN_TURNS):
        for algorithm, measured in times.items():
            time_us, sent, said = all_reduce(folder, algorithm)
            measured.append(time_us)
            print(f"{algorithm:>12}: {time_us / 1e3:8.1f} ms, {sent / 2**20:6.2f} MiB sent over the link, "
                  f"{said / 2**20:6.2f} MiB said")
            if algorithm != "native":
                # Headers of Ethernet, IP and TCP, and acknowledgements of what comes the other way.
                assert 0.98 * said < sent < 1.10 * said, f"{algorithm}: {sent} bytes sent, {said} said"
    medians = {algorithm: statistics.median(measured) for algorithm, measured in times.items()}
    print(", ".join(f"{algorithm} {median / 1e3:.1f} ms" for algorithm, median in medians.items()))


def main():
    reason = hosts.missing()
    if reason:
        print(f"skipped: {reason}")
        return
    with hosts.two_hosts("200mbit") as folder:
        training_runs(folder)
        tensor_ranks_share_memory_inside(folder)
        all_reduces_send_what_they_say(folder)


main()
