"""The process that has imported vLLM and forks the ranks of each scenario; see ranks.py, which starts it."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import os
import pickle
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from seqshift.cpu_bed.ranks import Outcome, RankContext, Scenario, tail

STACK_SIGNAL = signal.SIGUSR1
PR_SET_PDEATHSIG = 1
# After one rank has failed, the others get this long to report what they saw of it.
GRACE_SECONDS = 5.0
# faulthandler writes a dump at once, unless the machine is busy.
DUMP_SECONDS = 3.0
EXIT_SECONDS = 10.0
# The tracker ends by itself once the rank is gone.
TRACKER_SECONDS = 3.0


@dataclass
class Rank:
    """A forked rank as the server sees it."""

    context: RankContext
    pid: int
    pidfd: int
    connection: Connection
    stacks: Path
    value: bytes | None = None
    # None while running, then "value" or the text of the failure.
    state: str | None = None

    def alive(self) -> bool:
        """Whether the process has not ended yet."""
        return not wait([self.pidfd], 0)

    def status(self) -> str:
        """Reaps the process and says how it ended."""
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        return f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def warm() -> float:
    """Imports what a rank needs, so that forked ranks need not."""
    start = time.monotonic()
    from seqshift.cpu_bed import engine

    engine.warm()
    return time.monotonic() - start


def main() -> None:
    """Serves scenarios until the other end closes."""
    connection = Connection(int(sys.argv[1]))
    connection.send(warm())
    while True:
        try:
            scenario = connection.recv()
        except EOFError:
            # The interpreter's own shutdown takes seconds with torch in it.
            os._exit(0)
        with contextlib.suppress(BrokenPipeError):
            connection.send(run(scenario, connection))


def run(scenario: Scenario, server: Connection) -> Outcome:
    """Forks the ranks of a scenario and waits for all of them."""
    start = time.monotonic()
    ranks = []
    for context, environment in zip(scenario.contexts, scenario.environments):
        ranks.append(fork(scenario, context, environment, [server, *(r.connection for r in ranks)]))
    hung = collect(ranks, start + scenario.deadline_seconds, server)
    failure = None
    if all(r.state == "value" for r in ranks):
        values = [r.value for r in ranks]
    else:
        values = None
        failure = describe(ranks, hung, scenario.deadline_seconds)
    release(ranks)
    return Outcome(values, failure, time.monotonic() - start)


def fork(scenario: Scenario, context: RankContext, environment: dict, inherited: list[Connection]) -> Rank:
    """Forks one rank; returns in the parent only."""
    Path(context.log_path).parent.mkdir(parents=True, exist_ok=True)
    stacks = Path(context.log_path).with_suffix(".stacks")
    ours, theirs = Pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            for connection in (ours, *inherited):
                connection.close()
            become_rank(context, environment, stacks, parent)
            serve(scenario, context, theirs)
        except BaseException:
            traceback.print_exc()
        finally:
            # No interpreter shutdown: destructors of half-broken process groups can hang.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
    theirs.close()
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    return Rank(context, pid, os.pidfd_open(pid), ours, stacks)


def become_rank(context: RankContext, environment: dict, stacks: Path, parent: int) -> None:
    """Own process group, own log, own environment; dies with the server; dumps its stacks on STACK_SIGNAL."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    log = os.open(context.log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    # Kept open for the life of the process.
    dump = os.open(stacks, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    faulthandler.register(STACK_SIGNAL, file=dump, all_threads=True)
    faulthandler.enable(file=2)
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def serve(scenario: Scenario, context: RankContext, connection: Connection) -> None:
    """Runs the function, reports, and stays until the server lets go: a peer may still need this rank's sockets."""
    try:
        sys.path[:] = [*scenario.search_path, *(p for p in sys.path if p not in scenario.search_path)]
        function: Any = importlib.import_module(scenario.module)
        for part in scenario.function.split("."):
            function = getattr(function, part)
        args, kwargs = pickle.loads(scenario.arguments)
        connection.send(("value", pickle.dumps(function(context, *args, **kwargs))))
    except BaseException:
        text = traceback.format_exc()
        print(text, file=sys.stderr, flush=True)
        connection.send(("error", text))
    with contextlib.suppress(EOFError, OSError):
        connection.recv()


def collect(ranks: list[Rank], deadline: float, client: Connection) -> bool:
    """Waits until every rank has reported or ended, or the deadline has passed (then True).

    The first failure shortens the deadline: ranks that wait for a lost peer will not come back. When the client goes
    away there is nobody to report to.
    """
    waiting = list(ranks)
    limit = deadline
    while waiting:
        sources = [client, *(x for r in waiting for x in (r.connection, r.pidfd))]
        ready = wait(sources, max(0.0, limit - time.monotonic()))
        # In a scenario the client sends nothing: this is its end.
        if not ready or client in ready:
            break
        for rank in list(waiting):
            if rank.connection not in ready and rank.pidfd not in ready:
                continue
            # A rank that reports and ends at once must not be taken for dead.
            if rank.connection.poll():
                with contextlib.suppress(EOFError, OSError):
                    kind, payload = rank.connection.recv()
                    rank.state = "value" if kind == "value" else f"raised\n{payload}"
                    rank.value = payload if kind == "value" else None
            if rank.state is None:
                rank.state = f"died without a report, {rank.status()}"
            waiting.remove(rank)
            if rank.state != "value":
                limit = min(limit, time.monotonic() + GRACE_SECONDS)
    if waiting:
        dump_stacks(waiting)
    return bool(waiting) and time.monotonic() >= deadline


def dump_stacks(ranks: list[Rank]) -> None:
    """Asks every rank for its stacks and waits until the dumps have stopped growing."""
    for rank in ranks:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank.pid, STACK_SIGNAL)
    limit = time.monotonic() + DUMP_SECONDS
    sizes = None
    while time.monotonic() < limit:
        seen = [rank.stacks.stat().st_size for rank in ranks]
        if all(seen) and seen == sizes:
            return
        sizes = seen
        wait([r.pidfd for r in ranks], 0.1)


def describe(ranks: list[Rank], hung: bool, deadline: float) -> str:
    """The failure as text: what happened to each rank, its stacks if it was still running, the tail of its log."""
    lines = [f"not finished within {deadline:g} s" if hung else "a rank failed"]
    for rank in ranks:
        lines.append(f"--- rank {rank.context.rank}")
        if rank.state is None:
            lines.append("still running; stacks:")
            lines.append(rank.stacks.read_text(errors="replace") or "(no stacks: the process does not answer)")
        else:
            lines.append("finished" if rank.state == "value" else rank.state)
        lines.append(f"log of rank {rank.context.rank} ends with:\n{tail(rank.context.log_path)}")
    return "\n".join(lines)


def end_children(group: int) -> None:
    """Lets Python's resource tracker of a rank that has ended unlink its shared memory, then kills what is left."""
    limit = time.monotonic() + TRACKER_SECONDS
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < limit:
            os.killpg(group, 0)
            time.sleep(0.01)
        os.killpg(group, signal.SIGKILL)


def release(ranks: list[Rank]) -> None:
    """Lets finished ranks exit, kills the rest with their children, and reaps all."""
    for rank in ranks:
        if rank.state == "value":
            with contextlib.suppress(OSError):
                rank.connection.send(None)
    limit = time.monotonic() + EXIT_SECONDS
    for rank in ranks:
        if rank.state == "value":
            wait([rank.pidfd], max(0.0, limit - time.monotonic()))
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(rank.pidfd, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(rank.pid, 0)
        os.close(rank.pidfd)
        end_children(rank.pid)
        rank.connection.close()


if __name__ == "__main__":
    main()
