# Sourced by the other scripts: makes .venv and installs OctoCP with extras in it, unless that is done.
#
#   make_venv             .venv alone
#   ensure_venv EXTRAS    with OctoCP; EXTRAS as pip takes them, e.g. dev,data
#
# Needs Python 3.11 or newer with venv; PYTHON names another interpreter than the first one that fits.

pick_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if "$candidate" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "OctoCP needs Python 3.11 or newer with venv; set PYTHON to one" >&2
  return 1
}

make_venv() {
  local python
  if [[ ! -x .venv/bin/python ]]; then
    python=$(pick_python)
    echo "Making .venv with $("$python" --version) ..." >&2
    "$python" -m venv .venv
  fi
}

ensure_venv() {
  local extras=$1 stamp=.venv/.octocp-$1
  make_venv
  # Installed again whenever the list of what to install has changed.
  if [[ ! -e $stamp || pyproject.toml -nt $stamp ]]; then
    echo "Installing OctoCP in .venv ..." >&2
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".[$extras]"
    touch "$stamp"
  fi
}
