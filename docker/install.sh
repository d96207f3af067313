#!/bin/sh
# Build stage: makes a virtual environment of the wheels in /wheels and this project, compiled.
#     docker/install.sh FOLDER
set -eu
folder="$1"
pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /wheels .
python -m venv --without-pip "$folder"
pip --python "$folder/bin/python" install --quiet --no-index --no-deps --no-compile /wheels/*.whl
# Only for type checkers, and tests of others.
find "$folder" -name '*.pyi' -delete
find "$folder" -path '*/tests/*' -name 'test_*' -delete
# Unchecked: nothing in an image changes, and a time of modification may get lost on its way there.
"$folder/bin/python" -m compileall -q --invalidation-mode unchecked-hash "$folder/lib"
