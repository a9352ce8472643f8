"""The engine on AMD's devices: cases of CUDA devices on an emulated driver of HIP.

Some cases of convolutions with tables stand for the others. All of them, by hand, in the clone:

    EMULATED_CUDA_DEVICES=2 EMULATED_CUDA_LATE=1 python tests/emulator/emulator.py \\
        -m pytest -p hip_cases tests/engine/cuda_*cases.py
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..emulator.emulator import run_emulated
from .case_runs import run_cases_emulated

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

#: Tables with all degrees of features in both precisions, and flipped vectors.
CASES = {
    "cuda_table_cases.py": "flipped or (degrees and 2)",
}


@pytest.mark.parametrize("file", CASES)
def test_on_an_emulated_device_of_amd(file: str) -> None:
    run_cases_emulated(file, options=("-p", "hip_cases", "-k", CASES[file]))


SELFTEST = """
import sys
from mdcg.cli import selftest_device
from mdcg.cli.main import main
selftest_device.ATOMS, selftest_device.CHANNELS = 3, 4
selftest_device.TIMED_ATOMS, selftest_device.TIMED_CHANNELS, selftest_device._REPEATS = (3,), 8, 2
if sys.argv[2:]:
    selftest_device.LIMITS = dict.fromkeys(selftest_device.LIMITS, 0.0)
sys.exit(main(["selftest", "--device", "hip", "--report", sys.argv[1]]))
"""


def test_the_self_test_writes_a_report(tmp_path: Path) -> None:
    done = run_emulated("-c", SELFTEST, str(tmp_path / "report.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("hip, gfx90a, Emulated device\n")
    assert done.stdout.endswith("selftest: PASS\n")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["passed"] is True
    assert {(case["case"], case["dtype"]) for case in report["cases"]} == {
        (name, dtype) for name in ("MACE", "NequIP") for dtype in ("float32", "float64")
    }
    for case in report["cases"]:
        assert case["forces"] <= case["limit"]
    assert [each["atoms"] for each in report["times"]] == [3, 3]
    assert all(each["ms"] > 0 for each in report["times"])
    gpu = report["environment"]["gpu"]
    assert gpu["AMD devices"] == ["gfx90a Emulated device"]
    assert gpu["AMD driver"] == "for HIP 6.2"
    assert gpu["hiprtc"].startswith("6.2, ")


def test_the_self_test_fails(tmp_path: Path) -> None:
    """A deviation above its limit, and an error of a case, are in the report."""
    done = run_emulated("-c", SELFTEST, str(tmp_path / "a.json"), "strict")
    assert done.returncode == 3, done.stderr
    assert done.stdout.endswith("selftest: FAIL\n")
    done = run_emulated("-c", SELFTEST, str(tmp_path / "b.json"), EMULATED_CUDA_MEMORY="100000")
    assert done.returncode == 3, done.stderr
    report = json.loads((tmp_path / "b.json").read_text())
    assert all("out of memory on device hip:0" in case["error"] for case in report["cases"])


def test_devices_that_are_missing() -> None:
    code = "from mdcg import _core\n_core.parse_device('hip:1')"
    found = run_emulated("-c", code).stderr
    assert "device is 'hip:1', and there is one, hip:0: choose another one, or device cpu" in found
    found = run_emulated("-c", code, EMULATED_CUDA_DEVICES="0").stderr
    assert "device is 'hip:1', and the HIP driver finds none (hipInit failed: no" in found
    action = "): see whether rocminfo lists the card (as a user of the groups video and render), "
    assert found.rstrip().endswith(f"{action}or use device cpu")


def test_the_self_test_without_a_device(tmp_path: Path) -> None:
    """The error is the report."""
    done = run_emulated("-c", SELFTEST, str(tmp_path / "a.json"), EMULATED_CUDA_DEVICES="0")
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("hip: DeviceError: device is 'hip', and the HIP driver finds non")
    assert done.stdout.endswith("selftest: FAIL\n")
    report = json.loads((tmp_path / "a.json").read_text())
    assert report["passed"] is False
    assert report["error"] in done.stdout
    assert report["environment"]["gpu"]["AMD driver"] == "for HIP 6.2"
    done = run_emulated("-c", SELFTEST, str(tmp_path / "none" / "a.json"))
    assert done.stdout == ""
    assert f"mdcg: cannot write in {tmp_path / 'none'}: No such file" in done.stderr


def test_a_fault_that_ends_the_self_test(tmp_path: Path) -> None:
    """The report names what was running, and has the cases before it."""
    fault = (
        "import os\nfrom mdcg.cli import selftest_device\n"
        "compare = selftest_device._compare\n"
        "def fails(name, dtype, *others):\n"
        "    return os._exit(9) if dtype == 'float32' else compare(name, dtype, *others)\n"
        "selftest_device._compare = fails\n"
    )
    assert run_emulated("-c", fault + SELFTEST, str(tmp_path / "a.json")).returncode == 9
    report = json.loads((tmp_path / "a.json").read_text())
    assert report["running"] == "MACE, float32"
    assert report["passed"] is False
    assert [(case["dtype"], case["passed"]) for case in report["cases"]] == [("float64", True)]
    assert report["target"] == "gfx90a"


TWO_VENDORS = """
import sys, threading
from pathlib import Path
import numpy as np
from mdcg.bench.model import EngineStep, Settings
from mdcg.bench.systems import make_system
from mdcg.cli.selftest_networks import NETWORKS

path, atoms = NETWORKS["MACE"]("float64", 4, Path(sys.argv[1])), make_system("water", 3)
want = EngineStep(path, Settings(), atoms)()["forces"]
errors, together = [], threading.Barrier(2)

def work(*devices):
    for _ in range(2):
        steps = [EngineStep(path, Settings(device=device), atoms) for device in devices]
        for _ in range(3):  # layer by layer, captured and replayed
            together.wait(200)
            errors.extend(np.abs(step()["forces"] - want).max() for step in steps)
        while steps:
            del steps[0]

threads = [threading.Thread(target=work, args=a) for a in (("cuda", "hip"), ("hip", "cuda"))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(errors), max(errors) < 1e-7 * np.abs(want).max())
"""


def test_models_of_both_vendors(tmp_path: Path) -> None:
    """Two threads evaluate and destroy models on devices of both vendors, in turn."""
    done = run_emulated("-c", TWO_VENDORS, str(tmp_path / "a.mdcg"))
    assert done.stdout == "24 True\n", done.stderr


FORKED = """
import os, sys
import numpy as np
from pathlib import Path
from mdcg import _core
from mdcg.cli.selftest_networks import NETWORKS

path = str(NETWORKS["MACE"]("float64", 4, Path(sys.argv[1])))
def evaluate():
    _core.Model(path, device="hip").evaluate(np.eye(3), np.zeros(3))
def tell():
    for use in (evaluate, lambda: _core.parse_device("hip")):
        try:
            use()
        except Exception as error:
            print(error, flush=True)
tell() if sys.argv[2] == "fails" else evaluate()
sys.stdout.flush()
if os.fork() == 0:
    tell()
    os._exit(0)
os.wait()
"""


def test_forked_processes_are_told(tmp_path: Path) -> None:
    """HIP itself may end them."""
    done = run_emulated("-c", FORKED, str(tmp_path / "a.mdcg"), "works")
    assert done.stdout == 2 * (
        "device hip:0 cannot be used (HIP was started before the fork): a process that was forked "
        "from one that used it needs the start method 'spawn'\n"
    ), done.stderr


def test_a_start_that_failed_forbids_no_fork(tmp_path: Path) -> None:
    file = str(tmp_path / "a.mdcg")
    done = run_emulated("-c", FORKED, file, "fails", EMULATED_CUDA_DEVICES="0")
    lines = done.stdout.splitlines()
    assert len(lines) == 4, done.stderr
    assert all("the HIP driver finds none (hipInit failed" in line for line in lines)


def test_both_drivers_in_one_process() -> None:
    """Calls go to the vendor of their device, also while both have been started."""
    code = (
        "from mdcg import _core\n"
        "a, b = _core.parse_device('cuda'), _core.parse_device('hip')\n"
        "print(_core.device_target(a), _core.device_target(b), _core.device_target(a))"
    )
    assert run_emulated("-c", code).stdout == "sm_90 gfx90a sm_90\n"
