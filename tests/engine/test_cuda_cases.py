"""The engine on CUDA devices: files of cases on emulated devices, and each on a real one.

Cases run in processes of their own, as a process opens a driver once and for all.
"""

from __future__ import annotations

import pytest

from .case_runs import run_cases_emulated, run_cases_on_a_device

#: These run on an emulator that works only when the program waits for it, so that a missing wait
#: gives no results. Other files run on an emulator that works at once.
WAITING = (
    "cuda_cases.py",
    "cuda_dispersion_cases.py",
    "cuda_ewald_cases.py",
    "cuda_exact_cases.py",
    "cuda_kernel_cases.py",
    "cuda_list_cases.py",
    "cuda_multipole_cases.py",
    "cuda_pair_cases.py",
    "cuda_particle_mesh_cases.py",
)
EDGES = ("cuda_edge_cases.py", "cuda_large_cases.py", "cuda_table_cases.py")
NODES = (
    "cuda_domain_cases.py",
    "cuda_input_cases.py",
    "cuda_node_cases.py",
    "cuda_precision_cases.py",
)
TYPES = ("cuda_batch_cases.py", "cuda_type_cases.py")

# Files of one run share a process, whose start takes as long as many cases.
pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]


def test_waiting_for_an_emulated_device() -> None:
    run_cases_emulated(*WAITING, EMULATED_CUDA_DEVICES="2", EMULATED_CUDA_LATE="1")


@pytest.mark.parametrize("files", [EDGES, NODES + TYPES], ids=["edges", "nodes"])
def test_on_an_emulated_device(files: tuple[str, ...]) -> None:
    run_cases_emulated(*files)


@pytest.mark.gpu
@pytest.mark.parametrize("file", [*WAITING, *EDGES, *NODES, *TYPES])
def test_on_a_device(file: str) -> None:
    run_cases_on_a_device(file)
