#!/usr/bin/env bash
# Builds the engine and its test in C with sanitizers and runs it:  bash tests/sanitize.sh address|thread PACKAGE
#
#   address   addresses and undefined behaviour, generated kernels of the package included
#   thread    data races; OpenMP's part is played by tests/engine/openmp_on_threads.cpp
#
# PACKAGE is a .mdcg file that exchanges rows, float64 or float32. Objects are kept in
# .venv-test/sanitize-* or where MDCG_TEST_VENVS says. PYTHON names an interpreter that has
# nlohmann-json (headers); CXX and CC the compilers (default c++ and cc).
set -euo pipefail
[ $# -eq 2 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2 && exit 2; }
kind=$1 package=$(realpath "$2")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case $kind in
    address) flags="-fsanitize=address,undefined -fno-sanitize-recover=all" ;;
    thread) flags="-fsanitize=thread" ;;
    *) echo "tests/sanitize.sh: '$kind' is neither address nor thread" >&2 && exit 2 ;;
esac
cxx=${CXX:-c++} cc=${CC:-cc}
json=$("${PYTHON:-python3}" -c 'import nlohmann_json; print(nlohmann_json.get_include())')
out=${MDCG_TEST_VENVS:-.venv-test}/sanitize-$kind
mkdir -p "$out"
out=$(cd "$out" && pwd)

compile() { # SOURCE[:SIMD LEVEL]; only if it, or any header, is newer than its object
    local object source=${1%:*} options=
    case $1 in
        *:2) options="-DMDCG_SIMD_LEVEL=2" ;;
        *:*) options="-DMDCG_SIMD_LEVEL=${1#*:} -march=x86-64-v${1#*:}" ;;
    esac
    object=$out/$(tr / _ <<<"$1").o
    if [ ! -e "$object" ] || [ "$source" -nt "$object" ] || [ "$newest" -nt "$object" ]; then
        echo "$cxx -std=c++17 -O1 -g1 -fopenmp $flags $options -DMDCG_VERSION='\"test\"' -Icsrc" \
            "-Icsrc/include -isystem '$json' -c $source -o $object.tmp && mv $object.tmp $object"
    fi
}
newest=$(find csrc -name '*.h*' -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2)
"${PYTHON:-python3}" csrc/kernels/embed.py >"$out/kernel_sources.cpp"
levels='&:2' # CMakeLists.txt has the same sources and levels
[ "$(uname -m)" != x86_64 ] || levels='&:2\n&:3\n&:4'
sources=$(find csrc/core csrc/engine "$out/kernel_sources.cpp" -name '*.cpp' | sort |
    sed -E "s/.*\/(dense_kernels|edge_kernels)\.cpp$/$levels/")
[ "$kind" = address ] || sources+=" tests/engine/openmp_on_threads.cpp"
objects=()
commands=$(for source in $sources; do compile "$source"; done)
for source in $sources; do objects+=("$out/$(tr / _ <<<"$source").o"); done
jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
[ -z "$commands" ] || tr '\n' '\0' <<<"$commands" | xargs -0 -P"$jobs" -I{} sh -c '[ -z "{}" ] || {}'
# shellcheck disable=SC2086
$cc -std=c99 -g1 $flags -Icsrc/include -c tests/engine/c_api.c -o "$out/c_api.o"
openmp=$([ "$kind" = address ] && echo -fopenmp || echo -pthread)
# shellcheck disable=SC2086
$cxx $flags $openmp "$out/c_api.o" "${objects[@]}" -ldl -lm -o "$out/c_api"

export MDCG_CACHE_DIR=$out/cache OMP_NUM_THREADS=3 ASAN_OPTIONS=detect_leaks=1
export UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1
[ "$kind" = thread ] || export MDCG_CXX="$cxx $flags"
# addresses that are drawn too wide are more than the thread sanitizer takes
if command -v setarch >/dev/null && setarch -R true 2>/dev/null; then
    setarch -R "$out/c_api" "$package"
else
    "$out/c_api" "$package"
fi
