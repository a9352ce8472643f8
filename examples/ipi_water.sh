#!/usr/bin/env bash
# Path-integral dynamics of water with i-PI, which evaluates all beads of a step in one batch, or
# gets its forces from LAMMPS:
#
#   bash examples/ipi_water.sh [lammps]
#
# Results go to examples/output/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
stop() {
    echo "ipi_water.sh: $1 failed, see above" >&2
    exit 1
}
if [ "${1:-}" != lammps ]; then
    cp ipi_water.xml output/
    cd output
    i-pi ipi_water.xml || stop i-pi
    exit
fi

address=mdcg-$$ # of this run alone
socket="<ffsocket mode=\"unix\" name=\"mdcg\" pbc=\"false\"><address>$address</address></ffsocket>"
sed "/^ *<ffdirect/,/<\/ffdirect>/c $socket" ipi_water.xml >output/ipi_water.xml
(cd output && exec i-pi ipi_water.xml) &
server=$!
trap 'kill $server 2>/dev/null || true; rm -f /tmp/ipi_$address' EXIT # it would wait for clients forever
until [ -S /tmp/ipi_$address ]; do # a client ends at once if i-PI is not listening yet
    kill -0 $server 2>/dev/null || stop i-pi
    sleep 0.1
done
lmp -in in.ipi -log output/log.lammps -var address $address || true # an error when i-PI is done
for _ in {1..100}; do kill -0 $server 2>/dev/null && sleep 0.1 || break; done
kill -0 $server 2>/dev/null && stop lmp
wait $server || stop i-pi
