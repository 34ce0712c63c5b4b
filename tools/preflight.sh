#!/bin/sh
# Prints the Python to build the virtual environment with, or says which command gets one.
# PYTHON=/path/to/python overrides the search.

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
has_venv() { "$1" -c 'import venv, ensurepip' >/dev/null 2>&1; }

install_hint() {
    if command -v apt-get >/dev/null 2>&1; then echo "sudo apt-get install python3 python3-venv"
    elif command -v dnf >/dev/null 2>&1; then echo "sudo dnf install python3.12"
    elif command -v apk >/dev/null 2>&1; then echo "sudo apk add python3"
    elif command -v pacman >/dev/null 2>&1; then echo "sudo pacman -S python"
    elif command -v zypper >/dev/null 2>&1; then echo "sudo zypper install python312"
    elif command -v brew >/dev/null 2>&1; then echo "brew install python@3.12"
    elif [ "$(uname -s)" = Darwin ]; then echo "install Homebrew, then: brew install python@3.12"
    else echo "install Python 3.11 or newer with your package manager"
    fi
}

if [ -n "$PYTHON" ]; then candidates=$PYTHON; else candidates="python3 python3.13 python3.12 python3.11 python3.14"; fi

found=
for candidate in $candidates; do
    new_enough "$candidate" || continue
    found=$candidate
    if has_venv "$candidate"; then
        echo "$candidate"
        exit 0
    fi
done

if [ -n "$found" ]; then
    version=$("$found" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    echo "ottla: $found ($version) cannot make a virtual environment: its venv module is missing." >&2
    if command -v apt-get >/dev/null 2>&1; then echo "Run:  sudo apt-get install python$version-venv" >&2
    else echo "Run:  $(install_hint)" >&2
    fi
else
    first=${PYTHON:-python3}
    have=$( ("$first" --version || echo "nothing that runs") 2>/dev/null | tail -n 1)
    echo "ottla: needs Python 3.11 or newer; $first is: $have." >&2
    echo "Run:  $(install_hint)" >&2
    echo "Or name one you have:  make PYTHON=/path/to/python3.12 demo" >&2
fi
exit 1
