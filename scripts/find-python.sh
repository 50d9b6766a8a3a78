#!/bin/sh
# Print the path of a Python that can make a virtual environment for this project; else say what is missing.
#
# PYTHON=/path/to/python is tried alone. The names are tried in the order of what CI tests. Each is run, not only
# looked up: a version manager's shim exists for versions that it then refuses to start.
set -u

minimum="3.11"
too_old=""
without_venv=""

for name in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
    found=$("$name" -c 'import sys; print("%d.%d" % sys.version_info[:2], sys.executable)' 2>/dev/null) || continue
    version=${found%% *}
    path=${found#* }
    if ! "$path" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        too_old="$too_old $name ($version)"
    elif ! "$path" -c 'import ensurepip, venv' 2>/dev/null; then
        without_venv="$without_venv $path ($version)"
    else
        printf '%s\n' "$path"
        exit 0
    fi
done

{
    if [ -n "$without_venv" ]; then
        echo "Found$without_venv, but its modules venv and ensurepip are missing."
        echo "On Debian or Ubuntu: apt-get install python3-venv"
    else
        echo "basert-fleet needs Python $minimum or newer; found:${too_old:- none}."
        echo "On macOS: brew install python@3.13    On Debian or Ubuntu: apt-get install python3 python3-venv"
    fi
    echo "A Python elsewhere is taken with: make PYTHON=/path/to/python3 ..."
} >&2
exit 1
