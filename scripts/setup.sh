#!/bin/bash
# Makes .venv with everything that running and testing needs. Returns at once when it is up to date.
# PYTHON=/path/to/python3 chooses the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=.venv
STAMP=$VENV/.ready
ROOMS=(core kernels backends migration cli)

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# What the environment was made from, and where: a moved or changed checkout is set up again.
fingerprint() { { pwd -P; cat pyproject.toml setup.py constraints.txt scripts/setup.sh; } | sha256sum | cut -d' ' -f1; }

ready() { [[ -x $VENV/bin/pageport && -f $STAMP && $(<"$STAMP") == "$(fingerprint)" ]]; }

# The first interpreter that the pinned numpy 1.26 has wheels for; python3 first.
find_python() {
    local candidate version
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.12 python3.11; do
        version=$("$candidate" -c 'import sys; print(sys.version_info[0] * 100 + sys.version_info[1])' 2>/dev/null) || continue
        if ((version >= 311 && version <= 312)); then
            command -v "$candidate"
            return
        fi
        say "$candidate is Python ${version:0:1}.$((10#${version:1})), passed over (3.11 or 3.12 is needed)"
        [[ $candidate == "${PYTHON:-}" ]] && return 1
    done
    return 1
}

check_machine() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null ||
        die "$1 cannot make virtual environments: apt install python3-venv"
    "$1" -c 'import ctypes; ctypes.CDLL("libgomp.so.1")' 2>/dev/null ||
        die "libgomp.so.1 is missing (the CPU kernels' threads): apt install libgomp1"
}

# A torch that the machine has already is used as it is, with its version in place of the pinned one.
make_venv() {
    local python=$1 own_torch
    own_torch=$("$python" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null || true)
    if [[ -x $VENV/bin/python ]] && "$VENV/bin/python" -c 'import pip' 2>/dev/null && [[ $("$VENV/bin/python" -c 'import sys; print(sys.prefix)') == "$(pwd -P)/$VENV" ]]; then
        say "updating $VENV"
    else
        say "making $VENV with $python"
        "$python" -m venv --clear ${own_torch:+--system-site-packages} "$VENV"
    fi
}

install() {
    local extras='.[triton,tgi,migration,dev]'
    if grep -q 'include-system-site-packages = true' "$VENV/pyvenv.cfg"; then
        # uv does not see the system's packages; pip does.
        say "using this machine's torch; installing the rest"
        "$VENV/bin/python" -m pip install --quiet --editable "$extras" \
            --constraint <(grep -v '^torch==' constraints.txt)
    else
        "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check uv
        say "installing torch and the rest (5 GB, minutes on a slow line)"
        "$VENV/bin/python" -m uv pip install --python "$VENV/bin/python" --editable "$extras" \
            --constraint constraints.txt
    fi
}

# mypy cannot follow the import hooks of an editable install: it reads the tree through links.
link_for_typing() {
    mkdir -p "$VENV/typing/pageport"
    for room in "${ROOMS[@]}"; do
        ln -sfn "../../../$room" "$VENV/typing/pageport/$room"
    done
}

main() {
    ready && return
    exec 9>.setup.lock
    flock --nonblock 9 || { say "another set-up runs here; waiting for it"; flock 9; }
    ready && return
    local python
    python=$(find_python) || die "Python 3.11 or 3.12 is needed: apt install python3 python3-venv, or PYTHON=/path/to/python3.12"
    check_machine "$python"
    make_venv "$python"
    rm -f "$STAMP"
    install
    link_for_typing
    fingerprint >"$STAMP"
    say "ready"
}

main
