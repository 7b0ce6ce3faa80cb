#!/bin/sh
# May autotuning be switched on? For any CI:
#   docs/ci/gate.sh EVIDENCE_DIR...
# MOEGUARD_ALLOWLIST (moeguard-allowlist.toml), MOEGUARD_LEVEL (O2), MOEGUARD_CELL (all; or BACKEND/RECIPE) choose what is judged,
# MOEGUARD_SUMMARY names the file that the markdown is added to (gate.md).
# Exit codes: 0 allowed, 1 not allowed, 2 bad input, 3 evidence empty, stale or tampered. All but 0 must stop the change.
set -eu
part=$(mktemp)
trap 'rm -f "$part"' EXIT
code=0
moeguard gate --allowlist "${MOEGUARD_ALLOWLIST:-moeguard-allowlist.toml}" --level "${MOEGUARD_LEVEL:-O2}" \
    --flip autotune=on ${MOEGUARD_CELL:+--cell "$MOEGUARD_CELL"} --markdown "$part" --evidence "$@" || code=$?
cat "$part" >> "${MOEGUARD_SUMMARY:-gate.md}"
exit "$code"
