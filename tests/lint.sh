#!/usr/bin/env bash
# Lints the tree:  bash tests/lint.sh [STEP ...]
#
#   ruff format mypy clang-format codespell numpydoc   (these, side by side, are the default)
#   tidy [FILE.cpp ...]   clang-tidy of these files or of all of csrc; takes minutes
#
# The tools are those of the group "lint" in pyproject.toml, in PATH or in the environment VENV.
# mypy needs mdcg with torch and ASE installed there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
repo=$PWD
export PATH=${VENV:+$VENV/bin:}$PATH
cpp=$(find csrc mdcg lammps_plugin tests/emulator tests/internals -name '*.[ch]pp' -o -name '*.h' -o -name '*.cuh')

step_ruff() { ruff check --output-format=concise .; }
step_format() { ruff format --check --diff .; }
# The types of the compiled core are those of the installed module, imported outside of the tree.
step_mypy() {
    (cd "${TMPDIR:-/tmp}" && python -m pybind11_stubgen mdcg._core --output-dir "$repo")
    mypy mdcg
}
# shellcheck disable=SC2086  # names without spaces
step_clang-format() { clang-format --dry-run -Werror $cpp; }
step_codespell() { codespell; }
step_numpydoc() { find mdcg -name '*.py' -exec numpydoc lint --config . {} +; }
step_tidy() {
    local json omp
    json=$(python -c 'import nlohmann_json; print(nlohmann_json.get_include())')
    omp=$("${CXX:-c++}" -print-file-name=include) # clang-tidy comes without omp.h
    [ $# -gt 0 ] || mapfile -t < <(find csrc -name '*.cpp' ! -path 'csrc/python/*') && set -- "$@" "${MAPFILE[@]}"
    export flags="-std=c++17 -fopenmp -Icsrc -Icsrc/include -isystem $json -idirafter $omp"
    # shellcheck disable=SC2016  # the inner shell expands them
    printf '%s\0' "$@" | xargs -0 -n 4 -P "$(getconf _NPROCESSORS_ONLN)" \
        bash -c 'clang-tidy --quiet "$@" -- $flags -DMDCG_VERSION=\"0\"' clang-tidy
}

if [ "${1:-}" = tidy ]; then
    shift && step_tidy "$@"
    exit
fi
[ $# -gt 0 ] || set -- mypy ruff format clang-format codespell numpydoc
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
status=0 jobs=()
for step in "$@"; do
    declare -F "step_$step" >/dev/null ||
        { echo "tests/lint.sh: there is no step '$step'" >&2 && exit 2; }
    "step_$step" >"$logs/$step" 2>&1 &
    jobs+=("$step:$!")
done
for job in "${jobs[@]}"; do
    step=${job%%:*}
    if wait "${job##*:}"; then
        echo "lint: $step passed"
    else
        echo "lint: $step failed" && cat "$logs/$step" && status=1
    fi
done
exit $status
