#!/bin/sh
# Makes the virtual environment that the Makefile uses. Reads VENV, PYTHON, TORCH, CONSTRAINTS.
set -eu
: "${VENV:=.venv}" "${PYTHON:=python3}" "${TORCH:=cpu}" "${CONSTRAINTS:=constraints.txt}"

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "sero needs Python 3.11 or newer, found $("$PYTHON" --version 2>&1). Run: make PYTHON=python3.12" >&2
    exit 1
}
[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
install() { "$VENV/bin/python" -m pip install -qq --disable-pip-version-check -c "$CONSTRAINTS" "$@"; }

echo "sero: installing into $VENV (some minutes the first time)"
if [ "$TORCH" = cuda ]; then
    install 'torch===2.13.0'
else
    # The CPU build carries a local version, which only some indexes and link folders offer.
    install 'torch==2.13.0+cpu' 2>/dev/null || {
        echo "sero: no CPU build of torch on the configured package index; taking the default build"
        install 'torch==2.13.0'
    }
fi
install 'hatchling>=1.26' editables
install --no-build-isolation -e '.[train,site,browser,spacy,webshop-reference,pddl,dev]'

# The original ALFWorld engine (reference for tests, `sero verify`, `sero bench`) compiles C and C++.
if command -v cc >/dev/null 2>&1 && command -v c++ >/dev/null 2>&1; then
    # The versions, those of the extra `reference`, are in the constraints.
    install alfworld textworld tatsu || reference=failed
else
    reference=missing
fi
if [ -n "${reference:-}" ]; then
    cat >&2 <<'EOF'
**************************************************************************************
*  The original ALFWorld engine was NOT installed: it needs a C and a C++ compiler.  *
*  Everything works without it, but the tests that compare against it are SKIPPED.   *
*  After installing a compiler: rm -r .venv && make setup                            *
**************************************************************************************
EOF
fi
echo "sero: ready"
