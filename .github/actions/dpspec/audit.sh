#!/usr/bin/env bash
# Run dpspec on the specs that the environment names; annotate, summarise, write reports, and end as dpspec ends.
set -uo pipefail

lines() { # the non-empty lines of $1 into the array named $2
  local -n into=$2
  into=()
  while IFS= read -r line; do
    line="${line#"${line%%[![:space:]]*}"}"
    line="${line%"${line##*[![:space:]]}"}"
    if [[ -n "$line" ]]; then into+=("$line"); fi
  done <<<"$1"
}

lines "${DPSPEC_SPECS:-}" specs
lines "${DPSPEC_SET:-}" overrides
reports="${DPSPEC_REPORTS:-dpspec-reports}"
mkdir -p -- "$reports"

options=(--device "${DPSPEC_DEVICE:-auto}" --store "${DPSPEC_STORE:-.dpspec/store}")
for override in "${overrides[@]}"; do options+=("--set=$override"); done
if [[ -n "${DPSPEC_BASELINE:-}" ]]; then options+=("--baseline=$DPSPEC_BASELINE"); fi
if [[ "${DPSPEC_BOUNDS_ONLY:-false}" == true ]]; then options+=(--bounds-only); fi
if [[ -n "${DPSPEC_MAX_MINUTES:-}" ]]; then options+=("--max-minutes=$DPSPEC_MAX_MINUTES"); fi

rm -f -- "$reports/annotations.txt" "$reports/summary.md"
dpspec run "${options[@]}" \
  --report "html=$reports/report.html" --report "json=$reports/result.json" \
  --report "sarif=$reports/result.sarif" --report "junit=$reports/junit.xml" \
  --report "markdown=$reports/summary.md" --report "github=$reports/annotations.txt" \
  -- "${specs[@]}"
code=$?

if [[ -f "$reports/annotations.txt" ]]; then cat -- "$reports/annotations.txt"; fi
if [[ -f "$reports/summary.md" && -n "${GITHUB_STEP_SUMMARY:-}" ]]; then cat -- "$reports/summary.md" >>"$GITHUB_STEP_SUMMARY"; fi
if [[ -n "${GITHUB_OUTPUT:-}" ]]; then printf 'reports=%s\n' "$reports" >>"$GITHUB_OUTPUT"; fi
exit "$code"
