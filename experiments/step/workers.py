"""A process for each library and allocator, asked in turns: none disturbs another's threads."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from experiments.step.config import Case

_PAUSE = 0.02  # seconds that another library's threads may still spin


class Worker:
    """A process that holds what it built, one thing at a time under each name."""

    def __init__(self, side: str, tuned: bool, num_devices: int | None):
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, side, tuned, num_devices), daemon=True
        )
        self._process.start()
        theirs.close()
        self.facts: dict[str, Any] = self._receive()

    def ask(self, *request: Any) -> Any:
        """The answer to a request.

        Raises:
          RuntimeError: what went wrong there, with its traceback.
        """
        self._ours.send(request)
        return self._receive()

    def _receive(self) -> Any:
        try:
            failure, answer = self._ours.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(
                f"a process ended without an answer, exit code {self._process.exitcode}; was it "
                "out of memory?"
            ) from None
        if failure:
            raise RuntimeError(failure)
        return answer

    def close(self) -> None:
        """Ends the process."""
        self._ours.close()
        self._process.join(10)
        self._process.kill()


def _serve(pipe: Connection, side: str, tuned: bool, num_devices: int | None) -> None:
    held: dict[str, Any] = {}
    # Several processes share an accelerator's memory: none takes most of it at its start.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        if tuned:
            from bucketjax.launching import keep_freed_memory

            keep_freed_memory()
        if side == "jax":
            from experiments.step import jax_side as module
        else:
            from experiments.step import torch_side as module
        pipe.send((None, module.start(num_devices)))
    except Exception:
        pipe.send((traceback.format_exc(), None))
        return
    while True:
        try:
            request, *arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((None, _answer(module, held, request, *arguments)))
        except Exception:
            pipe.send((traceback.format_exc(), None))


def _answer(module: Any, held: dict[str, Any], request: str, *arguments: Any) -> Any:
    if request == "peak":
        return module.peak()
    if request == "build":
        name, case, contender, devices = arguments
        return _build(module, held, name, case, contender, devices)
    if request == "build epoch":
        from experiments.step import epochs

        name, path, arm, devices = arguments
        make = epochs.build_torch if "torch" in name else epochs.build_ours
        held[name], facts = make(Path(path), arm, devices)
        return facts
    if request == "time":
        (name,) = arguments
        time.sleep(_PAUSE)
        started = time.perf_counter()
        result = held[name]()
        return time.perf_counter() - started, result
    assert request == "free"
    held.clear()
    return None


def _build(
    module: Any, held: dict[str, Any], name: str, case: Case, contender: str, devices: int
) -> int | None:
    """Builds and runs once; returns the bytes that a run takes."""
    run, memory = module.build(case, contender, devices)
    held[name] = run
    if memory is None:
        before = _resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # starts VmHWM anew
        run()
        return _resident("VmHWM") - before
    run()
    return memory


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0
