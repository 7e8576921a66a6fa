# Begin a `run` script with: . "$(dirname "$0")/../program.sh"
# It is called as `run SOURCE WORK`, and prints one line for each program: NAME passed|failed|refused WORDS. ONLY: names that contain it.
set -u
SOURCE=$(readlink -f "$1") WORK=$(readlink -f "$2") HERE=$(dirname "$(readlink -f "$0")")
ROOT=$(readlink -f "$HERE/../../..") BIN=$(readlink -f "$HERE/../../..")/.venv/bin
CONSTRAINTS=$ROOT/constraints LOGS=$WORK/logs DATA=$WORK/data OUT=$WORK/out
export PATH=$BIN:$PATH TRAINMASTER_STATE_DIR=$WORK/state TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=0
mkdir -p "$LOGS" "$OUT"

tm() { "$BIN/tm" "$@"; } # whichever Python is first on PATH

wanted() { [[ $1 == *"${ONLY:-}"* ]]; }

say() { printf '%s %s %s\n' "$1" "$2" "$(tr '\n\t' '  ' <<< "${3:-}" | cut -c1-240)"; }

# venv NAME REQUIREMENTS CONSTRAINTS...: make WORK/NAME, with Trainmaster if EDITABLE is its folder (and extras). The first file that pins a package
# counts.
venv() {
  local place=$WORK/$1 requirements=$2
  shift
  [ -e "$place/.installed" ] && return
  awk -F'==| ' 'NR == FNR { if (NF > 1) own[$1]; next } /==/ && !($1 in own) { own[$1]; print $1 "==" $2 }' "$@" > "$place.txt"
  uv venv --quiet --clear --python "$BIN/python" "$place" >&2 &&
    uv pip install --quiet --python "$place/bin/python" -r "$requirements" -c "$place.txt" ${EDITABLE:+-e "$EDITABLE"} >&2 &&
    touch "$place/.installed"
}

cluster() { # cluster KIND NAME FLAGS...: start a cluster, which ends with this shell
  local kind=$1 name=$2
  shift 2
  trap "tm cluster down $kind --name $name >&2" EXIT
  tm cluster up "$kind" --name "$name" "$@" >&2 || exit 1
  eval "$(tm cluster env "$kind" --name "$name")"
}

judge() { # judge NAME STATUS LOG [FIGURES]: say how a command of tm ended
  local error
  error=$(grep -am1 -E '^error|its container is not what the job asks for' "$3")
  if [ "$2" = 0 ]; then
    say "$1" passed "${4:-}"
  elif [ "$2" != 124 ] && [ -n "$error" ]; then
    say "$1" refused "$error"
  else
    say "$1" failed "exit status $2: $(grep -a . "$3" | tail -2)"
  fi
}
