#!/bin/sh
# Makes this machine a volunteer of a federation: a virtual environment with fedappeal, `fedappeal join`, and a systemd
# unit of this user. Run it again to update, or with the same invitation to change an option.
set -eu

usage() {
  cat <<'USAGE'
usage: install.sh INVITATION --data PATH [options of `fedappeal join`]
       install.sh                        update the program; the client and its options stay
       install.sh --uninstall            remove service and program; key and state stay

  INVITATION          the operator's file, or its line
  --data PATH         this machine's own data: a table, an .npz, or a folder of images, one folder a class
  --from SOURCE       what to install: a folder, a wheel, or a requirement for pip       (this checkout)
  --python PYTHON     Python 3.11 or newer                                               (python3)
  --torch-index URL   an index to take PyTorch from, such as that of its CPU-only builds
  --prefix DIR        where to install                                                   (~/.local/share/fedappeal)
USAGE
}

fail() {
  echo "install.sh: $*" >&2
  exit 2
}

say() { echo "install.sh: $*"; }

# -- arguments ---------------------------------------------------------------------------------------------------

case ${1-} in
  fedappeal://*) # started again without the secret, which all users of the machine see among a command's words
    FEDAPPEAL_INVITATION=$1
    export FEDAPPEAL_INVITATION
    shift
    exec sh "$0" - "$@"
    ;;
esac

line=${FEDAPPEAL_INVITATION-} # what pip builds need not see it
unset FEDAPPEAL_INVITATION
invitation='' from='' python=python3 torch_index='' prefix=${HOME:?}/.local/share/fedappeal uninstall=''
case ${1-} in
  '' | --*) ;;
  -h) usage && exit 0 ;;
  -) invitation=${line:+-} && shift ;;
  -*) usage >&2 && fail "unknown option '$1'" ;;
  *)
    [ -r "$1" ] || fail "invitation = '$1' is not allowed: no file that can be read, and no line fedappeal://..."
    invitation=$1
    shift
    ;;
esac

# What is not an option of this script is one of `fedappeal join`, and goes to the end of the list, in its order.
left=$#
while [ "$left" -gt 0 ]; do
  case $1 in
    --from | --python | --torch-index | --prefix)
      [ "$left" -ge 2 ] || fail "$1 needs a value"
      name=$(echo "${1#--}" | tr - _)
      eval "$name=\$2"
      shift 2
      left=$((left - 2))
      ;;
    --uninstall) uninstall=yes && shift && left=$((left - 1)) ;;
    --help) usage && exit 0 ;;
    --data)
      [ "$left" -ge 2 ] || fail "$1 needs a value"
      case $2 in
        *:*) ;; # a function
        *) [ -e "$2" ] || fail "data = '$2' is not allowed: no such file or folder" ;;
      esac
      set -- "$@" "$1" "$2"
      shift 2
      left=$((left - 2))
      ;;
    *)
      set -- "$@" "$1"
      shift
      left=$((left - 1))
      ;;
  esac
done
[ "$invitation" ] || [ $# = 0 ] || fail "invitation is missing before '$1': the operator's file, or its line"

case $prefix in
  /*) ;;
  *) prefix=$(pwd)/$prefix ;;
esac

unit='fedappeal-client.service'
unit_file=${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user/$unit
mark=$prefix/.installed-by-fedappeal

# Whether a systemd of this user runs; in a container, or without a login, there is none.
booted() { systemctl --user show-environment >/dev/null 2>&1; }

# -- uninstall -----------------------------------------------------------------------------------------------------

if [ "$uninstall" ]; then
  [ ! -d "$prefix" ] || [ -f "$mark" ] || fail "prefix = '$prefix' is not allowed: this script has not installed it"
  if booted; then systemctl --user disable --now --quiet "$unit" 2>/dev/null || true; fi
  rm -f "$unit_file"
  if booted; then systemctl --user daemon-reload; fi
  rm -rf "${prefix:?}/venv" "$mark"
  if [ -d "$prefix" ]; then rmdir "$prefix" 2>/dev/null || true; fi
  say "removed; key and state stay in ~/.fedappeal/client (or --state-dir): delete it to remove those, too"
  exit 0
fi

# -- what is needed, before anything is written --------------------------------------------------------------------

if [ -z "$from" ]; then
  checkout=$(cd "$(dirname "$0")/../.." && pwd)
  [ -f "$checkout/pyproject.toml" ] || fail "--from SOURCE is missing: a folder, a wheel, or a requirement for pip"
  from=$checkout
fi
[ ! -d "$from" ] || from=$(cd -- "$from" && pwd) # pip takes a word without a slash as a package's name
command -v "$python" >/dev/null 2>&1 || fail "python = '$python' is not allowed: no such command (--python)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "python = '$python' is not allowed: it is $("$python" -V 2>&1), 3.11 or newer is needed (--python)"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
  fail "python = '$python' is not allowed: it makes no virtual environments (Debian: apt-get install python3-venv)"
if [ -d "$prefix" ] && [ ! -f "$mark" ] && [ "$(ls -A "$prefix")" ]; then
  fail "prefix = '$prefix' is not allowed: the folder holds something else"
fi
[ "$invitation" ] || [ -f "$mark" ] || fail "invitation is missing: the operator's file, or its line (--help)"

# -- program -------------------------------------------------------------------------------------------------------

mkdir -p "$prefix" || fail "prefix = '$prefix' is not allowed: it cannot be written to"
touch "$mark"
[ -x "$prefix/venv/bin/python" ] || "$python" -m venv "$prefix/venv"
pip() { "$prefix/venv/bin/python" -m pip --disable-pip-version-check --quiet install "$@"; }
[ "$(id -u)" != 0 ] || say "NOTE: this user is root; the user whose data it is, or one made for it, is safer"
say "installing $from into $prefix (PyTorch is large: minutes)"
if [ "$torch_index" ]; then
  # First and from there alone; what comes next finds it installed.
  pip --index-url "$torch_index" 'torch>=2.6'
fi
pip "$from"
# Again by itself: pip keeps what is installed where the version is the same, and a checkout's often is.
pip --force-reinstall --no-deps "$from"

# -- member and service --------------------------------------------------------------------------------------------

fedappeal=$prefix/venv/bin/fedappeal
if [ "$invitation" = - ]; then
  printf '%s\n' "$line" | "$fedappeal" join /dev/stdin "$@" --service
elif [ "$invitation" ]; then
  "$fedappeal" join "$invitation" "$@" --service
fi
if booted; then
  systemctl --user daemon-reload
  systemctl --user enable --quiet "$unit"
  systemctl --user restart "$unit"
  say "running: journalctl --user -u fedappeal-client -f shows what it does"
fi
say "its commands: $fedappeal client --help"
