#!/bin/bash
# Makes .venv with everything that running and testing needs. Returns at once when it is up to date.
# PYTHON=/path/to/python3 chooses the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=.venv
STAMP=$VENV/.ready
ROOMS=(core kernels backends migration cli)
EXTRAS='.[triton,tgi,migration,dev]'

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# What the environment was made from, and where: a moved or changed checkout is set up again.
fingerprint() { { pwd -P; cat pyproject.toml setup.py constraints.txt scripts/setup.sh tests/clients/requirements.txt; } | sha256sum; }

ready() { [[ -x $VENV/bin/pageport && -f $STAMP && $(<"$STAMP") == "$(fingerprint)" ]]; }

minor_of() { "$1" -c 'import sys; assert sys.version_info[0] == 3; print(sys.version_info[1])' 2>/dev/null; }

# Prints an interpreter that the Triton server has a stub for. Python 3.13 comes last: the pinned numpy
# has no wheel for it and is compiled.
find_python() {
    local candidate minor last='' candidates=(python3 python3.12 python3.11)
    [[ -n ${PYTHON:-} ]] && candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        minor=$(minor_of "$candidate") || continue
        if ((minor == 11 || minor == 12)); then
            command -v "$candidate"
            return
        fi
        ((minor != 13)) || last=$candidate
    done
    [[ -n $last ]] && command -v "$last"
}

# Names all that is missing, at once.
check_machine() {
    local python=$1 minor missing=()
    minor=$(minor_of "$python")
    "$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=("python3.$minor-venv")
    "$python" -c 'import ctypes; ctypes.CDLL("libgomp.so.1")' 2>/dev/null || missing+=(libgomp1)
    if ((minor == 13)); then
        command -v g++ >/dev/null || missing+=(g++)
        "$python" -c 'import os, sysconfig as s; os.stat(s.get_path("include") + "/Python.h")' 2>/dev/null ||
            missing+=(python3.13-dev)
    else # the stub of the Triton server is linked to it
        LD_LIBRARY_PATH=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("LIBDIR"))') \
            "$python" -c "import ctypes; ctypes.CDLL('libpython3.$minor.so.1.0')" 2>/dev/null ||
            missing+=("libpython3.$minor")
    fi
    ((${#missing[@]} == 0)) || die "missing on this machine: apt install ${missing[*]}"
}

# An environment that was made here is kept, with the torch in it. A torch that the machine's own Python
# has is used as it is.
make_venv() {
    local python=$1 options=()
    if [[ $("$VENV/bin/python" -c 'import pip, sys; print(sys.prefix)' 2>/dev/null) == "$(pwd -P)/$VENV" ]]; then
        say "updating $VENV"
        return
    fi
    "$python" -c 'import torch' 2>/dev/null && options=(--system-site-packages)
    say "making $VENV with $python"
    "$python" -m venv --clear "${options[@]}" "$VENV"
}

install() {
    local pip=("$VENV/bin/python" -m pip --disable-pip-version-check)
    if grep -q 'include-system-site-packages = true' "$VENV/pyvenv.cfg"; then
        say "this machine has a torch; installing the rest"
        # By pip: uv does not see the packages of the system.
        "${pip[@]}" install --editable "$EXTRAS" --constraint <(grep -v '^torch==' constraints.txt)
        return
    fi
    "${pip[@]}" install --quiet uv
    say "installing torch and the rest (5 GB on disk)"
    # uv does not read pip's settings.
    UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$("${pip[@]}" config get global.index-url 2>/dev/null || true)}
    [[ -n $UV_DEFAULT_INDEX ]] && export UV_DEFAULT_INDEX
    "$VENV/bin/python" -m uv pip install --python "$VENV/bin/python" \
        --editable "$EXTRAS" --constraint constraints.txt ||
        { say "uv could not; trying pip" && "${pip[@]}" install --editable "$EXTRAS" --constraint constraints.txt; } ||
        die "the packages could not be installed: check the network and pip's index settings"
}

# What the tests call the servers with; see tests/clients/requirements.txt. A hundred megabytes, without torch.
install_clients() {
    local clients=.venv-clients
    say "installing the client libraries that the tests use into $clients"
    "$VENV/bin/python" -m venv --clear "$clients"
    "$VENV/bin/python" -m uv pip install --quiet --python "$clients/bin/python" -r tests/clients/requirements.txt ||
        "$clients/bin/python" -m pip install --quiet -r tests/clients/requirements.txt ||
        die "the client libraries could not be installed: check the network and pip's index settings"
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
    python=$(find_python) || die "${PYTHON:-python3} is not Python 3.11, 3.12 or 3.13: apt install python3, or PYTHON=/path/to/another"
    check_machine "$python"
    make_venv "$python"
    install
    install_clients
    link_for_typing
    fingerprint >"$STAMP"
    say "ready"
}

main
