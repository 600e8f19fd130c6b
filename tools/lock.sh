#!/usr/bin/env bash
# Writes requirements.lock (what users need) and requirements-dev.lock (tests and comparisons on top), exact versions
# of all packages that a fresh environment resolves today. torch is pinned by hand: CPU and CUDA builds differ.
set -euo pipefail
cd "$(dirname "$0")/.."
torch="torch==2.13.0"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
freeze() { "$work/bin/python" -m pip freeze --exclude-editable --exclude recollect | sed 's/+cpu$//'; }
python3 -m venv "$work"
"$work/bin/python" -m pip install --quiet "$torch"
"$work/bin/python" -m pip install --quiet "$torch" ".[atari,classic]"
{ echo "# What users need; written by tools/lock.sh."; freeze; } > requirements.lock
"$work/bin/python" -m pip install --quiet -c requirements.lock ".[dev]"
{ echo "# Tests and comparisons on top of requirements.lock; written by tools/lock.sh."; echo "-c requirements.lock"
  comm -23 <(freeze | sort) <(sort requirements.lock); } > requirements-dev.lock
