#!/usr/bin/env python3
"""Three ranks, of which one does something else: what OpenMPI alone makes of it, and what lockstep does.

    tests/faults/faults.py [--build build/release] > docs/faults.md    # two minutes: hangs are given ten seconds each
    tests/faults/faults.py --check                                     # lockstep still says what docs/faults.md says
"""

import argparse
import collections
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "faults.md"
LIMIT_S = 10
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "3"]
# What faults_mpi.cc and faults_lockstep.cc know, and what it is.
CASES = {
    "killed": "rank 1 is killed before the all_reduce that the others are in",
    "stopped": "rank 1 is stopped there (SIGSTOP)",
    "returns early": "rank 1 ends well, without the all_reduce",
    "skips a call": "rank 1 leaves out the all_reduce before a broadcast",
    "other count": "all_reduce of 6 values on rank 1, of 4 on the others",
    "other count, large": "the same with 60,000 and 90,000",
    "other type": "all_reduce of 32-bit integers on rank 1, of floats on the others",
    "other root": "broadcast from rank 1 on rank 1, from rank 0 on the others",
    "other reduction": "all_reduce with max on rank 1, with sum on the others",
    "other operation": "broadcast on rank 1, all_reduce on the others",
    "groups swapped": "blocking calls on two groups, rank 1 in the other order",
}

Ending = collections.namedtuple("Ending", "code seconds output")


def run(command):
    """Runs a job for at most LIMIT_S; code None: it hung, and was ended."""
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        job = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = job.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            code = None
        seconds = time.monotonic() - start
        output.seek(0)
        text = output.read()
        if code is None:
            end(job, text)
    return Ending(code, seconds, text)


def end(job, text):
    """The job and its ranks, which have said who they are: a stopped one ends by SIGKILL alone."""
    for process in [int(pid) for pid in re.findall(r"process (\d+)", text)] + [job.pid]:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass
    job.wait()


def of_openmpi(ending):
    """In words."""
    said = re.findall(r"rank (\d) has (\S+), its calls mean (\S+)", ending.output)
    wrong = [f"rank {rank} has {has} instead of {right}" for rank, has, right in sorted(said) if has != right]
    error = re.search(r"MPI_ERR_\w+", ending.output)
    if ending.code is None:
        reports = f", though a rank reports {error.group()}" if error else ""
        return f"**hangs**{reports}" + (f"; before that, silently, {', '.join(wrong)}" if wrong else "")
    if ending.code == 0:
        return "**wrong values, silently**: " + ", ".join(wrong) if wrong else "ends as if all were well, with the values of each rank's own calls"
    why = f" ({error.group()})" if error else " (a signal)" if "signal" in ending.output else ""
    return f"mpirun ends all{why}, exit code {ending.code}, {ending.seconds:.1f} s" + (f"; {', '.join(wrong)}" if wrong else "")


def errors_of(ending):
    """(type, rank) of the ranks' errors."""
    return sorted(set(re.findall(r"(PeerLost|DeadlineExceeded|ProtocolMismatch): rank (\d)", ending.output)))


def of_lockstep(ending):
    by_type = collections.defaultdict(list)
    for kind, rank in errors_of(ending):
        by_type[kind].append(rank)
    told = "; ".join(f"`{kind}` on rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}" for kind, ranks in by_type.items())
    if ending.code is None or not told:
        raise SystemExit(f"lockstep did not say what is wrong: {ending}")
    return f"{told}, {ending.seconds:.1f} s"


def message_of(ending):
    return re.search(r"(?:PeerLost|DeadlineExceeded|ProtocolMismatch): (rank \d.*)", ending.output).group(1)


def jobs(build, case):
    """OpenMPI alone, lockstep on shared memory, lockstep on MPI"""
    programs = pathlib.Path(build, "bin")
    return ([*MPIRUN, programs / "faults_mpi", case],
            [programs / "faults_lockstep", "--launch", case],
            [*MPIRUN, programs / "faults_lockstep", case])


def page(build):
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    print(f"""# When one rank does something else

Three ranks, of which rank 1 does not do what the others do: {version.replace("mpirun (", "").replace(")", "")} alone, and lockstep with a deadline of 1.5 s on
shared memory and on the same MPI. "Hangs" is: nothing after {LIMIT_S} s. Seconds are from start to end of the whole job; with
"wrong values, silently" every rank returned 0. Errors are counted as they reached the terminal: mpirun ends the others when the
first rank fails, and may not print what they still say. This page is the output of

    tests/faults/faults.py > docs/faults.md

| fault | OpenMPI alone | lockstep, shared memory | lockstep, MPI |
|---|---|---|---|""")
    messages = []
    for case, what in CASES.items():
        alone, shared_memory, mpi = [run(command) for command in jobs(build, case)]
        print(f"| {case}: {what} | {of_openmpi(alone)} | {of_lockstep(shared_memory)} | {of_lockstep(mpi)} |", flush=True)
        messages.append(f"- {case}: `{message_of(shared_memory)}`")
    print("\nWhat a rank says, on shared memory:\n\n" + "\n".join(messages))


def main_kind(text):
    """What is wrong, where others only lose those who found out."""
    kinds = sorted(set(re.findall(r"PeerLost|DeadlineExceeded|ProtocolMismatch", text)))
    return next((kind for kind in kinds if kind != "PeerLost"), "PeerLost")


def check(build):
    """On both backends the same kinds of errors as on the page."""
    rows = {line.split(":")[0][2:]: line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")}
    wrong = 0
    for case in CASES:
        for column, command in zip((2, 3), jobs(build, case)[1:]):
            ending = run(command)
            if main_kind(of_lockstep(ending)) != main_kind(rows[case][column]):
                wrong += 1
                print(f"{case}: docs/faults.md has {rows[case][column]}\n{ending}")
    print(f"{len(CASES)} faults on 2 backends, {wrong} not as docs/faults.md says")
    return wrong


if __name__ == "__main__":
    if shutil.which("mpirun") is None:
        print("skipped: mpirun is not installed")
        sys.exit(0)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.check:
        sys.exit(1 if check(options.build) else 0)
    page(options.build)
