#!/usr/bin/env bash
# systemd-analyze accepts the units, with the programs of this build in place of the installed ones.
# Usage: systemd_test.sh UNITS_FOLDER BIN_FOLDER
set -euo pipefail
units=$1
bin=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
ln -s "$bin" "$folder/bin"  # A name without a space, whatever the build's is.
for unit in "$units"/*.service "$units"/*.target; do
  sed "s|/usr/bin/|$folder/bin/|" "$unit" >"$folder/$(basename "$unit")"
done
cp "$folder/warpline-worker@.service" "$folder/warpline-worker@0.service"
found=$(SYSTEMD_UNIT_PATH="$folder:" systemd-analyze verify --man=no "$folder"/warpline-coordinator.service \
  "$folder"/warpline-gateway.service "$folder/warpline-worker@0.service" "$folder"/warpline.target 2>&1 | grep -i warpline || true)
if [ -n "$found" ]; then
  printf 'systemd-analyze verify found:\n%s\n' "$found"
  exit 1
fi
