# Sourced by the suites that drive us with clients of PyPI and npm. Clients are installed once and kept in the directory
# $clients, each in a directory named by the hash of the list of versions that made it.

# Prints the directory of something that is made once for a list of versions: made NAME LIST MAKE
made() {
    local name=$1 list=$2 make=$3 dir
    dir=$clients/$name-$( (python3 --version && node --version && cat "$list") | sha256sum | cut -c1-16)
    if [[ ! -e $dir/complete ]]; then
        rm -rf "$dir"
        mkdir -p "$dir"
        "$make" "$dir" "$list" >&2
        touch "$dir/complete"
    fi
    echo "$dir"
}

# For `made`: a virtual environment with exactly what a requirements file lists.
make_python() {
    python3 -m venv "$1"
    "$1/bin/python" -m pip install -q --disable-pip-version-check --no-deps -r "$2"
}

# For `made`: a directory whose node_modules has what a package.json asks for.
make_node() {
    cp "$2" "$1"
    (cd "$1" && npm install --no-audit --no-fund --loglevel=error)
}
