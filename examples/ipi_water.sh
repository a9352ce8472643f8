#!/usr/bin/env bash
# Path-integral dynamics of water with i-PI, which gets its forces from ASE or from LAMMPS:
#
#   bash examples/ipi_water.sh [lammps]
#
# Results go to examples/output/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
address=mdcg-$$ # of this run alone
client=(python ipi_client.py --address $address)
[ "${1:-}" != lammps ] || client=(lmp -in in.ipi -log output/log.lammps -var address $address)
stop() {
    echo "ipi_water.sh: $1 failed, see above" >&2
    exit 1
}

sed "s|<address>.*</address>|<address>$address</address>|" ipi_water.xml >output/ipi_water.xml
(cd output && exec i-pi ipi_water.xml) &
server=$!
trap 'kill $server 2>/dev/null || true; rm -f /tmp/ipi_$address' EXIT # it would wait for clients forever
until [ -S /tmp/ipi_$address ]; do # a client ends at once if i-PI is not listening yet
    kill -0 $server 2>/dev/null || stop i-pi
    sleep 0.1
done
"${client[@]}" || true # LAMMPS ends with an error when i-PI is done
for _ in {1..100}; do kill -0 $server 2>/dev/null && sleep 0.1 || break; done
kill -0 $server 2>/dev/null && stop "${client[0]}"
wait $server || stop i-pi
