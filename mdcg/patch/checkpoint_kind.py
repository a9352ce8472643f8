"""Finds out the kind of a checkpoint from its structure, without executing anything in it."""

from __future__ import annotations

import io
import os
import pickletools
import zipfile
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointError
from .nequix_files import has_nequix_head

#: Kinds of files that can be loaded.
MACE = "pickled MACE model"
NEQUIP = "pickled NequIP model"
NEQUIP_CHECKPOINT = "NequIP training checkpoint"
NEQUIP_PACKAGE = "NequIP package"
SEVENNET = "SevenNet checkpoint"
NEQUIX = "Nequix model"

_GIVE = (
    "give the .model file that mace_run_train writes (the whole pickled model), the .ckpt of "
    "nequip-train or its .nequip.zip package, the .pth checkpoint of sevenn, or a .nqx file of "
    "Nequix"
)
_GIVE_SEVENNET = (
    "was made from a SevenNet model for LAMMPS: give the checkpoint (.pth) that it was made from"
)
#: Keys that a SevenNet checkpoint has: in the file, and in its configuration.
_SEVENNET_KEYS = {"model_state_dict", "config", "num_convolution_layer", "cutoff_function"}
_GIVE_NEQUIP = (
    "give the .ckpt it was made from, or its .nequip.zip package (models of NequIP 0.6 and older "
    "must be trained again with NequIP 0.19)"
)
#: Part of the error messages about Allegro models.
ALLEGRO = "is an Allegro model, which mdcg does not support: give a MACE or NequIP model"
_ZIP_MAGIC = b"PK\x03\x04"
#: Limit of the unpacked size relative to the file, and a size that is always allowed.
#: Checkpoints are not compressed, and packages compress only their source code.
_MAX_RATIO = 16
_MAX_SMALL = 64_000_000
#: Limits of a file, and of its directory and its pickle, which no checkpoint reaches. A file that
#: declares more is refused before it is read.
_MAX_BYTES = 64_000_000_000
_MAX_PART = 256_000_000
#: First bytes of torch.save files from before torch 1.6: a pickled magic number.
_LEGACY_MAGIC = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."


@dataclass(frozen=True)
class PickleContents:
    """The names of the classes that a pickle would import, and the short strings in it."""

    imports: frozenset[str]
    strings: frozenset[str]

    @classmethod
    def read(cls, data: bytes) -> PickleContents:
        """Scan a pickle without executing it; raise ValueError if it is not complete."""
        imports: set[str] = set()
        strings: set[str] = set()
        recent: list[str] = []
        for opcode, value, _ in pickletools.genops(data):
            if opcode.name == "GLOBAL":
                imports.add(str(value).replace(" ", "."))
            elif opcode.name == "STACK_GLOBAL" and len(recent) > 1:
                imports.add(".".join(recent[-2:]))
            elif isinstance(value, str) and len(value) < 200:
                strings.add(value)
                recent.append(value)
        return cls(frozenset(imports), frozenset(strings))

    def imports_from(self, *packages: str) -> bool:
        """Whether the pickle has a class of one of these top-level packages."""
        return any(name.partition(".")[0] in packages for name in self.imports)

    def names(self, package: str) -> bool:
        """Whether the pickle imports from a package, or names it in a configuration."""
        return any(name.startswith(f"{package}.") for name in self.imports | self.strings)


class _Parts(io.FileIO):
    """A file that refuses to read a large part at once."""

    def read(self, size: int | None = -1) -> bytes:
        left = os.fstat(self.fileno()).st_size - self.tell()
        if (left if size is None or size < 0 else min(size, left)) > _MAX_PART:
            raise ValueError("its directory is larger than that of any checkpoint")
        return super().read(size) or b""


def checkpoint_kind(path: Path) -> str:
    """Return the kind of a checkpoint, one of the constants above.

    For any other file, the CheckpointError says what the file is and which file to give.
    """
    if not path.exists():
        raise CheckpointError(f"{path}: no such file")
    if path.is_dir():
        if any(path.glob("deployed_parallel_*.pt")):
            raise CheckpointError(f"{path} {_GIVE_SEVENNET}")
        raise CheckpointError(f"{path} is a folder, expected a file: {_GIVE}")
    with path.open("rb") as file:
        head = file.read(64)
    if not head:
        raise CheckpointError(f"{path} is empty: copy it again")
    size = path.stat().st_size
    if size > _MAX_BYTES:
        raise CheckpointError(
            f"{path} has {size / 1e9:.0f} GB, expected at most {_MAX_BYTES / 1e9:.0f} GB: {_GIVE}"
        )
    if not head.startswith(_ZIP_MAGIC):
        if head[2:].startswith(_LEGACY_MAGIC):
            return MACE
        if head.startswith(b"{") and has_nequix_head(path):
            return NEQUIX
        raise CheckpointError(f"{path} is not a PyTorch checkpoint: {_GIVE}")
    try:
        with _Parts(path) as parts, zipfile.ZipFile(parts) as archive:
            return _archive_kind(path, archive)
    except (zipfile.BadZipFile, EOFError, OSError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} is truncated or damaged ({error}): copy it again") from error


def _archive_kind(path: Path, archive: zipfile.ZipFile) -> str:
    names = archive.namelist()
    # zip readers stop at the declared size, so the declared sizes can be trusted as limits
    unpacked, size = sum(each.file_size for each in archive.infolist()), path.stat().st_size
    if unpacked > max(_MAX_RATIO * size, _MAX_SMALL):
        raise CheckpointError(
            f"{path} has {size / 1e6:.1f} MB and would unpack to {unpacked / 1e6:.0f} MB, expected "
            f"at most {_MAX_RATIO} times its size: no checkpoint is compressed so much, the file "
            "is damaged or malicious"
        )
    # all writers put the members into one folder named after the file
    inner = {name.partition("/")[2] for name in names}
    if any("aotinductor" in name for name in names):
        raise CheckpointError(
            f"{path} is compiled by AOTInductor, whose kernels are fixed: "
            "give the file it was made from (for NequIP the .ckpt or .nequip.zip)"
        )
    if any("code/__torch__/sevenn/" in name for name in names):
        raise CheckpointError(f"{path} {_GIVE_SEVENNET}")
    if any(name.startswith("code/") for name in inner) and "constants.pkl" in inner:
        raise CheckpointError(
            f"{path} is compiled TorchScript, whose layers cannot be swapped: "
            f"{_torchscript_advice(path, archive)}"
        )
    if ".data/extern_modules" in inner:
        for name in names:
            if name.endswith("/model/eager_model.pkl"):
                _refuse_allegro(path, PickleContents.read(archive.read(name)))
                return NEQUIP_PACKAGE
        raise CheckpointError(f"{path} is a torch.package without a NequIP model in it: {_GIVE}")
    pickles = [name for name in names if name.endswith("/data.pkl") or name == "data.pkl"]
    if not pickles:
        raise CheckpointError(f"{path} is a zip file but not a PyTorch checkpoint: {_GIVE}")
    if archive.getinfo(pickles[0]).file_size > _MAX_PART:
        raise CheckpointError(
            f"{path} holds a pickle of {archive.getinfo(pickles[0]).file_size / 1e6:.0f} MB, "
            f"expected at most {_MAX_PART / 1e6:.0f} MB beside the tensors: {_GIVE}"
        )
    contents = PickleContents.read(archive.read(pickles[0]))
    if any(name.startswith("mace.calculators.lammps") for name in contents.imports):
        raise CheckpointError(f"{path} is a model prepared for LAMMPS: {_made_from(path)}")
    if contents.imports_from("mace"):
        return MACE
    if contents.imports_from("sevenn"):
        raise CheckpointError(f"{path} {_GIVE_SEVENNET}")
    if contents.strings >= _SEVENNET_KEYS:
        return SEVENNET
    if "pytorch-lightning_version" in contents.strings:
        _refuse_allegro(path, contents)
        if contents.names("nequip"):
            return NEQUIP_CHECKPOINT
        raise CheckpointError(f"{path} is a Lightning checkpoint of another package: {_GIVE}")
    if contents.imports_from("nequip"):
        return NEQUIP
    if contents.imports <= _STATE_DICT_IMPORTS or contents.imports_from("torch_ema"):
        raise CheckpointError(f"{path} holds only tensors (a state dict), not the model: {_GIVE}")
    raise CheckpointError(
        f"{path} is a PyTorch file without a MACE, NequIP or SevenNet model in it: {_GIVE}"
    )


def _refuse_allegro(path: Path, contents: PickleContents) -> None:
    if contents.names("allegro"):
        raise CheckpointError(f"{path} {ALLEGRO}")


def _torchscript_advice(path: Path, archive: zipfile.ZipFile) -> str:
    code = " ".join(name for name in archive.namelist() if "/code/" in name)
    return _GIVE_NEQUIP if "nequip" in code else _made_from(path)


def _made_from(path: Path) -> str:
    """Return advice to give the file that a LAMMPS or compiled file was made from."""
    name = path.name
    for suffix in ("-mliap_lammps.pt", "-lammps.pt", "_compiled.model"):
        if name.endswith(suffix):
            stem = name.removesuffix(suffix).removesuffix(".model")
            return f"give the file it was made from ({stem}.model)"
    return "give the .model file it was made from"


_STATE_DICT_IMPORTS = frozenset(
    {
        "collections.OrderedDict",
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_parameter",
    }
    | {
        f"torch.{kind}Storage"
        for kind in ("Byte", "Double", "Float", "Half", "Int", "Long", "Bool", "BFloat16")
    }
)
