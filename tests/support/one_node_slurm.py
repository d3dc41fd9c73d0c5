"""A Slurm cluster of one node for tests, with separate key, sockets, ports and folders; all daemons are stopped."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from lra_bench.runtime.subprocesses import end_with_parent

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
CONFIGURATION = """
ClusterName=lra
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
CredType=cred/munge
SlurmctldPort={controller}
SlurmdPort={node}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=2
SlurmdParameters=config_overrides
ReturnToService=2
MailProg=/bin/true
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def reason_to_skip() -> str:
    """Return why Slurm cannot be started on this machine; empty if it can."""
    found = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=found) is None]
    if missing:
        return f"no {', '.join(missing)} here (Debian: munge, slurmctld, slurmd, slurm-client)"
    return "" if os.geteuid() == 0 else "slurmd requires root"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def slurm(cpus: int) -> Iterator[dict[str, str]]:
    """Run munged, slurmctld and slurmd, and yield the environment variables for Slurm's commands."""
    # Not in pytest's folder, because paths of sockets must be short.
    with TemporaryDirectory(prefix="slurm-", dir="/tmp") as folder, ExitStack() as daemons:
        root = Path(folder)
        for name in ("state", "spool"):
            (root / name).mkdir()
        key = root / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        configuration = root / "slurm.conf"
        host = socket.gethostname().partition(".")[0]
        ports = {"controller": free_port(), "node": free_port()}
        configuration.write_text(CONFIGURATION.format(root=root, host=host, cpus=cpus, **ports))
        variables = {
            "SLURM_CONF": str(configuration),
            "PATH": os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin",
        }
        environment = {**os.environ, **variables}

        def start(*command: str) -> None:
            log = daemons.enter_context((root / f"{command[0]}.out").open("w"))
            daemon = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True, preexec_fn=end_with_test
            )
            daemons.callback(end, daemon)

        start(
            *("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={root}/munge.socket"),
            *(f"--pid-file={root}/munged.pid", f"--log-file={root}/munged.log", f"--seed-file={root}/munged.seed"),
        )
        wait((root / "munge.socket").exists, root)
        start("slurmctld", "-D", "-f", str(configuration))
        start("slurmd", "-D", "-f", str(configuration), "-N", host)

        def idle() -> bool:
            state = subprocess.run(["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True)
            return state.stdout.strip() == "idle"

        wait(idle, root)
        try:
            yield variables
        finally:
            subprocess.run(["scancel", "--signal=KILL", "--full", "--user=root"], env=environment, check=False)
            subprocess.run(["scancel", "--user=root"], env=environment, check=False)
            wait(idle, root)


def end_with_test() -> None:
    """Make a daemon end with the test process."""
    end_with_parent(signal.SIGTERM)


def end(daemon: subprocess.Popen) -> None:
    daemon.terminate()
    try:
        daemon.wait(20)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def wait(done, root: Path, seconds: float = 120) -> None:
    """Wait until ``done()``; after ``seconds`` raise ``AssertionError`` with the logs of the daemons."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise AssertionError("\n".join(log.read_text()[-2000:] for log in sorted(root.glob("*.[lo][ou]*"))))
        time.sleep(0.2)
