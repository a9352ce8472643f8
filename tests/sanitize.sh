#!/usr/bin/env bash
# Builds the engine and its test in C with sanitizers and runs it:  bash tests/sanitize.sh address|thread PACKAGE
#
#   address   addresses and undefined behaviour, generated kernels of the package included
#   thread    data races; OpenMP's part is played by tests/engine/openmp_on_threads.cpp
#
# PACKAGE is a .mdcg file that exchanges rows, float64 or float32. The build is kept in
# .venv-test/sanitize-* or where MDCG_TEST_VENVS says. PYTHON names an interpreter of an environment
# with mdcg, which makes the kernels, and the group "test" of pyproject.toml; CXX and CC the
# compilers (default c++ and cc).
set -euo pipefail
[ $# -eq 2 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2 && exit 2; }
kind=$1 package=$(realpath "$2")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case $kind in
    address) flags="-fsanitize=address,undefined -fno-sanitize-recover=all" ;;
    thread) flags="-fsanitize=thread" ;;
    *) echo "tests/sanitize.sh: '$kind' is neither address nor thread" >&2 && exit 2 ;;
esac
cxx=${CXX:-c++} cc=${CC:-cc} python=$(command -v "${PYTHON:-python3}")
PATH=$(dirname "$python"):$PATH
out=${MDCG_TEST_VENVS:-.venv-test}/sanitize-$kind
mkdir -p "$out"
out=$(cd "$out" && pwd)

# Files of the engine are compiled together: most of their time goes into the headers that they share.
CXX=$cxx cmake -S . -B "$out" -G Ninja -DCMAKE_BUILD_TYPE=None "-DCMAKE_CXX_FLAGS=-O0 -g1 $flags" \
    -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=25 -DCMAKE_UNITY_BUILD_UNIQUE_ID=registered \
    "-DPython_EXECUTABLE=$python" "-Dpybind11_DIR=$("$python" -m pybind11 --cmakedir)" >"$out/log"
cmake --build "$out" --target mdcg >>"$out/log" || { cat "$out/log" >&2 && exit 1; }
# The definitions of the program come before those of the library's OpenMP.
openmp=$([ "$kind" = address ] || echo "-rdynamic -pthread tests/engine/openmp_on_threads.cpp")
# shellcheck disable=SC2086
$cc -std=c99 -g1 $flags -Icsrc/include -c tests/engine/c_api.c -o "$out/c_api.o"
# shellcheck disable=SC2086
$cxx -std=c++17 -O1 -g1 -fopenmp $flags $openmp "$out/c_api.o" "$out/libmdcg.so" -lm -o "$out/c_api"

export MDCG_PYTHON=$python MDCG_CACHE_DIR=$out/cache OMP_NUM_THREADS=3 ASAN_OPTIONS=detect_leaks=1
export UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1
[ "$kind" = thread ] || export MDCG_CXX="$cxx $flags"
# addresses that are drawn too wide are more than the thread sanitizer takes
if command -v setarch >/dev/null && setarch -R true 2>/dev/null; then
    setarch -R "$out/c_api" "$package"
else
    "$out/c_api" "$package"
fi
