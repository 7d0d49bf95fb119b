#!/bin/sh
# Makes bench/peers, a throw-away virtual environment with the Python rivals of bench_training_step.
#
#   bench/training_step/setup_peers.sh [PYTHON]
#
# Packages come from wherever pip is set up to get them. Each rival is installed by itself, so that one that has no
# build for this machine does not keep the others out; the benchmark runs with those it finds. Remove the folder to be
# rid of them all.
set -u
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
python=${1:-python3}

"$python" -m venv "$here/peers" || exit 1
pip="$here/peers/bin/python -m pip --disable-pip-version-check"
$pip install --quiet --upgrade pip numpy || exit 1

# Later builds for 64-bit Arm bring CUDA along, some gigabytes of it: this is the last one that does not.
case $(uname -m) in
  aarch64) torch="torch<2.11" ;;
  *) torch="torch" ;;
esac
for package in "$torch" tensorflow jax; do
  if $pip install --quiet "$package"; then
    echo "installed $package"
  else
    echo "no $package: the benchmark runs without it" >&2
  fi
done
$pip list 2>/dev/null | grep -E '^(torch|tensorflow|jax|jaxlib|numpy) '
