"""`worker.py` that records each workflow activation: `python -m ops.bench.controller.timed_worker FILE ARGS...`.

FILE gets a line {"workflow", "replaying", "cpu", "wall", ...} each, in seconds; CPU is that of the activation's thread.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails

import worker
from workflows import runner


def measure(file: Path) -> None:
    """Record every later activation to `file`."""
    out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    plain = runner.Runner.create_instance

    def timed(it: runner.Runner, det: WorkflowInstanceDetails) -> WorkflowInstance:
        began, cpu = time.monotonic(), time.thread_time()
        instance = plain(it, det)
        made = time.monotonic() - began, time.thread_time() - cpu
        activate, kind = instance.activate, det.info.workflow_type

        def timing(act: WorkflowActivation) -> WorkflowActivationCompletion:
            nonlocal made
            began, cpu = time.monotonic(), time.thread_time()
            try:
                return activate(act)
            finally:
                wall, spent = time.monotonic() - began + made[0], time.thread_time() - cpu + made[1]
                made = 0.0, 0.0
                row = {"workflow": kind, "replaying": act.is_replaying, "cpu": spent, "wall": wall, "at": began}
                row["jobs"] = [job.WhichOneof("variant") for job in act.jobs]
                os.write(out, json.dumps(row).encode() + b"\n")

        instance.activate = timing  # type: ignore[method-assign]
        return instance

    runner.Runner.create_instance = timed  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
    code = worker.main(sys.argv[2:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
