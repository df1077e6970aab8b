"""Runs a function in every rank of a DP (x TP) group, each rank a process forked from one that has imported vLLM.

The process that asks does not import vLLM. `Bed` starts `seqshift.cpu_bed.server` once, which imports vLLM and forks
the ranks of one scenario at a time. A scenario has a deadline; when it passes, or when a rank fails, the Python stacks
of the ranks still alive and the tails of their logs go into the `ScenarioError`, and every process is killed.
"""

from __future__ import annotations

import os
import pickle
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Callable

from seqshift.cpu_bed.cache import CACHE

LOGS = CACHE / "logs"
# vLLM, torch and the model class; minutes on a busy machine.
IMPORT_DEADLINE_SECONDS = 400
# From the server's own deadline to the moment we give up on the server.
SERVER_MARGIN_SECONDS = 60

# What the server, and so every rank, runs with.
ENVIRONMENT = {
    "VLLM_USE_V1": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    # No pool of compiling processes, each of which would import torch.
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONHASHSEED": "0",
}
# A developer's own settings must not leak into a scenario.
FOREIGN_PREFIXES = ("ROLLOUT_REBALANCE_", "SEQSHIFT_", "VLLM_")


class ScenarioError(AssertionError):
    """A rank failed, died or hung; the message holds errors, stacks and log tails."""


@dataclass(frozen=True)
class RankContext:
    """Who a rank is. `rank` counts over the world: `dp_rank * tp_size + tp_rank`."""

    rank: int
    dp_rank: int
    dp_size: int
    tp_rank: int
    tp_size: int
    deadline_seconds: float
    # One free port per engine that this rank may start one after the other (the same on all ranks of a DP group).
    dp_ports: tuple[int, ...]
    log_path: str

    @property
    def world_size(self) -> int:
        """Ranks over DP and TP."""
        return self.dp_size * self.tp_size


@dataclass
class Scenario:
    """What is sent to the server."""

    module: str
    function: str
    # Pickled (args, kwargs): only a rank has the search path to import their classes.
    arguments: bytes
    search_path: list[str]
    contexts: list[RankContext]
    environments: list[dict[str, str | None]]
    deadline_seconds: float


@dataclass
class Outcome:
    """What the server answers: one value per rank, or the failure as text."""

    # Pickled.
    values: list[bytes] | None = None
    failure: str | None = None
    seconds: float = 0.0


@dataclass
class Bed:
    """The server process and the way to run scenarios in ranks forked from it."""

    import_seconds: float = 0.0
    _process: subprocess.Popen | None = None
    _connection: Any = None
    _count: int = 0
    _log: Path = field(default_factory=lambda: LOGS / "server.log")

    def start(self) -> Bed:
        """Starts the server and waits until it has imported vLLM."""
        LOGS.mkdir(parents=True, exist_ok=True)
        ours, theirs = Pipe()
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN_PREFIXES)}
        descriptor, name = tempfile.mkstemp(prefix="server-", suffix=".log", dir=LOGS)
        self._log = Path(name)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "seqshift.cpu_bed.server", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**inherited, **ENVIRONMENT},
            cwd=LOGS,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
        )
        os.close(descriptor)
        theirs.close()
        self._connection = ours
        self.import_seconds = self._answer(IMPORT_DEADLINE_SECONDS)
        return self

    def stop(self) -> None:
        """Ends the server; a scenario is never left running."""
        if self._process is None:
            return
        self._connection.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = None
        self._log.unlink(missing_ok=True)

    def run(
        self,
        function: Callable,
        *args: Any,
        dp: int = 2,
        tp: int = 1,
        env: dict[str, str | None] | None = None,
        rank_env: dict[int, dict[str, str | None]] | None = None,
        deadline: float = 120,
        **kwargs: Any,
    ) -> list[Any]:
        """Calls `function(ctx, *args, **kwargs)` in each of dp * tp ranks and returns what each returned, by rank.

        `function` must be importable by its module and name, its arguments and result picklable without vLLM's
        classes. `env` is set in every rank, `rank_env[rank]` over it; None unsets. Raises ScenarioError.
        """
        if self._process is None:
            raise RuntimeError("the bed is not started")
        self._count += 1
        world = dp * tp
        engines = 3
        ports = free_ports(1 + tp * engines * 2)
        master, rest = ports[0], ports[1:]
        folder = LOGS / f"{os.getpid()}-{self._count:03d}-{function.__name__}"
        folder.mkdir(parents=True, exist_ok=True)
        contexts, environments = [], []
        for rank in range(world):
            dp_rank, tp_rank = divmod(rank, tp)
            # vLLM takes the port after the one it is given as well.
            dp_ports = tuple(rest[(tp_rank * engines + i) * 2] for i in range(engines))
            contexts.append(
                RankContext(rank, dp_rank, dp, tp_rank, tp, deadline, dp_ports, str(folder / f"rank{rank}.log"))
            )
            environments.append(
                {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(world),
                    "LOCAL_RANK": str(rank),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(master),
                    "VLLM_DP_RANK": str(dp_rank),
                    "VLLM_DP_RANK_LOCAL": str(dp_rank),
                    "VLLM_DP_SIZE": str(dp),
                    "VLLM_DP_MASTER_IP": "127.0.0.1",
                    "VLLM_DP_MASTER_PORT": str(dp_ports[0]),
                    "VLLM_CPU_OMP_THREADS_BIND": "|".join(["all"] * world),
                    **(env or {}),
                    **(rank_env or {}).get(rank, {}),
                }
            )
        scenario = Scenario(
            function.__module__,
            function.__qualname__,
            pickle.dumps((args, kwargs)),
            list(sys.path),
            contexts,
            environments,
            deadline,
        )
        self._connection.send(scenario)
        outcome = self._answer(deadline + SERVER_MARGIN_SECONDS)
        if outcome.failure is not None:
            raise ScenarioError(f"{function.__name__} (dp={dp}, tp={tp}): {outcome.failure}\nlogs: {folder}")
        shutil.rmtree(folder)
        return [pickle.loads(value) for value in outcome.values]

    def _answer(self, deadline: float) -> Any:
        limit = time.monotonic() + deadline
        while time.monotonic() < limit:
            if self._connection.poll(min(1.0, max(0.0, limit - time.monotonic()))):
                try:
                    return self._connection.recv()
                except EOFError:
                    break
            if self._process.poll() is not None:
                break
        status = self._process.poll()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        state = "does not answer" if status is None else f"ended with status {status}"
        raise ScenarioError(f"the server of the test bed {state}\n{tail(self._log)}")


def free_ports(count: int) -> list[int]:
    """That many consecutive free TCP ports below the ephemeral range.

    The start is random, so that two test runs on one machine seldom try the same ones.
    """
    source = random.SystemRandom()
    while True:
        first = source.randrange(16000, 32000 - count)
        sockets = []
        try:
            for port in range(first, first + count):
                sockets.append(socket.socket())
                sockets[-1].bind(("127.0.0.1", port))
        except OSError:
            continue
        finally:
            for bound in sockets:
                bound.close()
        return list(range(first, first + count))


def tail(path: Path | str, lines: int = 40) -> str:
    """The last lines of a text file."""
    try:
        text = Path(path).read_text(errors="replace")
    except OSError as error:
        return f"({error})"
    return "\n".join(text.splitlines()[-lines:])
