"""Entry point of a benchmark process: ``python -m mdcg.bench.worker JOB.json RESULT.json``."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .jobs import ConvJob, ModelJob

__all__ = ["JOBS", "main", "perform"]

_log = logging.getLogger("mdcg.bench")


def _machine(job: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    from .gpu import device_name
    from .roofline import measure_machine

    device = job.get("device", "cpu")
    found = {
        name: measure_machine(
            getattr(torch, name),
            size=job["matrix_size"],
            megabytes=job["megabytes"],
            device=device,
        ).as_dict()
        for name in job["dtypes"]
    }
    result = {"torch": torch.__version__, "torch_threads": torch.get_num_threads(), "rates": found}
    if device == "cuda":
        result["gpu"] = device_name()
    return result


def _conv_timing(job: Mapping[str, Any]) -> dict[str, Any]:
    from .conv import measure_timing

    return measure_timing(ConvJob.from_dict(job["options"]))


def _conv_memory(job: Mapping[str, Any]) -> dict[str, Any]:
    from .conv import measure_memory

    return measure_memory(ConvJob.from_dict(job["options"]), job["impl"])


def _conv_startup(job: Mapping[str, Any]) -> dict[str, Any]:
    from .conv import measure_startup

    return measure_startup(ConvJob.from_dict(job["options"]), job["impl"])


def _model_timing(job: Mapping[str, Any]) -> dict[str, Any]:
    from .model_timing import measure_timing

    return measure_timing(ModelJob.from_dict(job["options"]))


def _model_memory(job: Mapping[str, Any]) -> dict[str, Any]:
    from .model_timing import measure_memory

    return measure_memory(ModelJob.from_dict(job["options"]), job["impl"])


JOBS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "machine": _machine,
    "conv-timing": _conv_timing,
    "conv-memory": _conv_memory,
    "conv-startup": _conv_startup,
    "model-timing": _model_timing,
    "model-memory": _model_memory,
}


def perform(job: Mapping[str, Any]) -> dict[str, Any]:
    """Do a job and return its result, or ``{"error": ...}``."""
    try:
        return JOBS[job["kind"]](job)
    except Exception as error:  # the parent says what happened; the traceback goes to the log
        _log.exception("job %s failed", job["kind"])
        return {"error": {"type": type(error).__name__, "message": str(error)}}


def main(argv: list[str]) -> int:
    """Read a job file, do the job, write the result file."""
    request, answer = (Path(name) for name in argv)
    job = json.loads(request.read_text())
    if job.get("verbose"):
        logging.basicConfig(format="    %(message)s")
        _log.setLevel(logging.INFO)
    result = perform(job)
    partial = answer.with_suffix(".partial")
    partial.write_text(json.dumps(result))
    partial.rename(answer)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
