"""The engine on CUDA devices: each file of cases on an emulated device, and on a real one.

Cases run in processes of their own, as a process opens a driver once and for all.
"""

from __future__ import annotations

import pytest

from .case_runs import run_cases_emulated, run_cases_on_a_device

#: Files of cases; of the long ones parts, which can run side by side.
CASES = {
    "cuda_batch_cases.py": [""],
    "cuda_cases.py": [""],
    "cuda_dispersion_cases.py": [""],
    "cuda_edge_cases.py": [""],
    "cuda_exact_cases.py": [""],
    "cuda_kernel_cases.py": [""],
    "cuda_large_cases.py": [""],
    "cuda_list_cases.py": [""],
    "cuda_node_cases.py": ["linear", "contraction", "gate", "not (linear or con or gate)"],
    "cuda_precision_cases.py": [""],
    "cuda_table_cases.py": [""],
    "cuda_type_cases.py": [""],
}
#: These run a second time with an emulator that works only when somebody waits for it.
LATE = (
    "cuda_batch_cases.py",
    "cuda_cases.py",
    "cuda_dispersion_cases.py",
    "cuda_exact_cases.py",
    "cuda_list_cases.py",
)
RUNS = [(file, part, "") for file, parts in CASES.items() for part in parts]
RUNS += [(file, "", "1") for file in LATE]


@pytest.mark.parametrize(("file", "part", "late"), RUNS)
def test_on_emulated_devices(file: str, part: str, late: str) -> None:
    settings = {"EMULATED_CUDA_DEVICES": "2"} if file == "cuda_cases.py" else {}
    options = ("-k", part) if part else ()
    run_cases_emulated(file, options=options, EMULATED_CUDA_LATE=late, **settings)


@pytest.mark.gpu
@pytest.mark.parametrize("file", CASES)
def test_on_a_device(file: str) -> None:
    run_cases_on_a_device(file)
