#!/bin/bash
# The first minutes on a GPU, in two calls of at most six minutes each:
#   sweeps/measured/first_minutes.sh 1    tests/gpu; training steps of base, 32 pairs of 512 tokens, by position scheme
#   sweeps/measured/first_minutes.sh 2    decoder-only steps of d 384 x 6 and d 512 x 8 by scheme; attention by length
# Everything is written below ${OUT:-.}: the tests' log, documents of `rpr-cli bench format=json` with the seconds of
# each round, and mfu.tsv, the shares of the chip's own figure (PEAK) and of the measured product.
# WHEELS=folder: packages that this machine lacks and cannot fetch. The other variables are sizes, as a rehearsal on a
# CPU needs them (tests/system/test_first_minutes.py).
set -uo pipefail
cd "$(dirname "$0")/../.."
OUT=$(mkdir -p "${OUT:-.}" && cd "${OUT:-.}" && pwd)
PY=${PY:-python3} HARDWARE=${HARDWARE:-1xgpu} PEAK=${PEAK:-989e12}          # FLOP/s in bfloat16: an H100's or H200's
TESTS=${TESTS:-tests/gpu} WORKERS=${WORKERS:-8} TEST_OPTIONS=${TEST_OPTIONS:--m gpu}
MODEL=${MODEL:-base} ROUNDS=${ROUNDS:-15} PATIENCE=${PATIENCE:-1}           # PATIENCE times the limits in seconds
VOCABULARY=${VOCABULARY:-32768} SENTENCES=${SENTENCES:-32} LENGTH=${LENGTH:-512}
WIDTHS=${WIDTHS:-384x6 512x8} CONTEXTS=${CONTEXTS:-1024,2048} CONTEXT_POSITIONS=${CONTEXT_POSITIONS:-32768}
LAYERS=${LAYERS:-512,1024,2048,4096,8192} LAYER_POSITIONS=${LAYER_POSITIONS:-16384}
VARIANTS=absolute,relative,rope,t5,alibi,transformer_xl COMPILED=${COMPILED:-absolute,relative}  # by torch.compile
if [ -n "${WHEELS:-}" ]; then
  "$PY" -m pip install -q --no-index --no-deps --no-compile --upgrade --target /tmp/site "$WHEELS"/*.whl || exit
  export PYTHONPATH=/tmp/site:${PYTHONPATH:-}
fi

bench() {  # name, limit in seconds, settings: interrupted at the limit, bench prints what it has measured
  local name=$1 limit=$2; shift 2
  timeout -s INT -k 20 $((PATIENCE * limit)) "$PY" -m rpr bench hardware="$HARDWARE" data.vocabulary_size="$VOCABULARY" \
    variants="[$VARIANTS]" format=json "$@" > "$OUT/$name.json" 2> "$OUT/$name.log"
  echo "$name: exit code $?, ${SECONDS} s"
}

case ${1:-} in
1)
  OMP_NUM_THREADS=1 timeout -s INT -k 20 $((PATIENCE * 190)) "$PY" -m pytest $TEST_OPTIONS $TESTS -n "$WORKERS" -p no:cacheprovider \
    --durations=20 > "$OUT/tests.log" 2>&1
  echo "tests: exit code $?, ${SECONDS} s: $(tail -n 1 "$OUT/tests.log")"
  step=(model="$MODEL" parts=[step] rounds="$ROUNDS" sentences="$SENTENCES" length="$LENGTH")
  bench step 75 "${step[@]}"
  VARIANTS=$COMPILED bench step_compiled 75 "${step[@]}" hardware.compile=true
  ;;
2)
  for size in $WIDTHS; do
    width=${size%x*} layers=${size#*x}
    context=(model="$MODEL" model.architecture=decoder_only model.d_model="$width" model.num_layers="$layers"
      model.num_heads=$((width / 64)) model.d_ff=$((4 * width)) parts=[context] rounds="$ROUNDS"
      context.lengths="[$CONTEXTS]" context.positions="$CONTEXT_POSITIONS")
    bench "context_$size" 70 "${context[@]}"
    VARIANTS=$COMPILED bench "context_${size}_compiled" 70 "${context[@]}" hardware.compile=true
  done
  bench attention 60 model="$MODEL" parts=[attention] rounds="$ROUNDS" context.lengths="[$LAYERS]" \
    context.positions="$LAYER_POSITIONS"
  ;;
*)
  echo "usage: $0 1|2" >&2
  exit 2
  ;;
esac

"$PY" - "$OUT" "$PEAK" <<'END'
import json
import pathlib
import sys

folder, peak = pathlib.Path(sys.argv[1]), float(sys.argv[2])
lines = ["document\tpart\tlength\tvariant\tseconds\ttokens/s\tMFU of the peak\n"]
for path in sorted(folder.glob("*.json")):
    document = json.loads(path.read_text() or "{}")
    for part in ("step", "context", "attention"):
        for row in document.get(part, []):
            cells = [path.stem, part, str(row["length"]), row["variant"]]
            if "teraflops_per_second" in row:
                tokens = row.get("target_tokens_per_second")
                cells += [f"{row.get('seconds') or 1 / row['steps_per_second']:.6f}", f"{tokens:.0f}" if tokens else ""]
                cells.append(f"{row['teraflops_per_second'] * 1e12 / peak:.4f}")
            lines.append("\t".join(cells) + "\n")
(folder / "mfu.tsv").write_text("".join(lines))
print("".join(lines))
END
