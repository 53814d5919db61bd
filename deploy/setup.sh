#!/usr/bin/env bash
# Sets up the virtual environment (cpu or gpu), or the tests' further programs (test). A repeated call returns at once:
# a stamp in the environment holds the digest of the set-up's inputs. PACKAGE is what pip installs, e.g. `.[cpu]` for an
# image; by default the checkout itself, editable, with the tests' packages.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:-cpu}
venv=${VENV:-.venv}
python=${PYTHON:-python3}
read -ra package <<< "${PACKAGE:--e .[$kind,test]}"
torch_index=https://download.pytorch.org/whl/cpu

fail() { echo "setup: $*" >&2; exit 2; }

setup_environment() {
    "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
        || fail "$("$python" --version) is not supported; set PYTHON to a Python 3.11, 3.12 or 3.13"
    local stamp="$venv/.squelch-setup" want
    want=$(cat pyproject.toml deploy/constraints.txt deploy/setup.sh | sha256sum | cut -d' ' -f1)-$kind-${package[*]}-$PWD
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && return
    echo "setup: installing into $venv ($kind); about two minutes"
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv" \
        || fail "python venv failed; on Debian and Ubuntu install python3-venv"
    local pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c deploy/constraints.txt)
    if [ "$kind" = cpu ]; then
        # `+cpu` names the CPU build, so that a missing one fails instead of bringing several GB of CUDA packages.
        "${pip[@]}" "torch==2.13.0+cpu" 2>/dev/null || "${pip[@]}" "torch==2.13.0+cpu" --extra-index-url "$torch_index" \
            || fail "no CPU build of torch 2.13.0 in the configured index or $torch_index"
    fi
    "${pip[@]}" "${package[@]}"
    if [ "$kind" = cpu ]; then
        # vLLM installs CUDA builds of these packages, which do not load with the CPU torch and break
        # `import transformers`. Text models do not need them.
        "$venv/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
    fi
    echo "$want" > "$stamp"
}

# The sandbox for programs that a model wrote (docs/sandbox.md). Only DeepCoder needs it, so set-up continues without it.
setup_sandbox() {
    command -v bwrap >/dev/null && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends bubblewrap >/dev/null; } && return
    fi
    echo "setup: bubblewrap is not installed; the sandbox of DeepCoder needs it only where nothing else may create user namespaces" \
        "(as root on Debian: apt-get install bubblewrap; squelch doctor names the sandbox that works)" >&2
}

setup_tests() {
    command -v prometheus >/dev/null && command -v promtool >/dev/null && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus >/dev/null
    else
        echo "setup: prometheus is not installed; tests that need it are skipped with a message" \
            "(as root on Debian: apt-get install prometheus)" >&2
    fi
}

case "$kind" in
    cpu | gpu) setup_environment; setup_sandbox ;;
    test) setup_tests; setup_sandbox ;;
    *) fail "unknown kind '$kind'; use cpu, gpu or test" ;;
esac
