#!/usr/bin/env bash
# From a fresh clone to faster molecular dynamics:
#     bash examples/quickstart.sh [nequip] [options of water_md.py]
#
# Makes a virtual environment (.venv-quickstart, or where MDCG_QUICKSTART_VENV says), installs torch,
# MACE and mdcg into it, and runs a box of 192 atoms with the small checkpoint in examples/data in
# three forms: as it is, patched (layers replaced inside PyTorch), and converted for mdcg's engine.
# Results go to examples/output. With the word nequip, all of that with NequIP and its checkpoint, in
# .venv-quickstart-nequip: MACE and NequIP need different versions of e3nn.
#
# Needs Debian or Ubuntu (or the like) with Python 3.10 or newer and a C++ compiler:
#     sudo apt install python3 python3-venv python3-dev g++
# The first run installs for some minutes; later ones skip that unless the sources have changed.
# PYTHON names the interpreter (default python3).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
what=mace checkpoint=water.model patched=water_patched.model package=water.mdcg suffix=""
if [ "${1:-}" = nequip ]; then
    what=nequip checkpoint=water.ckpt patched=water_nequip_patched.pt package=water_nequip.mdcg
    suffix=-nequip
    shift
fi
venv=${MDCG_QUICKSTART_VENV:-.venv-quickstart$suffix}

stop() {
    echo "quickstart: $1" >&2
    exit 1
}

case "${1:-}" in
    -h | --help) sed -n '2,16s/^# \{0,1\}//p' examples/quickstart.sh && exit 0 ;;
esac

# The tree must not be imported instead of what is installed, nor a user's own packages.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV
export PYTHONNOUSERSITE=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# ---- what pip cannot bring -----------------------------------------------------------------------
command -v "$python" >/dev/null ||
    stop "$python was not found: sudo apt install python3 python3-venv python3-dev g++"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    stop "$("$python" --version) is too old, mdcg needs Python 3.10 or newer: set PYTHON to a newer one"
missing=()
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
"$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || missing+=(python3-dev)
# NOTES: CXX may carry options ("ccache g++"), so its first word is looked up.
cxx=${CXX:-}
command -v "${cxx%% *}" >/dev/null || command -v c++ >/dev/null || command -v g++ >/dev/null ||
    command -v clang++ >/dev/null || missing+=(g++)
[ ${#missing[@]} -eq 0 ] ||
    stop "not installed: ${missing[*]}; on Debian and Ubuntu: sudo apt install ${missing[*]}"

# ---- install, unless that was done for these sources ---------------------------------------------
stamp=$("$python" - <<'PY'
import hashlib, pathlib, sys
digest = hashlib.sha256(sys.version.encode())
for name in ("pyproject.toml", "CMakeLists.txt", "csrc", "mdcg", "examples/quickstart.sh"):
    path = pathlib.Path(name)
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file() and file.suffix not in (".pyc", ".so"):
            digest.update(str(file).encode() + b"\0" + file.read_bytes())
print(digest.hexdigest())
PY
)
if [ "$(cat "$venv/mdcg-stamp" 2>/dev/null)" != "$stamp" ]; then
    echo "== installing into $venv (the first time this takes minutes)"
    "$python" -m venv "$venv" || stop "could not make $venv"
    # First and alone, so that nothing else chooses its version. No CUDA is needed: a CPU build of
    # torch is enough, and far smaller, where pip is set up to find one.
    "$venv/bin/python" -m pip install "torch==2.13.0" || stop "installing torch failed, see above"
    "$venv/bin/python" -m pip install --quiet ".[$what,bench]" ||
        stop "installing mdcg failed, see above"
    echo "$stamp" >"$venv/mdcg-stamp"
fi

# ---- patch and run -------------------------------------------------------------------------------
# Stock malloc returns the large temporaries of e3nn to the system after every layer, and pays for
# page faults at every step. Keeping them makes the original 1.3 to 2.4 times faster, so that the
# comparison is fair; both models run with it.
export MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184
export MALLOC_TOP_PAD_=268435456
# Threads that wait for work sleep instead of spinning: on a machine that does other things too,
# spinning threads keep each other from the cores and every step takes many times longer.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-PASSIVE}
out=examples/output
mkdir -p $out
for target in $patched $package; do
    echo "== mdcg-patch examples/data/$checkpoint -o $out/$target"
    "$venv/bin/mdcg-patch" examples/data/$checkpoint -o $out/$target --force
done
echo "== water_md.py"
"$venv/bin/python" examples/water_md.py --original examples/data/$checkpoint \
    --patched $out/$patched --package $out/$package "$@"
cat <<EOF

Next, with a checkpoint of your own:
  source $venv/bin/activate
  mdcg-patch YOUR.model -o yours.mdcg          # .ckpt and .nequip.zip of NequIP too
In ASE:
  from mdcg import MDCGCalculator
  atoms.calc = MDCGCalculator("yours.mdcg")    # on a GPU: device="cuda"
In LAMMPS (pip install ".[lammps]"; examples/in.water is a complete input):
  pair_style mdcg
  pair_coeff * * yours.mdcg <elements of types 1, 2, ...>
EOF
