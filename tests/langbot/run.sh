#!/usr/bin/env bash
# Proves the wire with LangBot's own code, unmodified, against our server: its Box client 0.4.2, its hosts 4.10.1 and
# 4.11.2, and a client of each later dialect; with native boxes and then, the first of them, with those of another server
# by E2B's API and with those of container engines.
#
#   run.sh BIN [pytest arguments]
#
# The virtual environments are made once and kept in $SANDCRATE_VENVS (target/langbot-venvs), named by the hash of
# the list of versions that made them. Nothing but the package registry is asked for anything.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
[[ $# -ge 1 ]] || { echo "usage: run.sh BIN [pytest arguments]" >&2; exit 2; }
SANDCRATE_BIN=$(realpath -e -- "$1")
shift
export SANDCRATE_BIN
venvs=$(realpath -m -- "${SANDCRATE_VENVS:-${CARGO_TARGET_DIR:-$here/../../target}/langbot-venvs}")

# Prints the interpreter of the environment for a list of versions and perhaps one package more; makes it when it is
# not there.
environment() {
    local list=$1 more=${2:-} dir
    dir=$venvs/$(basename "$list" .txt)-$( (python3 --version && cat "$list" && printf %s "$more") | sha256sum | cut -c1-16)
    if [[ ! -x $dir/bin/python || ! -e $dir/complete ]]; then
        mkdir -p "$venvs"
        rm -rf "$dir"
        # `python3 -m venv` writes its own path into what it makes, so it is made in place and marked when done.
        python3 -m venv "$dir" >&2
        "$dir/bin/python" -m pip install -q --disable-pip-version-check --no-deps -r "$list" ${more:+"$more"} >&2
        touch "$dir/complete"
    fi
    echo "$dir/bin/python"
}

# Prints the package that puts us in the place of LangBot's `box`; built once for what it is made of.
shim() {
    local source=$here/../../integrations/langbot dir
    dir=$venvs/shim-$( (cd "$source" && find . -type f | sort | xargs sha256sum) | sha256sum | cut -c1-16)
    if [[ ! -e $dir/complete ]]; then
        rm -rf "$dir"
        python3 -m pip wheel -q --disable-pip-version-check --no-deps -w "$dir" "$source" >&2
        touch "$dir/complete"
    fi
    echo "$dir"/*.whl
}

# Away from the repository: the client makes folders where it runs.
work=$(mktemp -d /tmp/sandcrate-langbot-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"

shim=$(shim)
client=$(environment "$here/requirements-0.4.2.txt" "$shim")
host=$(environment "$here/requirements-host-4.10.1.txt" "$shim")
newer_host=$(environment "$here/requirements-host-4.11.2.txt" "$shim")
failed=0
pytest() {
    local python=$1
    shift
    local code=0
    "$python" -m pytest -q -p no:cacheprovider -c "$here/pytest.ini" --basetemp "$work/pytest" "$@" || code=$?
    # 5: the caller's arguments select nothing here.
    [[ $code -eq 0 || $code -eq 5 ]] || failed=1
}
export PYTHONDONTWRITEBYTECODE=1
pytest "$client" "$here" --ignore-glob "$here/test_host*.py" --ignore "$here/test_versions.py" "$@"
pytest "$host" "$here/test_host.py" "$@"
pytest "$newer_host" "$here/test_host_4_11.py" "$@"
for version in 0.4.13 0.5.8 0.7.11 0.7.18; do
    pytest "$(environment "$here/requirements-newer.txt" "langbot-plugin==$version")" "$here/test_versions.py" "$@"
done

# The same client with boxes on container engines: one transport, and what is the backend's to do. Not what asks for no
# backend at all, nor for a hard quota, which engines do not have.
on_engines='ws and not (no_backend or unavailable or quota or orphan)'
# Two hops deep. Sandboxes of a killed server end when the next one comes, or by themselves after 300 s.
echo "by E2B's API:"
"$client" "$here/far.py" "$client" -m pytest -q -p no:cacheprovider -c "$here/pytest.ini" --basetemp "$work/pytest-far" \
    -k "$on_engines and not killed" "$here/test_client.py" "$here/test_processes.py" "$here/test_sessions.py" || failed=1
for engine in docker podman; do
    if [[ $EUID -ne 0 ]]; then
        echo "SKIP: $engine: its daemon needs root"
    elif ! command -v "${engine/docker/dockerd}" >/dev/null; then
        [[ ,${SANDCRATE_TEST_REQUIRE:-}, != *,"$engine",* ]] || { echo "$engine is required here but not installed" >&2; failed=1; }
        echo "SKIP: $engine is not installed"
    else
        echo "on $engine:"
        "$client" "$here/engine.py" "$engine" "$client" -m pytest -q -p no:cacheprovider -c "$here/pytest.ini" \
            --basetemp "$work/pytest-$engine" -k "$on_engines" \
            "$here/test_client.py" "$here/test_processes.py" "$here/test_sessions.py" || failed=1
        if [[ $engine == docker && $# -eq 0 ]]; then
            echo "our service with LangBot's own runtime:"
            reference=$(environment "$here/requirements-0.4.2.txt")
            suite=$("$here/../../tools/built-program.sh" cli test it true)
            "$client" "$here/engine.py" docker "$reference" "$here/reference.py" \
                "$suite" --exact host::the_service_works_with_langbots_own_runtime || failed=1
        fi
    fi
done
exit "$failed"
