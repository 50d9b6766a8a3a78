#!/bin/sh
# set-up.sh VENV base|dev: make VENV hold exactly what requirements/base.txt or requirements/dev.txt locks.
#
# Every file is checked against its hash and nothing is compiled. Does nothing when the lock and pyproject.toml are
# those of the last run. uv is used when it is on PATH; a plain Python is enough.
set -eu

venv=$1
profile=$2
lock=requirements/$profile.txt
stamp=$venv/.set-up-$profile

# What was installed, told by content: the times of files change with every checkout.
wanted() {
    cat "$lock" pyproject.toml scripts/set-up.sh
    pwd # an editable install points to this folder
}

runs() {
    "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    sh scripts/find-python.sh && return
    # The checks may mend a Debian or Ubuntu machine that is theirs, as on CI; the demo only says what is missing.
    if [ "$profile" = dev ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "Running as root: installing python3 and python3-venv with apt-get." >&2
        { apt-get update -qq && apt-get install -y -qq python3 python3-venv; } </dev/null >&2
        sh scripts/find-python.sh
        return
    fi
    return 1
}

create() {
    python=$(find_python)
    rm -rf "$venv"
    if command -v uv >/dev/null 2>&1; then
        uv venv --quiet --python "$python" "$venv"
    else
        "$python" -m venv "$venv"
    fi
}

install() {
    if command -v uv >/dev/null 2>&1; then
        uv pip install --quiet --python "$venv/bin/python" "$@"
        return
    fi
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip >/dev/null
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "$@"
}

if runs && [ -f "$stamp" ] && wanted | cmp -s - "$stamp"; then
    exit 0
fi
echo "Installing $lock into $venv" >&2
runs || create
rm -f "$stamp" # cut short from here on, the next run starts again
install --require-hashes --only-binary :all: --requirement "$lock" </dev/null
install --no-deps --no-build-isolation --editable . </dev/null
wanted >"$stamp"
