#!/bin/sh
# The Autobahn test suite of WebSocket into build/tools, unless it is there already; prints the path
# of its program wstest. It is written in Python 2, which Debian has no longer: one that is
# named python2.7 is taken, or pyenv's, or TULLE_PYTHON2.
set -eu
cd "$(dirname "$0")/.."
version=0.8.2
# Its place is written into what is made below: that of the directory, not of a link to it.
tools=$(readlink -m build/tools)
if [ ! -x "$tools/bin/wstest" ]; then
    python=${TULLE_PYTHON2:-}
    for found in "$(command -v python2.7 || true)" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/2.7*/bin/python2.7; do
        if [ -z "$python" ] && [ -x "$found" ] && "$found" -m pip --version >/dev/null 2>&1; then
            python=$found
        fi
    done
    if [ -z "$python" ]; then
        echo "error: Autobahn's suite needs Python 2.7 with pip, and there is none; with pyenv: pyenv install 2.7.18. Or name one: TULLE_PYTHON2=/path/to/python2.7" >&2
        exit 1
    fi
    mkdir -p "$tools/bin"
    "$python" -m pip --disable-pip-version-check install --quiet --target "$tools/autobahn.$$" \
        "autobahntestsuite==$version" >&2
    rm -rf "$tools/autobahn"
    mv "$tools/autobahn.$$" "$tools/autobahn"
    # A site of its own: some of its packages share a name space, which a mere path does not join.
    # Its echoing server refuses a Host with another port than its own, as there is behind a proxy.
    cat >"$tools/bin/wstest.py" <<END
import site
site.addsitedir("$tools/autobahn")
import autobahntestsuite.testee as testee
import autobahntestsuite.wstest as wstest
listen = testee.listenWS
def listen_anywhere(factory, *more):
    factory.externalPort = None
    return listen(factory, *more)
testee.listenWS = listen_anywhere
wstest.run()
END
    printf '#!/bin/sh\nexec %s %s "$@"\n' "$python" "$tools/bin/wstest.py" >"$tools/bin/wstest.$$"
    chmod +x "$tools/bin/wstest.$$"
    mv "$tools/bin/wstest.$$" "$tools/bin/wstest"
fi
echo "$tools/bin/wstest"
