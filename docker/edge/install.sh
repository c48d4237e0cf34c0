#!/bin/sh
# Installs one volunteer on this machine: a virtual environment, its settings, and a systemd service. Run it again to
# update or to change a setting; what is not named stays as it is. docs/volunteer.md shows a whole installation.
set -eu

usage() {
  cat <<'USAGE'
usage: install.sh --superlink HOST:9092 --root-certificates ca.crt --data FOLDER [more]
       install.sh --uninstall [--purge]

  --superlink HOST:PORT        the SuperLink's Fleet API
  --root-certificates FILE     its CA certificate; copied
  --data PATH                  this machine's own data: a table (.csv, .parquet; its columns in --options), an .npz, or
                               a folder of images, one folder a class
  --key FILE                   this client's private key; copied. Without it one is made on the first installation
  --device DEVICE              auto, cpu, cuda, cuda:N                                            (auto)
  --participation POLICY       how this client decides; empty: as each run says                   (empty)
  --set "NAME.KEY=VALUE ..."   settings of that policy, such as defect.leave-below=0.3            (empty)
  --limits "KEY=VALUE ..."     what a run may ask of this device, such as max-steps=2000          (`fedappeal client limits`)
  --allow PACKAGE,PACKAGE      packages whose code may run here because a run names it            (none)
  --options "--label kind ..." further options of `fedappeal client`
  --from SOURCE                what to install: a folder, a wheel, or a requirement for pip       (this checkout)
  --python PYTHON              Python 3.11 or newer                                               (python3)
  --torch-index URL            an index to take PyTorch from, such as that of its CPU-only builds
  --prefix DIR                 where to install                                                   (/opt/fedappeal)
  --no-systemd                 no service and no user of its own: all in DIR, started by DIR/run-client; needs no root
  --uninstall                  remove service and program; settings, key and state stay
  --purge                      with --uninstall: remove those too
USAGE
}

fail() {
  echo "install.sh: $*" >&2
  exit 2
}

say() { echo "install.sh: $*"; }

# -- arguments ---------------------------------------------------------------------------------------------------

# Settings that the client takes as they are, each with the option of its name.
as_is='participation set limits allow'
superlink='' root_certificates='' data='' key='' device='' from='' python=python3 torch_index='' prefix=/opt/fedappeal
systemd=yes uninstall='' purge=''
for name in $as_is options; do eval "$name='' ${name}_given=''"; done

while [ $# -gt 0 ]; do
  case $1 in
    --no-systemd) systemd='' && shift ;;
    --uninstall) uninstall=yes && shift ;;
    --purge) purge=yes && shift ;;
    -h | --help) usage && exit 0 ;;
    *)
      case $1 in
        --*[!a-z-]* | [!-]* | -[!-]*) name='' ;;
        *) name=${1#--} ;;
      esac
      case " superlink root-certificates data key device from python torch-index prefix $as_is options " in
        *" $name "*) name=$(echo "$name" | tr - _) ;;
        *) usage >&2 && fail "unknown option '$1'" ;;
      esac
      [ $# -ge 2 ] || fail "$1 needs a value"
      case $2 in
        *[\"\\\$\`]* | *"
"*) fail "$1 = '$2' is not allowed: no quotes, backslashes, dollar signs, backticks or line breaks" ;;
      esac
      eval "$name=\$2 ${name}_given=yes"
      shift 2
      ;;
  esac
done

case $prefix in
  /*) ;;
  *) prefix=$(pwd)/$prefix ;;
esac
case $prefix in
  *[[:space:]]*) fail "prefix = '$prefix' is not allowed: no spaces" ;;
esac

unit=fedappeal-client.service
unit_file=/etc/systemd/system/$unit
if [ "$systemd" ]; then
  config=/etc/fedappeal state=/var/lib/fedappeal cache=/var/cache/fedappeal
  [ "$(id -u)" = 0 ] || fail "a service needs root: run it with sudo, or with --no-systemd --prefix FOLDER"
else
  config=$prefix/etc state=$prefix/state cache=$prefix/cache
fi
env_file=$config/client.env
mark=$prefix/.installed-by-fedappeal

# Whether a systemd runs that can be told about services; in a container or an image that is being built there is none.
booted() { [ "$systemd" ] && [ -d /run/systemd/system ]; }

# -- uninstall -----------------------------------------------------------------------------------------------------

if [ "$uninstall" ]; then
  if [ "$systemd" ] && [ -f "$unit_file" ]; then
    if booted; then systemctl disable --now --quiet "$unit"; fi
    rm -f "$unit_file"
    if booted; then systemctl daemon-reload; fi
  fi
  if [ -d "$prefix" ]; then
    [ -f "$mark" ] || fail "prefix = '$prefix' is not allowed: this script has not installed it"
    rm -rf "${prefix:?}/venv" "${prefix:?}/run-client" "${prefix:?}/bin"
  fi
  if [ "$purge" ]; then
    rm -rf "$config" "$state" "$cache" "$mark"
    if [ "$systemd" ] && id fedappeal >/dev/null 2>&1; then userdel fedappeal; fi
    say "removed, with settings, key and state"
  else
    rm -rf "$cache"
    say "removed; settings and key stay in $config, state in $state (--purge removes them)"
  fi
  if [ -d "$prefix" ]; then rmdir "$prefix" 2>/dev/null || true; fi
  exit 0
fi
[ -z "$purge" ] || fail "--purge goes with --uninstall"

# -- what is needed, before anything is written --------------------------------------------------------------------

# The value of a setting in the settings of an earlier installation; its owner may have edited it, with quotes or without.
kept() {
  if [ -f "$env_file" ]; then
    sed -n -e "s/^$1=\"\(.*\)\"[[:space:]]*\$/\1/p" -e t -e "s/^$1='\(.*\)'[[:space:]]*\$/\1/p" -e t \
      -e "s/^$1=\(.*[^[:space:]]\)[[:space:]]*\$/\1/p" "$env_file" | tail -n 1
  fi
}

variable() { echo "$1" | tr a-z- A-Z_; }

# What else its owner put there, such as OMP_NUM_THREADS.
others() {
  if [ -f "$env_file" ]; then
    ours=$(variable "superlink root-certificates key data device $as_is options" | tr ' ' '|')
    grep -vE "^($ours)=|written by install\.sh" "$env_file" || true
  fi
}

absolute() {
  case $1 in
    '' | /*) echo "$1" ;;
    *) echo "$(pwd)/$1" ;;
  esac
}

[ "$superlink" ] || superlink=$(kept SUPERLINK)
[ "$data" ] || data=$(kept DATA)
[ "$device" ] || device=$(kept DEVICE)
for name in $as_is options; do
  eval "[ \"\$${name}_given\" ] || $name=\$(kept $(variable "$name"))"
done
device=${device:-auto}
data=$(absolute "$data")

[ "$superlink" ] || fail "--superlink HOST:PORT is missing: the SuperLink's Fleet API"
case ${superlink%:*}/${superlink##*:} in
  /* | */ | */*[!0-9]* | "$superlink/$superlink") fail "superlink = '$superlink' is not allowed: HOST:PORT" ;;
esac
[ "$data" ] || fail "--data PATH is missing: a table (.csv, .parquet), an .npz with x and y, or a folder of images, one folder a class"
[ -e "$data" ] || fail "data = '$data' is not allowed: no such file or folder"
if [ "$root_certificates" ]; then
  grep -qs 'BEGIN CERTIFICATE' "$root_certificates" ||
    fail "root-certificates = '$root_certificates' is not allowed: no certificate (PEM) that can be read"
elif [ ! -f "$config/ca.crt" ]; then
  fail "--root-certificates FILE is missing: the SuperLink's CA certificate, which its operator hands out"
fi
if [ "$key" ]; then
  grep -qs 'BEGIN OPENSSH PRIVATE KEY' "$key" ||
    fail "key = '$key' is not allowed: no private key in OpenSSH's format that can be read"
fi
if [ -z "$from" ]; then
  checkout=$(cd "$(dirname "$0")/../.." && pwd)
  [ -f "$checkout/pyproject.toml" ] || fail "--from SOURCE is missing: a folder, a wheel, or a requirement for pip"
  from=$checkout
fi
command -v "$python" >/dev/null 2>&1 || fail "python = '$python' is not allowed: no such command (--python)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "python = '$python' is not allowed: it is $("$python" -V 2>&1), 3.11 or newer is needed (--python)"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
  fail "python = '$python' is not allowed: it makes no virtual environments (Debian: apt-get install python3-venv)"
if [ -d "$prefix" ] && [ ! -f "$mark" ] && [ "$(ls -A "$prefix")" ]; then
  fail "prefix = '$prefix' is not allowed: the folder holds something else"
fi
unit_source=$(dirname "$0")/$unit
if [ "$systemd" ] && [ ! -f "$unit_source" ]; then
  fail "$unit is missing beside this script (or use --no-systemd)"
fi

# -- program -------------------------------------------------------------------------------------------------------

umask 022
mkdir -p "$prefix" || fail "prefix = '$prefix' is not allowed: it cannot be written to"
touch "$mark"
[ -x "$prefix/venv/bin/python" ] || "$python" -m venv "$prefix/venv"
pip="$prefix/venv/bin/python -m pip --disable-pip-version-check --quiet"
say "installing $from into $prefix (PyTorch is large: minutes)"
if [ "$torch_index" ]; then
  # First and from there alone; what comes next finds it installed.
  $pip install --index-url "$torch_index" 'torch>=2.6'
fi
$pip install "$from"
# Again by itself: pip keeps what is installed where the version is the same, and a checkout's often is.
$pip install --force-reinstall --no-deps "$from"
mkdir -p "$prefix/bin"
ln -sf ../venv/bin/fedappeal "$prefix/bin/fedappeal"

# -- user, settings, key -------------------------------------------------------------------------------------------

if [ "$systemd" ]; then
  id fedappeal >/dev/null 2>&1 ||
    useradd --system --user-group --home-dir "$state" --no-create-home --shell /usr/sbin/nologin fedappeal
fi
mkdir -p "$config"
if [ "$root_certificates" ]; then
  cp "$root_certificates" "$config/ca.crt.new"
  mv "$config/ca.crt.new" "$config/ca.crt"
fi
fresh_key=''
if [ "$key" ]; then
  # Looked at before it takes the place of one that is there.
  rm -f "$config/new.key"
  (umask 077 && cp "$key" "$config/new.key")
  if ! "$prefix/bin/fedappeal" key "$config/new.key" --name "$(uname -n)" >/dev/null 2>&1; then
    rm -f "$config/new.key"
    fail "key = '$key' is not allowed: it must hold an ECDSA key without a passphrase"
  fi
  mv "$config/new.key" "$config/client.key"
  mv "$config/new.pub" "$config/client.pub"
elif [ ! -f "$config/client.key" ]; then
  fresh_key=yes
fi
# Makes one where there is none, and checks one that is there.
"$prefix/bin/fedappeal" key "$config/client.key" --name "$(uname -n)" >/dev/null
{
  cat <<ENV
# Settings of the fedappeal client on this machine, written by install.sh. Restart the client after a change.
SUPERLINK="$superlink"
ROOT_CERTIFICATES="$config/ca.crt"
KEY="$config/client.key"
DATA="$data"
DEVICE="$device"
ENV
  for name in $as_is options; do
    value=''
    eval "value=\$$name"
    printf '%s="%s"\n' "$(variable "$name")" "$value"
  done
  others
} >"$env_file.new"
mv "$env_file.new" "$env_file"
chmod 0644 "$config/ca.crt" "$env_file"
if [ "$systemd" ]; then
  chown root:fedappeal "$config/client.key"
  chmod 0640 "$config/client.key"
fi

# -- how it is started ---------------------------------------------------------------------------------------------

if [ "$systemd" ]; then
  if command -v runuser >/dev/null 2>&1 && ! runuser -u fedappeal -- test -r "$data"; then
    say "NOTE: the user 'fedappeal' may not read $data; let it, for example: setfacl -R -m u:fedappeal:rX '$data'"
  fi
  sed "s|/opt/fedappeal/|$prefix/|g" "$unit_source" >"$unit_file.new"
  chmod 0644 "$unit_file.new"
  mv "$unit_file.new" "$unit_file"
  if booted; then
    systemctl daemon-reload
    systemctl enable --quiet "$unit"
    systemctl restart "$unit"
    say "running: journalctl -u fedappeal-client -f shows what it does"
  else
    say "installed; systemd does not run here, it starts with the machine: systemctl enable $unit"
  fi
else
  mkdir -p "$state" && chmod 0700 "$state"
  handed=$(for name in $as_is; do printf ' --%s "$%s"' "$name" "$(variable "$name")"; done)
  cat >"$prefix/run-client" <<RUN
#!/bin/sh
# Starts the client in the foreground, until SIGTERM. Further arguments are options of \`fedappeal client\`.
set -eu
. "$env_file"
export OMP_NUM_THREADS="\${OMP_NUM_THREADS:-1}"  # a small model is no faster with two, and on a busy machine far slower
export FLWR_HOME="$state/.flwr" XDG_CACHE_HOME="$cache" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
# shellcheck disable=SC2086  # options are split at their spaces
exec "$prefix/bin/fedappeal" client --superlink "\$SUPERLINK" --root-certificates "\$ROOT_CERTIFICATES" --key "\$KEY" \\
  --data "\$DATA" --device "\$DEVICE"$handed \\
  --state-dir "$state/client" --connect-timeout 0 \$OPTIONS "\$@"
RUN
  chmod 0755 "$prefix/run-client"
  say "installed; start it with $prefix/run-client"
fi
if [ "$fresh_key" ]; then
  say "this client's key is new: send $config/client.pub to the operator, who registers it"
fi
