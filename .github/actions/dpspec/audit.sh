#!/usr/bin/env bash
# Run dpspec on the specs that the environment names; annotate, summarise, write reports, and end as dpspec ends.
set -uo pipefail

fail() { # end as a command line that makes no sense
  printf 'error: %s\n' "$1" >&2
  exit 2
}

lines() { # the non-empty lines of $1 into the array named $2
  local -n into=$2
  into=()
  while IFS= read -r line; do
    line="${line#"${line%%[![:space:]]*}"}"
    line="${line%"${line##*[![:space:]]}"}"
    if [[ -n "$line" ]]; then into+=("$line"); fi
  done <<<"$1"
}

for name in BASELINE ALLOW_CHANGED_CLAIMS DEVICE BOUNDS_ONLY MAX_MINUTES REPORTS STORE; do
  variable="DPSPEC_$name"
  # A line end in one of them would write another line to the files that the runner obeys.
  if [[ "${!variable:-}" == *[$'\001'-$'\037'$'\177']* ]]; then fail "the input ${name,,} holds a control character"; fi
done
case "${DPSPEC_PROJECT:-off}" in on | off) ;; *) fail "the input project must be on or off" ;; esac
export DPSPEC_PROJECT="${DPSPEC_PROJECT:-off}"
for name in ALLOW_CHANGED_CLAIMS BOUNDS_ONLY; do
  variable="DPSPEC_$name"
  case "${!variable:-false}" in true | false) ;; *) fail "the input ${name,,} must be true or false" ;; esac
done

lines "${DPSPEC_SPECS:-}" specs
lines "${DPSPEC_SET:-}" overrides
if [[ ${#specs[@]} -eq 0 ]]; then fail "the input specs names no file"; fi

# What a checkout brings along is somebody else's: neither its reports, nor its trials, are ours. Reports are written to a
# folder that nobody had before, and put in their place at the end.
reports="${DPSPEC_REPORTS:-dpspec-reports}"
case "$reports" in -*) reports="./$reports" ;; esac
if [[ -L "${reports%/}" ]]; then fail "the folder of reports, $reports, is a link"; fi
if [[ -e "$reports" && ! -d "$reports" ]]; then fail "the folder of reports, $reports, is a file"; fi
if [[ -d "$reports" ]]; then
  for file in report.html result.json result.sarif junit.xml summary.md annotations.txt; do
    rm -rf -- "${reports%/}/$file" || fail "cannot remove $reports/$file"
  done
  if [[ -n "$(ls -A -- "$reports")" ]]; then fail "the folder of reports, $reports, holds files that are not ours"; fi
else
  mkdir -p -- "$reports" || fail "cannot make the folder of reports, $reports"
fi

store="${DPSPEC_STORE:-}"
if [[ -z "$store" ]]; then
  store="${RUNNER_TEMP:-$(mktemp -d)}/dpspec-store"
elif [[ "$store" != *://* ]] && command -v git >/dev/null; then
  for place in "$store" "$(realpath -m -- "$store")"; do # a link may have been committed, too
    if [[ -n "$(git -c safe.directory='*' --literal-pathspecs ls-files -- "$place" 2>/dev/null | head -n 1)" ]]; then
      fail "the store $store is part of the checkout, and whoever committed it decides what comes out: name a folder that the runner's cache restores"
    fi
  done
fi

options=(--device "${DPSPEC_DEVICE:-auto}" "--store=$store")
for override in "${overrides[@]}"; do options+=("--set=$override"); done
if [[ -n "${DPSPEC_BASELINE:-}" ]]; then options+=("--baseline=$DPSPEC_BASELINE"); fi
if [[ "${DPSPEC_ALLOW_CHANGED_CLAIMS:-false}" == true ]]; then options+=(--allow-changed-claims); fi
if [[ "${DPSPEC_BOUNDS_ONLY:-false}" == true ]]; then options+=(--bounds-only); fi
if [[ -n "${DPSPEC_MAX_MINUTES:-}" ]]; then options+=("--max-minutes=$DPSPEC_MAX_MINUTES"); fi

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
