"""Two machines, and the cable between them pulled in the middle of a run, by hand: ``tests/campaigns/cut_off.py``.

The machines are network namespaces with a Ray node of one CPU in each (Linux, root, ``ip`` of iproute2, Ray). The run
is started on the one with Ray's head; once the other works on a trial, the link goes down for good, and nobody tells
anybody. The run must end, and with what the same command finds on this machine alone. Ray takes minutes to give up a
machine that falls silent.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.victim import outcome

SPEC = Path(__file__).parents[2] / "specs" / "quickstart.yaml"
HEAD, OTHER = "dpspec-head", "dpspec-other"
ADDRESSES = {HEAD: "10.77.0.1", OTHER: "10.77.0.2"}
LINK = "cable"
COMMAND = [sys.executable, "-m", "dpspec", "run", str(SPEC), "--set", "audit.runs=6"]


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def processes(machine: str) -> list[int]:
    """What runs on a machine."""
    told = subprocess.run(["ip", "netns", "pids", machine], capture_output=True, text=True, check=True)
    return [int(number) for number in told.stdout.split()]


@contextlib.contextmanager
def two_machines() -> Iterator[None]:
    """Two network namespaces with a link between them; what runs there ends with them."""
    with contextlib.ExitStack() as stack:
        for machine in ADDRESSES:
            ip("netns", "add", machine)
            stack.callback(remove, machine)
        ip("link", "add", LINK, "netns", HEAD, "type", "veth", "peer", "name", LINK, "netns", OTHER)
        for machine, address in ADDRESSES.items():
            ip("-n", machine, "link", "set", "lo", "up")
            ip("-n", machine, "addr", "add", f"{address}/24", "dev", LINK)
            ip("-n", machine, "link", "set", LINK, "up")
        yield


def remove(machine: str) -> None:
    for number in processes(machine):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    ip("netns", "del", machine)


def start(machine: str, command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["ip", "netns", "exec", machine, *command], env=environment, stdout=subprocess.DEVNULL)


def works(machine: str) -> bool:
    """Whether a machine works on a trial."""
    commands = (Path(f"/proc/{number}/cmdline") for number in processes(machine))
    with contextlib.suppress(FileNotFoundError):
        return any(command.read_bytes().startswith(b"ray::quickstart") for command in commands)
    return False


def main() -> int:
    """Tell what happens as it does; 0 where both runs found the same."""
    began = time.monotonic()

    def tell(text: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {text}", flush=True)

    folder = Path(tempfile.mkdtemp(prefix="cut-"))  # short: Ray puts sockets into it
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--num-cpus=1", "--disable-usage-stats"]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    environment["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    head = f"{ADDRESSES[HEAD]}:6399"
    try:
        here = subprocess.run(
            [*COMMAND, "--store", str(folder / "here"), "--report", f"json={folder / 'here.json'}"],
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        tell(f"this machine alone: exit {here.returncode}")
        with two_machines():
            roles = {HEAD: ["--head", "--port=6399", f"--temp-dir={folder}/ray"], OTHER: [f"--address={head}"]}
            for machine, role in roles.items():
                where = f"--node-ip-address={ADDRESSES[machine]}"
                if start(machine, [*ray, *role, where], environment).wait():
                    return 1
            cluster = ["--executor", "ray", "--ray-address", head, "--store", str(folder / "there")]
            there = start(HEAD, [*COMMAND, *cluster, "--report", f"json={folder / 'there.json'}"], environment)
            while not works(OTHER) and there.poll() is None:
                time.sleep(0.2)
            time.sleep(2.0)
            ip("-n", HEAD, "link", "set", LINK, "down")
            tell("a trial is in work on the other machine: the cable is pulled")
            tell(f"the run has ended: exit {there.wait()}")
        same = outcome(folder / "here.json") == outcome(folder / "there.json")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    tell("both found the same" if same else "THEY FOUND DIFFERENT THINGS")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
