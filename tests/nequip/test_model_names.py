"""Published models of NequIP and SevenNet by name, from their own caches."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import requests

import mdcg
from mdcg.cli.patch import main
from mdcg.patch.model_names import find_checkpoint
from mdcg.runtime.cache import is_name

NAME = "nequip.net:some-group/Some-Model-S:0.1"


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def offline(*args: Any, **options: Any) -> None:
        raise requests.exceptions.ConnectionError("no network (Caused by a test)")

    monkeypatch.setattr(requests.Session, "get", offline)
    monkeypatch.setattr(requests, "get", offline)
    monkeypatch.setenv("NEQUIP_CACHE_DIR", str(tmp_path / "models"))
    monkeypatch.setenv("HOME", str(tmp_path))


def put_into_cache(file: Path) -> Path:
    """Let NequIP's own function keep a file as a model of nequip.net."""
    from nequip.model.saved_models import load_utils  # as its logger needs

    identity = NAME.removeprefix("nequip.net:")
    return Path(
        load_utils.cache_model(identity, "https://host/file", lambda path: shutil.copy(file, path))
    )


@pytest.mark.parametrize("name", [NAME, NAME.removeprefix("nequip.net:")])
def test_nequip_net_from_the_cache(name: str, tmp_path: Path) -> None:
    """What NequIP has downloaded before is found without a network."""
    (tmp_path / "x").write_bytes(b"model")
    kept = put_into_cache(tmp_path / "x")
    assert is_name(name)
    assert find_checkpoint(name) == (NAME, kept)
    with pytest.raises(mdcg.CheckpointError, match="is not on this machine"):
        find_checkpoint(NAME.replace("0.1", "0.2"))


def test_a_damaged_cache(tmp_path: Path) -> None:
    """NequIP compares a checksum, and records that cannot be read are passed over."""
    (tmp_path / "x").write_bytes(b"model")
    kept = put_into_cache(tmp_path / "x")
    record = next(kept.parent.glob("*.metadata.json"))
    assert json.loads(record.read_text())["file_sha256"] == hashlib.sha256(b"model").hexdigest()
    (kept.parent / "0.metadata.json").write_text("{")
    assert find_checkpoint(NAME)[1] == kept
    kept.write_bytes(b"other")
    with pytest.raises(mdcg.CheckpointError, match="nequip cannot download it"):
        find_checkpoint(NAME)


def test_nequip_net_without_network(tmp_path: Path, capsys: Any) -> None:
    assert main([NAME, "-o", "x.mdcg", "-q"]) == 4
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == (
        f"mdcg-patch: {NAME} is not on this machine, and nequip cannot download it "
        f"(ConnectionError: no network): it is looked for in {tmp_path / 'models'}, copy it there, "
        "or run this once where there is a network"
    )
    assert main([NAME, "--info", "-q"]) == 4
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"mdcg-patch: {NAME} is a published model that is not on this machine")


@pytest.mark.parametrize(
    ("name", "full", "file"),
    [
        ("sevennet-0", "7net-0", "SevenNet_0__11Jul2024/checkpoint_sevennet_0.pth"),
        ("7net-0_11July2024", "7net-0", "SevenNet_0__11Jul2024/checkpoint_sevennet_0.pth"),
        (
            "SevenNet-0_22May2024",
            "7net-0_22may2024",
            "SevenNet_0__22May2024/checkpoint_sevennet_0.",
        ),
        ("7net-l3i5", "7net-l3i5", "SevenNet_l3i5/checkpoint_l3i5.pth"),
        ("7net-mf-0", "7net-mf-0", "SevenNet_MF_0/checkpoint_sevennet_mf_0.pth"),
    ],
)
def test_files_that_sevennet_brings(name: str, full: str, file: str) -> None:
    util = pytest.importorskip("sevenn.util")
    assert is_name(name)
    found = find_checkpoint(name)
    assert found == (full, Path(util.pretrained_name_to_path(name)))
    assert file in str(found[1])


def test_files_that_sevennet_downloads(tmp_path: Path, capsys: Any) -> None:
    """They are found in SevenNet's cache; without them one sentence names the place."""
    util = pytest.importorskip("sevenn.util")
    place = tmp_path / ".cache/sevennet/SevenNet_omni_i8/checkpoint_sevennet_omni_i8.pth"
    assert main(["7net-omni-i8", "--info", "-q"]) == 4
    assert f"(it is looked for as {place}), and nothing is downl" in capsys.readouterr().err
    assert main(["7net-omni-i8", "-o", str(tmp_path / "x.mdcg"), "-q"]) == 4
    said = capsys.readouterr().err
    assert said == (
        "mdcg-patch: 7net-omni-i8 is not on this machine, and sevenn cannot download it "
        f"(ConnectionError: no network): it is looked for as {place}, copy it there, or run this "
        "once where there is a network\n"
    )
    place.parent.mkdir(parents=True)
    place.write_bytes(b"model")
    assert util.pretrained_name_to_path("7net-omni-i8") == str(place)
    assert find_checkpoint("sevennet-omni-i8") == ("7net-omni-i8", place)


def test_names_that_sevennet_does_not_know(capsys: Any) -> None:
    pytest.importorskip("sevenn")
    assert main(["7net-omnj", "--info", "-q"]) == 4
    said = capsys.readouterr().err
    assert "7net-omnj: no such file, and no published model has this name: the nearest" in said
    assert "names are 7net-omni, " in said
