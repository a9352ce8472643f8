"""MDCGCalculator in the place of MACE's calculator: models, keywords, descriptors, slabs, heads."""

from __future__ import annotations

import copy
import inspect
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.lj import LennardJones
from ase.calculators.mixing import SumCalculator
from numpy.testing import assert_allclose

from mdcg import (
    KernelCompileError,
    MDCGCalculator,
    UnsupportedProblemError,
    patch_model,
    unpatch_model,
)
from mdcg.calculators import drop_in, torch_backend
from mdcg.package import convert_model
from mdcg.patch import is_patched
from mdcg.patch._frameworks import default_dtype

from ..calculators.kinds import SYSTEMS
from .conftest import build_model

BLOCKS = ("RealAgnosticInteractionBlock", "RealAgnosticResidualInteractionBlock")
HEADS = ["pbe", "Default", "r2scan"]


def random_model(seed: int = 3, **options: Any) -> torch.nn.Module:
    return build_model(*BLOCKS, seed=seed, **options)


def many_heads() -> torch.nn.Module:
    energies = np.linspace(-3.0, -1.0, 6).reshape(3, 2)
    scale = {"atomic_inter_scale": [1.0, 1.5, 2.0], "atomic_inter_shift": [0.1, 0.2, 0.3]}
    return random_model(heads=HEADS, atomic_energies=energies, **scale)


def mace_calculator(models: Any, **options: Any) -> Any:
    from mace.calculators import MACECalculator

    return MACECalculator(
        models=copy.deepcopy(models), **{"device": "cpu", "default_dtype": "float64", **options}
    )


@pytest.fixture(scope="module")
def models() -> list[torch.nn.Module]:
    """Return two models that no test changes."""
    return [random_model(3), random_model(4)]


@pytest.fixture(scope="module")
def files(models: list[torch.nn.Module], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    paths = [folder / f"some_{number}.model" for number in range(2)]
    for model, path in zip(models, paths, strict=True):
        torch.save(model, path)
    return paths


@pytest.fixture(scope="module")
def packages(models: list[torch.nn.Module], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("packages")
    paths = [folder / f"some_{number}.mdcg" for number in range(2)]
    for model, path in zip(models, paths, strict=True):
        convert_model(model).save(path)
    return paths


def slab() -> Atoms:
    return SYSTEMS["slab"]()


def compare(found: MDCGCalculator, wanted: Any, atoms: Atoms) -> None:
    """Compare all results that MACE's calculator has with the same names."""
    with default_dtype(torch.float64):
        wanted.calculate(atoms)
    # the stress of a slab: see below
    names = [name for name in wanted.results if not name.startswith(("node_energy", "stress"))]
    for name in ("energies", "forces"):
        found.get_property(name, atoms)
    for name in names:
        assert_allclose(found.results[name], wanted.results[name], rtol=0, atol=1e-10, err_msg=name)


# ---- what is given ----


def test_a_mace_calculator(models: list[torch.nn.Module], caplog: pytest.LogCaptureFixture) -> None:
    """Its models are patched in place, and both calculators give the numbers of the original."""
    given, original = mace_calculator(models[0]), mace_calculator(models[0])
    atoms = slab()
    with caplog.at_level(logging.INFO, logger="mdcg"):
        calc = MDCGCalculator(given)
    assert "patched the loaded model in place; mdcg.unpatch_model restores it" in caplog.text
    assert calc.is_patched
    assert calc.model is given.models[0]
    compare(calc, original, atoms)
    compare(calc, given, atoms)
    assert unpatch_model(given.models[0]) > 0
    assert not calc.is_patched
    calc.reset()
    compare(calc, original, atoms)


def test_a_committee_of_models(
    models: list[torch.nn.Module], files: list[Path], packages: list[Path]
) -> None:
    """However it is given, it has the results of MACE's committee, by MACE's names, too."""
    original, atoms = mace_calculator(models), slab()
    for given in (
        mace_calculator(models),
        copy.deepcopy(models),
        [mace_calculator(models[0]), copy.deepcopy(models[1])],
        files,
        str(files[0].parent / "some_*.model"),
        packages,
        str(packages[0].parent / "*.mdcg"),
    ):
        calc = MDCGCalculator(given)
        compare(calc, original, atoms)
        assert {"energy_var", "forces_comm", "forces_var"} <= set(calc.results)
        other = copy.deepcopy(calc)
        other.reset()
        repeated = other.get_property("forces", atoms)
        assert_allclose(repeated, calc.results["forces"], rtol=0, atol=1e-14)
        assert calc.results["forces_committee"].shape == (2, 6, 3)
    assert MDCGCalculator(files).is_patched
    assert "committee of 2 models, patched ScaleShiftMACE" in repr(MDCGCalculator(files))
    assert MDCGCalculator(str(files[0].parent / "*_1.model")).parameters["model"] == str(files[1])


def test_a_calculator_that_was_used_before(models: list[torch.nn.Module]) -> None:
    """An evaluation changes the keys of MACE's calculator, and later changes have no effect."""
    keys = {"total_charge": "q"}
    used, new = mace_calculator(models[0], info_keys=keys), mace_calculator(models[1])
    new.info_keys = dict(keys)
    used.calculate(slab())
    assert used.arrays_keys
    calc = MDCGCalculator([used, new])
    keys["total_charge"] = 3  # type: ignore[assignment]
    compare(calc, mace_calculator(models), slab())
    copy.deepcopy(calc)


def test_a_committee_whose_members_read_different_inputs() -> None:
    """A change of what only the first member reads has its effect."""
    spec = {"type": "categorical", "per": "graph", "num_classes": 7, "emb_dim": 4, "offset": 3}
    charged = random_model(embedding_specs={"total_charge": spec})
    for first, key, values in ((many_heads(), "head", HEADS), (charged, "charge", [0, 1, -1])):
        calc, atoms = MDCGCalculator([first, random_model()]), slab()
        for value in values:
            atoms.info[key] = value
            found = calc.get_potential_energy(atoms)
            want = MDCGCalculator([first, random_model()]).get_potential_energy(atoms)
            assert found == pytest.approx(want, abs=1e-10)


def test_stress_of_a_committee(models: list[torch.nn.Module], packages: list[Path]) -> None:
    original, atoms = mace_calculator(models), SYSTEMS["triclinic"]()
    original.calculate(atoms)
    for calc in (MDCGCalculator(packages), MDCGCalculator(copy.deepcopy(models))):
        found = calc.get_property("stress", atoms)
        assert_allclose(found, original.results["stress"], rtol=0, atol=1e-12)
        for name in ("stress_comm", "stress_var"):
            assert calc.results[name].shape == original.results[name].shape
            assert_allclose(calc.results[name], original.results[name], rtol=0, atol=1e-12)


def test_committees_that_do_not_fit(
    models: list[torch.nn.Module], files: list[Path], packages: list[Path]
) -> None:
    wider = random_model(r_max=5.0)
    with pytest.raises(ValueError, match=r"committee have r_max 4\.0 and 5\.0, expected one value"):
        MDCGCalculator([copy.deepcopy(models[0]), wider])
    with pytest.raises(
        ValueError, match=r"committee have dtype torch\.float64 and torch\.float32, e"
    ):
        MDCGCalculator([copy.deepcopy(models[0]), copy.deepcopy(models[1]).float()])
    message = r"has the member '.*some_0\.model', expected paths of packages .* or none of these at"
    for name in (packages[0], "mace-mpa-0"):  # refused before anything is downloaded
        with pytest.raises(ValueError, match=message):
            MDCGCalculator([name, str(files[0])])
    with pytest.raises(ValueError, match="a committee has the member a ScaleShiftMACE, expected p"):
        MDCGCalculator([packages[0], copy.deepcopy(models[0])])
    one, two = many_heads(), many_heads()
    calculators = [mace_calculator(m, head=h) for m, h in ((one, "pbe"), (two, "r2scan"))]
    with pytest.raises(ValueError, match="committee have head 'pbe' and 'r2scan', expected one va"):
        MDCGCalculator(calculators)
    with pytest.raises(ValueError, match=r"no file matches '.*none_\*\.model', expected one packa"):
        MDCGCalculator(str(files[0].parent / "none_*.model"))


def test_what_is_no_model() -> None:
    expected = "expected the path of a package or checkpoint, the name of a published model, a tor"
    for given, message in (
        (LennardJones(), f"model is a LennardJones, {expected}"),
        (3, f"model is an int, {expected}"),
        ([3], f"model is an int, {expected}"),
        (
            SumCalculator([LennardJones(), LennardJones()]),
            r"is a SumCalculator, .*\(give one of the calculators that it adds\), or a list",
        ),
        (None, "no model was given, expected one as the first argument, as model_paths or as mo"),
    ):
        with pytest.raises(TypeError, match=message):
            MDCGCalculator(given)  # type: ignore[arg-type]


def _replace_forward(layer: Any) -> None:
    layer.forward = layer.forward


def test_models_that_cannot_be_patched(
    models: list[torch.nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    """They run as they were given, and one sentence says why; a copy does not repeat it."""

    model = copy.deepcopy(models[0])
    for number in range(2):
        _replace_forward(model.interactions[number].conv_tp)
        _replace_forward(model.products[number].symmetric_contractions)
    atoms, original = slab(), mace_calculator(models[0])
    with caplog.at_level(logging.WARNING, logger="mdcg"):
        calc = MDCGCalculator(model)
        copy.deepcopy(calc)
    (record,) = caplog.records
    assert re.match(
        "ScaleShiftMACE runs as it was given, without mdcg's kernels: 4 of 6 layers of ScaleShift"
        r"MACE cannot be patched \(interactions\.0\.conv_tp: its forward has been replaced",
        record.getMessage(),
    )
    assert "allow_partial" not in record.getMessage()
    assert not calc.is_patched
    compare(calc, original, atoms)
    calculator = mace_calculator(models[0])
    calculator.use_compile = True
    with pytest.raises(
        UnsupportedProblemError, match=r"were compiled .* made without compile_mode"
    ):
        MDCGCalculator(calculator)


def test_a_model_that_is_patched_in_part(caplog: pytest.LogCaptureFixture) -> None:
    model = random_model()
    _replace_forward(model.interactions[1].conv_tp)
    with caplog.at_level(logging.WARNING, logger="mdcg"):
        calc = MDCGCalculator(model)
        copy.deepcopy(calc)
    (record,) = caplog.records
    assert re.match(
        "ScaleShiftMACE runs in part as it was given, without mdcg's kernels: "
        r"interactions\.1\.conv_tp: ",
        record.getMessage(),
    )
    assert calc.is_patched
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="mdcg"):
        MDCGCalculator(model)
    assert len(caplog.records) == 1, "another calculator of the model says so as well"


@pytest.mark.parametrize(
    "wrong",
    [
        {"head": "typo"},
        {"model_type": "DipoleMACE"},
        {"species_types": {"O": "oxygen"}},
        {"dtype": "float16"},
    ],
)
def test_a_refusal_leaves_the_model_as_it_was(wrong: dict[str, Any]) -> None:
    model = random_model()
    with pytest.raises(ValueError, match=r"typo|DipoleMACE|species_types|float16"):
        MDCGCalculator(model, **wrong)
    assert not is_patched(model)


def test_a_failure_leaves_all_models_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing compiler is an error, as for packages, and no reason to run without kernels."""
    models = [random_model(3), random_model(4), random_model(5)]
    patch_model(models[0])

    def patch(model: torch.nn.Module, **options: bool) -> Any:
        if model is models[2]:
            raise KernelCompileError("no C++ compiler was found")
        return patch_model(model, **options)

    monkeypatch.setattr(torch_backend, "patch_model", patch)
    with pytest.raises(KernelCompileError, match=r"no C\+\+ compiler"):
        MDCGCalculator(models)
    assert [is_patched(model) for model in models] == [True, False, False]


def test_a_model_in_another_precision(caplog: pytest.LogCaptureFixture) -> None:
    model = random_model()
    with caplog.at_level(logging.INFO, logger="mdcg"):
        calc = MDCGCalculator(model, dtype="float32")
    assert (
        "patched a copy of the loaded model, because its device or dtype is another" in caplog.text
    )
    assert "in place" not in caplog.text
    assert calc.is_patched
    assert not is_patched(model)


# ---- keywords ----


def test_keywords_of_mace(
    models: list[torch.nn.Module], files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call has the numbers of MACECalculator with the same keywords."""
    # mace sets it when it is imported
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    from mace.calculators import MACECalculator

    one, pattern = files[0], str(files[0].parent / "some_*.model")
    for keywords in (
        {"model_paths": str(one), "device": "cpu", "default_dtype": "float64"},
        {"model_paths": one, "default_dtype": ""},
        {"model_paths": [str(one)], "default_dtype": "float64", "head": "Default"},
        {"model_paths": pattern, "device": "cpu", "default_dtype": "float64"},
        {"model_paths": [str(path) for path in files], "model_type": "MACE"},
        {"models": copy.deepcopy(models[0]), "charges_key": "Qs"},
        {"models": copy.deepcopy(models), "info_keys": None, "arrays_keys": None},
        {"model_path": str(one), "fullgraph": True, "enable_cueq": False, "pad_num_atoms": 0},
    ):
        wanted = copy.deepcopy(keywords)
        compare(MDCGCalculator(**keywords), MACECalculator(**wanted), slab())
    single = MDCGCalculator(model_paths=str(one), default_dtype="float32")
    assert single.parameters["dtype"] == "float32"


def test_the_table_has_every_keyword_of_mace() -> None:
    from mace.calculators import MACECalculator

    theirs = set(inspect.signature(MACECalculator.__init__).parameters) - {"self", "kwargs"}
    ours = set(inspect.signature(MDCGCalculator.__init__).parameters)
    assert theirs - ours <= set(drop_in.KEYWORDS)
    assert not ours & set(drop_in.KEYWORDS)


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        (
            {"compile_mode": "default"},
            "compile_mode of MDCGCalculator is 'default', expected None, which is the only value "
            "that has a meaning in mdcg: leave it out, because torch.compile does not compile",
        ),
        ({"fullgraph": False}, "fullgraph .* is False, expected True, .*: leave it out"),
        ({"enable_cueq": True}, "enable_cueq .* is True, expected False, .* kernels take the plac"),
        ({"enable_oeq": True}, "enable_oeq .* is True, expected False"),
        ({"pad_num_atoms": 64}, "pad_num_atoms .* is 64, expected 0, .* run without padding"),
        ({"pad_num_edges": 64}, "pad_num_edges .* is 64, expected 0"),
        ({"warmup": True}, "warmup .* is True, expected False, .*: call the calculator once"),
        ({"energy_units_to_eV": 27.2}, r"energy_units_to_eV .* 27\.2, expected 1\.0, .*: multiply"),
        ({"length_units_to_A": 0.5}, r"length_units_to_A .* 0\.5, expected 1\.0, .*: multiply"),
        ({"compute_atomic_stresses": True}, "compute_atomic_stresses .*: leave it out, and ask a"),
        ({"model_type": "DipoleMACE"}, "'DipoleMACE', but the model is a ScaleShiftMACE: leave o"),
        ({"model_type": "BigMACE"}, "model_type is 'BigMACE', expected one of: MACE, PolarMACE, E"),
        ({"info_keys": {"total_charge": 3}}, "info_keys is .*, expected keys by names of inputs"),
        ({"arrays_keys": "charges"}, "arrays_keys is 'charges', expected keys by names of inputs"),
        ({"charges_key": 3}, "charges_key is 3, expected the key of an array"),
        ({"stress_volume": "vasp"}, "stress_volume is 'vasp', expected 'cell' or 'mace'"),
        ({"default_dtyp": "float64"}, "default_dtyp='float64', expected .*: did you mean default_"),
        ({"dispersio": "pbe"}, r"dispersio='pbe', expected .*: did you mean dispersion\?"),
        ({"thread": 2}, r"thread=2, expected .*: did you mean threads\?"),
        (
            {"zzz": 1},
            r"was given zzz=1, expected one of its own arguments \(model, device, .*, stress_volum"
            r"e, .*\) or of MACECalculator's \(model_paths, .*, compute_atomic_stresses\)$",
        ),
        ({"models": []}, "model and models were both given, expected one of them"),
        ({"default_dtype": "float64", "dtype": "float32"}, "dtype and default_dtype were both giv"),
    ],
)
def test_keywords_without_a_meaning(
    keyword: dict[str, Any], message: str, packages: list[Path]
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        MDCGCalculator(packages[0], **keyword)


def test_units_of_a_mace_calculator(models: list[torch.nn.Module]) -> None:
    with pytest.raises(ValueError, match=r"energy_units_to_eV of the MACECalculator is 27\.2, exp"):
        MDCGCalculator(mace_calculator(models[0], energy_units_to_eV=27.2))
    with pytest.raises(
        ValueError, match="compute_atomic_stresses of the MACECalculator is True, e"
    ):
        MDCGCalculator(mace_calculator(models[0], compute_atomic_stresses=True))


# ---- descriptors ----

SHAPES: dict[str, dict[str, Any]] = {
    "vectors": {},
    "one layer": {"num_interactions": 1},
    "scalars": {"hidden_irreps": "6x0e"},
    "three layers": {"num_interactions": 3, "hidden_irreps": "3x0e+3x1o+3x2e"},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_descriptors_are_those_of_mace(shape: str, tmp_path: Path) -> None:
    from e3nn import o3

    options = dict(SHAPES[shape])
    if "hidden_irreps" in options:
        options["hidden_irreps"] = o3.Irreps(options["hidden_irreps"])
    model = random_model(**options)
    convert_model(model).save(tmp_path / "x.mdcg")
    count = options.get("num_interactions", 2)
    original = mace_calculator(model)
    package = MDCGCalculator(tmp_path / "x.mdcg")
    calculators = [package, MDCGCalculator(mace_calculator(model))]
    for atoms in (slab(), molecule("H2O")):
        for given in (
            {"invariants_only": True},
            {"invariants_only": False},
            *({"num_layers": n, "invariants_only": i} for n in range(1, count) for i in (0, 1)),
            {"num_layers": count},
        ):
            want = original.get_descriptors(atoms, **given)
            for calc in calculators:
                found = calc.get_descriptors(atoms, **given)
                assert found.shape == want.shape
                assert_allclose(found, want, rtol=0, atol=1e-10, err_msg=str(given))
        found = calculators[1].get_descriptors(atoms)
        assert_allclose(found, original.get_descriptors(atoms), rtol=0, atol=1e-10)
        assert package.get_descriptors(atoms).shape[1] >= found.shape[1]
    for calc in calculators:
        nothing = calc.get_descriptors(Atoms(), invariants_only=False)
        assert nothing.shape == (0, original.get_descriptors(slab(), False).shape[1])
        for number in (0, -2, count + 1):
            with pytest.raises(ValueError, match=f"is {number}, expected 1 to {count}, or -1 for"):
                calc.get_descriptors(slab(), num_layers=number)


def test_descriptors_of_a_model_with_dipoles() -> None:
    from e3nn import o3

    model = random_model(model_class="EnergyDipolesMACE", MLP_irreps=o3.Irreps("4x0e+4x1o"))
    message = "is for packages and for MACE models of energies alone, and this is EnergyDipolesMACE"
    with pytest.raises(UnsupportedProblemError, match=message):
        MDCGCalculator(model).get_descriptors(slab())


def test_descriptors_of_committees(models: list[torch.nn.Module], packages: list[Path]) -> None:
    want = mace_calculator(models).get_descriptors(slab())
    for calc in (MDCGCalculator(packages), MDCGCalculator(copy.deepcopy(models))):
        found = calc.get_descriptors(slab(), invariants_only=True)
        assert isinstance(found, list)
        assert len(found) == 2
        for one, other in zip(found, want, strict=True):
            assert_allclose(one, other, rtol=0, atol=1e-10)


# ---- stress of slabs ----


@pytest.mark.parametrize("system", SYSTEMS)
def test_stress_as_in_mace(
    system: str, models: list[torch.nn.Module], packages: list[Path]
) -> None:
    original, atoms = mace_calculator(models[0]), SYSTEMS[system]()
    original.calculate(atoms)
    want = original.results["stress"]
    for model in (packages[0], copy.deepcopy(models[0])):
        calc = MDCGCalculator(model, stress_volume="mace")
        found = calc.get_property("stress", atoms)
        scale = max(1e-9, float(np.abs(want).max()))
        assert_allclose(found, want, rtol=0, atol=1e-9 * scale)
        (other,) = calc.batch([atoms], ["stress"])
        assert_allclose(other["stress"], want, rtol=0, atol=1e-9 * scale)
    calc = MDCGCalculator(packages[0], stress_volume="mace")
    assert_allclose(calc.get_property("stresses", atoms).sum(axis=0), want, atol=1e-9 * scale)
    assert calc.parameters["stress_volume"] == "mace"


def test_the_default_divides_by_the_cell(packages: list[Path]) -> None:
    atoms = slab()
    own = MDCGCalculator(packages[0]).get_property("stress", atoms)
    mace = MDCGCalculator(packages[0], stress_volume="mace").get_property("stress", atoms)
    length = (np.abs(atoms.positions).max() + 1.0) * 5.0 * 4.0
    assert_allclose(own * 30.0, mace * length, rtol=1e-12)
    with pytest.raises(PropertyNotImplementedError, match="stress needs a cell of three"):
        MDCGCalculator(packages[0]).get_property("stress", molecule("H2O"))


# ---- patching ----


def test_a_patched_model_stays_as_it_is(models: list[torch.nn.Module]) -> None:
    model = copy.deepcopy(models[0])
    patch_model(model)
    calc = MDCGCalculator(model)
    assert calc.model is model
    other = MDCGCalculator(model, dtype="float32")
    assert other.model is not model
    assert is_patched(model)
    assert next(model.parameters()).dtype == torch.float64
