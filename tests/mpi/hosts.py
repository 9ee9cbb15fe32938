"""Two hosts on one machine: network name spaces joined by a link of a set rate. Needs root, ip and tc."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile

NAMES = ("lockstep-a", "lockstep-b")
ADDRESSES = ("10.77.0.1", "10.77.0.2")


def command(*words):
    subprocess.run(words, check=True, capture_output=True, text=True)


def inside(host, *words):
    return ["ip", "netns", "exec", NAMES[host], *words]


def missing():
    """Why there can be no such hosts here; empty if there can."""
    for tool in ("ip", "tc", "mpirun"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    if os.geteuid() != 0:
        return "network name spaces need root"
    probe = subprocess.run(["ip", "netns", "add", "lockstep-probe"], capture_output=True, text=True)
    if probe.returncode != 0:
        return "no network name space can be made: " + probe.stderr.strip()
    command("ip", "netns", "del", "lockstep-probe")
    return ""


@contextlib.contextmanager
def two_hosts(rate):
    """Joined by a link of `rate` in each direction, as tc writes it ("1gbit"). Yields a folder with the launch agent."""
    remove()
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name in NAMES:
                command("ip", "netns", "add", name)
            command("ip", "link", "add", "link0", "netns", NAMES[0], "type", "veth", "peer", "name", "link0", "netns", NAMES[1])
            for host in range(2):
                command(*inside(host, "ip", "address", "add", f"{ADDRESSES[host]}/24", "dev", "link0"))
                command(*inside(host, "ip", "link", "set", "link0", "up"))
                command(*inside(host, "ip", "link", "set", "lo", "up"))
                command(*inside(host, "tc", "qdisc", "add", "dev", "link0", "root", "tbf", "rate", rate, "burst", "256kb",
                                "latency", "20ms"))
            agent = pathlib.Path(folder, "agent")
            agent.write_text("#!/bin/sh\n# As ssh: HOST COMMAND...\nhost=$1; shift\n"
                             f'[ "$host" = {ADDRESSES[0]} ] && name={NAMES[0]} || name={NAMES[1]}\n'
                             'exec ip netns exec "$name" sh -c "$*"\n')
            agent.chmod(0o755)
            yield folder
        finally:
            remove()


def remove():
    for name in NAMES:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


def mpirun(folder, ranks_per_host):
    """The words before the program, of a job with so many ranks on each of the two hosts."""
    subnet = ADDRESSES[0].rsplit(".", 1)[0] + ".0/24"
    hosts = ",".join(f"{address}:{ranks_per_host}" for address in ADDRESSES)
    return inside(0, "mpirun", "--allow-run-as-root", "--bind-to", "none", "--host", hosts, "-n", str(2 * ranks_per_host),
                  "--mca", "plm_rsh_agent", f"{folder}/agent", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include",
                  subnet, "--mca", "oob_tcp_if_include", subnet, "--mca", "orte_keep_fqdn_hostnames", "1")


def sent_bytes(host):
    """What the host's interface to the link has sent so far."""
    path = "/sys/class/net/link0/statistics/tx_bytes"
    return int(subprocess.run(inside(host, "cat", path), check=True, capture_output=True, text=True).stdout)
